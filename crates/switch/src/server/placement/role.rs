//! What the deadlines of a vNIC demand of its worker.

/// Cost of a write of 64 kB into a tap, in bytes copied: measured 412 us, in which a worker copies at 2.5
/// GB/s. Real-time vNICs may gather on a worker up to a loop of this length.
pub const TAP_WRITE: u64 = 1 << 20;

/// How deadlines concern a vNIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// It sends or receives frames with a deadline.
    RealTime,
    /// No deadlines; a tap, so writes to it take long.
    BestEffortTap,
    /// No deadlines; frames to it are copied.
    #[default]
    BestEffort,
}
