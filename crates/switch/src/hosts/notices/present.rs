//! The vNICs that are at this host, and which of them each peer has still to be told.
//!
//! ```text
//!  vNICs that are up ─▶ Present: numbered in the order in which they came ─▶ Told, for each peer:
//!                                                                            at once, after 1 s, after 10 s
//! ```
//!
//! A message may be lost, and a peer may not know this host's clock yet: three times is enough. A peer that restarts is
//! told all again.

use super::bucket::Bucket;
use super::rounds::{Rounds, Thing};
use super::setup::Local;
use std::collections::{BTreeMap, HashMap};
use tidegate_contract::{Mac, Segment};

/// When a vNIC is announced, after it came (ns).
const AFTER: [u64; 3] = [0, 1_000_000_000, 10_000_000_000];
/// Announcements a second to one peer.
const RATE: u64 = 50;

/// The vNICs that are up.
#[derive(Debug, Default)]
pub(super) struct Present {
    /// By number.
    vnics: BTreeMap<u64, Came>,
    numbers: HashMap<(Segment, Mac), u64>,
    next: u64,
}

/// A vNIC that is up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Came {
    pub(super) segment: Segment,
    pub(super) mac: Mac,
    /// Since when (ns).
    pub(super) since: u64,
}

impl Present {
    /// Sets the vNICs of this host, as they are at `now` (ns).
    pub(super) fn set(&mut self, locals: &[Local], now: u64) {
        let before = std::mem::take(&mut self.numbers);
        for local in locals.iter().filter(|local| local.is_up) {
            let key = (local.segment, local.mac);
            let number = before.get(&key).copied().unwrap_or_else(|| {
                self.next += 1;
                self.vnics.insert(self.next, Came { segment: local.segment, mac: local.mac, since: now });
                self.next
            });
            self.numbers.insert(key, number);
        }
        let gone = before.iter().filter(|(key, _)| !self.numbers.contains_key(*key));
        gone.for_each(|(_, number)| _ = self.vnics.remove(number));
    }

    /// Returns since when a vNIC is up (ns); `None` if it is not.
    pub(super) fn since(&self, segment: Segment, mac: Mac) -> Option<u64> {
        let number = self.numbers.get(&(segment, mac))?;
        self.vnics.get(number).map(|came| came.since)
    }
}

impl Thing for Came {
    fn segment(&self) -> Segment {
        self.segment
    }

    fn since(&self) -> u64 {
        self.since
    }
}

/// What one peer was told.
#[derive(Debug)]
pub(super) struct Told {
    rounds: Rounds<{ AFTER.len() }>,
    bucket: Bucket,
}

impl Told {
    /// Nothing was told to a peer that is one since `now` (ns).
    pub(super) const fn nothing(now: u64) -> Self {
        Self { rounds: Rounds::new(AFTER, now), bucket: Bucket::new(RATE) }
    }

    /// Returns when the peer is to be told of the next vNIC (ns); `None` if it was told all.
    pub(super) fn due(&self, present: &Present, now: u64) -> Option<u64> {
        Some(self.rounds.due(&present.vnics)?.max(self.bucket.next(now)))
    }

    /// Takes the next vNIC that `concerns` the peer and that it is to be told of at `now` (ns).
    pub(super) fn next(
        &mut self,
        present: &Present,
        now: u64,
        concerns: impl Fn(Segment) -> bool,
    ) -> Option<Came> {
        self.rounds.next(&present.vnics, now, &mut self.bucket, &concerns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn local(mac: u8, is_up: bool) -> Local {
        let segment = Segment::new(u32::from(mac % 2)).unwrap();
        Local {
            name: format!("v{mac}"),
            segment,
            mac: Mac([2, 0, 0, 0, 0, mac]),
            is_up,
            queue_pair: None,
            q_key: 0,
            longest: 0,
        }
    }

    fn told(told: &mut Told, present: &Present, now: u64) -> Vec<(u8, u64)> {
        let mut all = Vec::new();
        while let Some(came) = told.next(present, now, |segment| segment.id() == 0) {
            all.push((came.mac.0[5], came.since));
        }
        all
    }

    #[test]
    fn each_vnic_is_told_three_times_and_again_after_a_restart() {
        let mut present = Present::default();
        present.set(&[local(2, true), local(3, true), local(4, false)], SECOND);
        let mut peer = Told::nothing(0);
        assert_eq!(peer.due(&present, 0), Some(SECOND));
        assert_eq!(told(&mut peer, &present, SECOND), [(2, SECOND)]);
        present.set(&[local(2, true), local(4, true)], 3 * SECOND / 2);
        assert_eq!(told(&mut peer, &present, 2 * SECOND), [(4, 3 * SECOND / 2), (2, SECOND)]);
        assert_eq!(told(&mut peer, &present, 30 * SECOND).len(), 3);
        assert_eq!(peer.due(&present, 30 * SECOND), None);
        let mut peer = Told::nothing(40 * SECOND);
        assert_eq!(told(&mut peer, &present, 40 * SECOND).len(), 2);
        assert_eq!(peer.due(&present, 40 * SECOND), Some(41 * SECOND));
        present.set(&[], 41 * SECOND);
        assert_eq!(peer.due(&present, 41 * SECOND), None);
        present.set(&[local(2, true)], 50 * SECOND);
        assert_eq!(told(&mut peer, &present, 50 * SECOND), [(2, 50 * SECOND)], "it came again");
    }

    #[test]
    fn many_vnics_leave_at_a_bounded_rate() {
        let mut present = Present::default();
        let all: Vec<_> = (0..200).map(|mac| local(mac, true)).collect();
        present.set(&all, 5);
        let mut peer = Told::nothing(0);
        assert_eq!(told(&mut peer, &present, 5).len(), 50);
        assert!(peer.due(&present, 5).is_some_and(|due| due > 5));
        assert_eq!(told(&mut peer, &present, SECOND / 2 + 5).len(), 25);
    }
}
