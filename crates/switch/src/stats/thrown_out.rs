//! Why a front end was disconnected by the switch.

use tidegate_evidence::reasons;

reasons! {
    /// Why a front end was disconnected by us. Counted per port.
    ThrownOut {
        /// What it said on its socket.
        Message = "message",
        /// It began a message, or left a reply unread, and did not go on.
        Stalled = "stalled",
        /// What stands in its rings.
        Ring = "ring",
        /// It took its guest's memory away.
        Memory = "memory",
        /// It wanted more memory, regions or descriptors than it may have.
        Quota = "quota",
        /// Its objects held threads of the switch up.
        Held = "held",
    }
}
