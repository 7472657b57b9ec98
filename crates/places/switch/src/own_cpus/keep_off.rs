//! Which work the agent keeps off the CPUs of workers.

/// What to keep off workers' CPUs, besides the agent's own threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepOff {
    /// The stack of taps, for what workers write into them.
    pub softirqs: bool,
    /// Halts, while real-time frames flow.
    pub halts: bool,
}
