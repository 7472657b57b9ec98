//! The classes of limits and shares: HTB's parameters (`struct tc_htb_opt`, linux/pkt_sched.h).

use crate::limit::Limit;
use crate::tc::shaping::Share;

/// Bytes of a class's turn beside others: a super-frame.
const QUANTUM: u32 = tidegate_contract::frame::SUPER_FRAME as u32;

/// A class of HTB. Rates in bytes per second, bursts in ticks of 64 ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HtbClass {
    /// Its rate.
    pub rate: u64,
    /// The rate up to which it may borrow.
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

/// Least rate of a class without a guarantee (bytes per second): HTB has no rate of 0. Small, since it
/// comes on top of all guarantees; a super-frame takes a minute, the longest debt that HTB tracks.
const NOTHING: u64 = 1_100;
/// Its bucket: a frame at that rate (ticks).
const NOTHING_BURST: u32 = 21_600_000;

impl HtbClass {
    /// Returns one sender's class of `all`: its guarantee, and up to all of the rest by weight.
    pub fn share(share: &Share, all: Limit) -> Self {
        let (rate, burst) = share.guaranteed.map_or((NOTHING, NOTHING_BURST), |g| (g.rate, g.burst));
        Self {
            rate,
            burst,
            // A turn lets the frame through that uses it up: turns shorter than a super-frame would ignore
            // weights.
            quantum: QUANTUM * share.weight,
            priority: share.priority.into(),
            ..all.into()
        }
    }

    /// Returns the common class of all senders without a share of `all`.
    pub fn rest(all: Limit) -> Self {
        Self { rate: NOTHING, burst: NOTHING_BURST, priority: Share::LAST.into(), ..all.into() }
    }

    /// Returns a sender's class if each has limits of its own, and only the order is common.
    pub fn sender(limit: Limit, realtime: bool) -> Self {
        Self { priority: if realtime { 0 } else { Share::LAST.into() }, ..limit.into() }
    }
}

impl From<Limit> for HtbClass {
    /// `rate` and `ceil` are the limit, each with its whole burst: both buckets are charged, so the smaller
    /// one would decide.
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
