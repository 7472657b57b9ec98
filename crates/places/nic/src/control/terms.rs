//! What the loop is told: the link, the functions that send through it, their tenants, what was counted.

use std::time::Duration;
use tidegate_contract::frame::TAGGED_FRAME;
use tidegate_contract::{Bytes, Rate, Segment};

/// The link that all functions of a NIC share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkTerms {
    /// Capacity of the functions together, in bytes as the counters count them.
    ///
    /// Less than the link's speed: of 1 Gbit/s, frames of 1514 bytes without FCS fill 984 Mbit/s.
    pub capacity: Rate,
    /// The step in which limits are set, and the least one: 1 Mbit/s by rtnetlink (IFLA_VF_RATE). There, 0 means none.
    pub unit: Rate,
    /// The most that is counted at once: [`TAGGED_FRAME`], or 64 KiB where super-frames are counted whole.
    pub frame: Bytes,
    /// Whether an unused minimum is lent.
    pub lending: Lending,
}

/// Whether a minimum is lent while its owner does not use it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lending {
    /// Lent: others use it, and its owner has it back within a few periods.
    #[default]
    Lend,
    /// Not lent: its owner has it at once.
    Reserve,
}

impl LinkTerms {
    /// A link whose limits are set in whole Mbit/s, and whose counters count frame by frame.
    pub const fn new(capacity: Rate) -> Self {
        let unit = Rate::from_bits(1_000_000).expect("in range");
        Self { capacity, unit, frame: Bytes::new(TAGGED_FRAME), lending: Lending::Lend }
    }

    /// A rate in steps of the limit, rounded down.
    pub(super) const fn units(&self, rate: Rate) -> u64 {
        rate.bits() / self.unit.bits()
    }

    /// A rate in steps of the limit, rounded up: a minimum is kept in full.
    pub(super) const fn units_up(&self, rate: Rate) -> u64 {
        rate.bits().div_ceil(self.unit.bits())
    }

    /// A member's minimum in steps of the limit: rounded up, but to no more than its maximum is rounded down to. A minimum
    /// and a maximum less than a step apart would contradict each other otherwise.
    pub(super) fn units_of_min(&self, member: &Member) -> Option<u64> {
        let most = member.max.map_or(u64::MAX, |max| self.units(max));
        member.min.map(|min| self.units_up(min).min(most))
    }

    /// So many steps as a rate.
    pub(super) fn rate(&self, units: u64) -> Rate {
        Rate::from_bits(units.saturating_mul(self.unit.bits()).max(1)).unwrap_or(Rate::MAX)
    }
}

/// One function that sends through the link, and its promises there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Index of the function on its NIC.
    pub id: u16,
    /// The host's hard limit; rounded down to the link's unit.
    pub max: Option<Rate>,
    /// What it gets when it wants it; rounded up to the link's unit, but to no more than `max` is rounded to.
    pub min: Option<Rate>,
    /// Weight in dividing the capacity above all minima: 1 to 1000.
    pub weight: u32,
    /// Its tenant network.
    pub segment: Segment,
}

/// What the functions of one segment may and shall send together. A segment without one has neither.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// Whose.
    pub segment: Segment,
    /// At most, all together; rounded down to the link's unit.
    pub max: Option<Rate>,
    /// At least, where they want it; rounded up to the link's unit.
    pub min: Option<Rate>,
}

/// Bytes that a function sent between two readings of its counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Bytes from the first look to the second.
    pub bytes: u64,
    /// From the first look to the second.
    pub elapsed: Duration,
}
