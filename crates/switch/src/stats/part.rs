//! What a worker is busy with.

use tidegate_evidence::reasons;

reasons! {
    /// A part of a worker's loop.
    LoopPart {
        /// What is not timed by itself.
        Other = "other",
        /// What other threads asked of the worker, and urgent frames of other workers.
        Change = "change",
        /// Frames of other workers, taken in.
        Crossing = "crossing",
        /// Frames of a vNIC, taken from it.
        Ingress = "ingress",
        /// Frames to a vNIC, from its queue.
        Egress = "egress",
        /// What became of frames: counted, and shown to the drivers.
        Completion = "completion",
    }
}
