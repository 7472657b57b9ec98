//! The class of a limit: what HTB is told (`struct tc_htb_opt`, linux/pkt_sched.h).

use crate::limit::Limit;

/// How much a class sends in one turn beside others, bytes: a super-frame.
const QUANTUM: u32 = 65_536;

/// A leaf class of HTB. Rates in bytes per second, bursts in ticks of 64 ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HtbClass {
    /// What it gets.
    pub rate: u64,
    /// What it may borrow up to.
    pub ceil: u64,
    /// Bucket of `rate`.
    pub burst: u32,
    /// Bucket of `ceil`.
    pub cburst: u32,
    /// Bytes per turn.
    pub quantum: u32,
    /// 0 goes first.
    pub priority: u32,
}

impl From<Limit> for HtbClass {
    /// `rate` and `ceil` are the limit, each with its whole burst: both buckets are charged, so the smaller one
    /// would decide.
    fn from(limit: Limit) -> Self {
        Self {
            rate: limit.rate,
            ceil: limit.rate,
            burst: limit.burst,
            cburst: limit.burst,
            quantum: QUANTUM,
            priority: 0,
        }
    }
}
