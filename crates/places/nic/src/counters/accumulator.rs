//! From counters that wrap to totals. Pure.
//!
//! ```text
//!  reading before ─┐
//!  reading now ────┼─▶ differences, modulo the width ─▶ more than can have been? ─ no ──▶ added
//!  most possible ──┘                                                             └ yes ─▶ reset: the reading now is added
//! ```
//!
//! A counter that is smaller than before has wrapped or begun anew. Registers are read as they are, so what a NIC cannot have
//! moved in the meantime tells one from the other. What drivers keep in 64 bits never wraps, and may be some seconds old.

use super::counted::Doubts;
use std::time::Duration;
use tidegate_contract::Rate;

/// How much more than its link a NIC is taken to move: VMs on it reach each other without the link.
pub const HEADROOM: u64 = 4;

/// Bytes of the smallest frame, without FCS.
const SMALLEST: u64 = 60;

/// Length of FCS.
const FCS: u64 = 4;

/// The counters of a VF, in the VM's view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is what it says")]
pub enum Count {
    TxFrames,
    TxBytes,
    TxMulticast,
    TxDropped,
    RxFrames,
    RxBytes,
    RxMulticast,
    RxDropped,
}

impl Count {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::TxFrames,
        Self::TxBytes,
        Self::TxMulticast,
        Self::TxDropped,
        Self::RxFrames,
        Self::RxBytes,
        Self::RxMulticast,
        Self::RxDropped,
    ];
}

/// One reading of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value {
    /// Now.
    pub now: u64,
    /// Its width in bits, 1 to 64.
    pub width: u32,
}

impl Value {
    /// One with 64 bits.
    pub const fn wide(now: u64) -> Self {
        Self { now, width: 64 }
    }

    /// Since a value before, if it wrapped at most once.
    fn since(self, before: u64) -> u64 {
        self.now.wrapping_sub(before) & (u64::MAX >> (64 - self.width))
    }

    fn wraps(self) -> bool {
        self.width < 64
    }

    /// How far it counts; saturated for 64 bits.
    fn range(self) -> u64 {
        1_u64.checked_shl(self.width).unwrap_or(u64::MAX)
    }
}

/// All counters of a VF, as they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    values: [Option<Value>; 8],
    fcs: bool,
}

impl Reading {
    /// This, with a counter.
    #[must_use]
    pub fn with(mut self, count: Count, value: Value) -> Self {
        self.values[count as usize] = Some(value);
        self
    }

    /// This, with FCS in its bytes.
    #[must_use]
    pub fn with_fcs(mut self) -> Self {
        self.fcs = true;
        self
    }

    /// Whether nothing was ever counted.
    pub fn is_zero(&self) -> bool {
        self.values.iter().flatten().all(|value| value.now == 0)
    }
}

/// The most that a NIC can have counted in an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Most {
    frames: u64,
    bytes: u64,
}

impl Most {
    /// In so long, at this link speed.
    pub fn within(interval: Duration, speed: Rate) -> Self {
        let bits = interval.as_nanos() * u128::from(speed.bits()) / 1_000_000_000;
        let bytes = u64::try_from(bits / 8 * u128::from(HEADROOM)).unwrap_or(u64::MAX);
        Self { frames: bytes / SMALLEST, bytes }
    }

    /// How long it takes at this link speed until a counter of bytes with this range may have gone round.
    pub fn interval_until(range: u64, speed: Rate) -> Duration {
        let nanos = u128::from(range) * 8 * 1_000_000_000 / (u128::from(speed.bits()) * u128::from(HEADROOM));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    fn of(self, count: Count) -> Option<u64> {
        match count {
            Count::TxBytes | Count::RxBytes => Some(self.bytes),
            Count::TxFrames | Count::RxFrames | Count::TxMulticast | Count::RxMulticast => Some(self.frames),
            // What a VM tries to send is not bounded by any link.
            Count::TxDropped | Count::RxDropped => None,
        }
    }
}

/// Totals of a VF since its first reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accumulator {
    last: Option<Reading>,
    totals: [Option<u64>; 8],
    /// Bytes without FCS, tx and rx; and the FCS that were among those of the totals.
    bytes: [u64; 2],
    fcs: [u64; 2],
    doubts: Doubts,
}

impl Accumulator {
    /// Adds what came since the last reading. `most` is what can have come at all; `None` where that is not known.
    pub fn add(&mut self, reading: &Reading, most: Option<Most>) {
        if let Some(last) = self.last.replace(*reading) {
            self.add_since(&last, reading, most);
        }
        for (total, value) in self.totals.iter_mut().zip(reading.values) {
            if value.is_some() {
                total.get_or_insert(0);
            }
        }
    }

    /// The next reading is of another source: it cannot be compared with the last, and what came in between is missing.
    pub fn change_source(&mut self) {
        if self.last.take().is_some() {
            self.doubts.resets += 1;
        }
    }

    /// Since the first reading; `None` where that is not counted. Bytes are without FCS.
    pub fn total(&self, count: Count) -> Option<u64> {
        let total = self.totals[count as usize]?;
        Some(match count {
            Count::TxBytes => self.bytes[0],
            Count::RxBytes => self.bytes[1],
            _ => total,
        })
    }

    /// Doubts about the totals.
    pub fn doubts(&self) -> Doubts {
        self.doubts
    }

    fn add_since(&mut self, last: &Reading, now: &Reading, most: Option<Most>) {
        let pairs = Count::ALL.map(|count| {
            let before = last.values[count as usize]?;
            Some((count, before.now, now.values[count as usize]?))
        });
        let pairs = || pairs.iter().copied().flatten();
        let bound = |count| most.map_or(Some(u64::MAX), |most| most.of(count));
        if pairs()
            .any(|(count, _, value)| value.wraps() && bound(count).is_some_and(|most| most >= value.range()))
        {
            self.doubts.missed_wraps += 1;
        }
        let reset = pairs().any(|(count, before, value)| {
            if value.wraps() {
                bound(count).is_some_and(|most| value.since(before) > most)
            } else {
                value.now < before
            }
        });
        self.doubts.resets += u64::from(reset);
        for (count, before, value) in pairs() {
            let added = match (reset, bound(count)) {
                (false, _) => value.since(before),
                // Not from 0, as after a reset: whatever it was, it is not known.
                (true, Some(most)) if value.wraps() && value.now > most => 0,
                (true, _) => value.now,
            };
            *self.totals[count as usize].get_or_insert(0) += added;
            match count {
                Count::TxFrames if now.fcs => self.fcs[0] += added * FCS,
                Count::RxFrames if now.fcs => self.fcs[1] += added * FCS,
                _ => {}
            }
        }
        let octets =
            [Count::TxBytes, Count::RxBytes].map(|count| self.totals[count as usize].unwrap_or_default());
        for ((bytes, octets), fcs) in self.bytes.iter_mut().zip(octets).zip(self.fcs) {
            // Frames and octets are not read at one time: a total never goes back for that.
            *bytes = octets.saturating_sub(fcs).max(*bytes);
        }
    }
}
