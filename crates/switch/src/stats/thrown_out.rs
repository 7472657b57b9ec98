//! The reasons for which the switch disconnects a front end.

use tidegate_evidence::reasons;

reasons! {
    /// The reason for which the switch disconnected a front end. Counted per port.
    ThrownOut {
        /// An invalid message.
        Message = "message",
        /// It did not complete a message, or did not read a reply.
        Stalled = "stalled",
        /// Invalid content of its rings.
        Ring = "ring",
        /// It removed its guest's memory.
        Memory = "memory",
        /// It requested more memory, regions or descriptors than allowed.
        Quota = "quota",
        /// Its objects delayed threads of the switch.
        Held = "held",
    }
}
