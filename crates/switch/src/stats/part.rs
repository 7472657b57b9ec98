//! The parts of a worker's loop.

use tidegate_evidence::reasons;

reasons! {
    /// A part of a worker's loop.
    LoopPart {
        /// Work that is not timed separately.
        Other = "other",
        /// Calls of other threads, and urgent frames of other workers.
        Change = "change",
        /// Takes in frames of other workers.
        Crossing = "crossing",
        /// Takes frames from a vNIC.
        Ingress = "ingress",
        /// Delivers frames from the queue of a vNIC.
        Egress = "egress",
        /// Settles frames: counts them, and shows them to the drivers.
        Completion = "completion",
    }
}
