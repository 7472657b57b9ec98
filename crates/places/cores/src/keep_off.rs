//! The work that the agent keeps off workers' CPUs.

/// The work to keep off workers' CPUs, besides the agent's own threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepOff {
    /// The network stack of taps, for frames that workers write into them.
    pub softirqs: bool,
    /// Halts, while real-time frames flow.
    pub halts: bool,
}

impl KeepOff {
    /// Whether anything is kept off.
    pub(crate) fn is_anything(self) -> bool {
        self.softirqs || self.halts
    }
}
