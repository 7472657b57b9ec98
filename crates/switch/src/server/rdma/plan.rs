//! Which queue pairs of a link to make, to replace, to give another Q_Key, and to destroy. Pure.
//!
//! ```text
//!  wanted: port, segment, Q_Key ─┐
//!  there: segment, Q_Key, failed ┼─▶ Plan: drop, make, set, and when to look again
//!  earlier failures, time ───────┘
//! ```
//!
//! A queue pair that fails is replaced at once, and one that fails soon again after a pause that doubles: a broken device
//! costs no CPU.

use crate::fdb::{PortIndex, SegmentIndex};
use std::collections::BTreeMap;
use tidegate_contract::Mac;

/// First pause (ns).
const PAUSE: u64 = 100_000_000;
/// Longest pause (ns).
const PAUSE_MAX: u64 = 10_000_000_000;
/// A queue pair that lives as long (ns) is as good as new: its next failure is a first one.
const GOOD: u64 = 60_000_000_000;

/// A queue pair that a port should have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Its segment, and that one's VNI.
    pub segment: (SegmentIndex, u32),
    /// The vNIC's address in that.
    pub mac: Mac,
    /// Key of datagrams that it receives.
    pub q_key: u32,
}

/// A queue pair that a port has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct There {
    /// Its segment, and that one's VNI.
    pub segment: (SegmentIndex, u32),
    /// The vNIC's address in that.
    pub mac: Mac,
    /// Key of datagrams that it receives.
    pub q_key: u32,
    /// It takes and sends nothing any more.
    pub failed: bool,
}

/// The failures of a port's queue pairs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Failures {
    /// All of them.
    pub count: u64,
    /// Those without a good one between.
    in_a_row: u32,
    /// When the last one was made, or could not be made (ns).
    made_at: u64,
    /// When the next one may be made (ns).
    next_at: u64,
}

impl Failures {
    /// Notes a failure at `now`: of one that lived, or of the attempt to make one.
    pub fn note(&mut self, now: u64) {
        self.count += 1;
        if now.saturating_sub(self.made_at) >= GOOD {
            self.in_a_row = 0;
        }
        let pause = match self.in_a_row {
            0 => 0,
            before => (PAUSE << (before - 1).min(16)).min(PAUSE_MAX),
        };
        self.in_a_row = self.in_a_row.saturating_add(1);
        self.next_at = now + pause;
    }

    /// Whether the pause after the last one is over at `now`.
    pub fn are_over(&self, now: u64) -> bool {
        self.next_at <= now
    }

    /// Notes that one was tried to be made at `now`.
    pub fn tried(&mut self, now: u64) {
        self.made_at = now;
    }
}

/// What to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Ports whose queue pairs go.
    pub drop: Vec<PortIndex>,
    /// Ports that get one.
    pub make: Vec<(PortIndex, Wanted)>,
    /// Ports whose queue pairs get another Q_Key.
    pub set: Vec<(PortIndex, u32)>,
    /// When the next one may be made (ns), if one waits.
    pub next: Option<u64>,
}

/// Compares the queue pairs that are wanted with those `there`, at `now` (ns).
pub fn plan(
    wanted: &BTreeMap<PortIndex, Wanted>,
    there: &BTreeMap<PortIndex, There>,
    failures: &BTreeMap<PortIndex, Failures>,
    now: u64,
) -> Plan {
    let mut plan = Plan::default();
    let stays = |port: &PortIndex, pair: &There| {
        !pair.failed
            && wanted.get(port).is_some_and(|wanted| (wanted.segment, wanted.mac) == (pair.segment, pair.mac))
    };
    plan.drop = there.iter().filter(|(port, pair)| !stays(port, pair)).map(|(port, _)| *port).collect();
    for (port, wanted) in wanted {
        match there.get(port).filter(|pair| stays(port, pair)) {
            Some(pair) if pair.q_key == wanted.q_key => {}
            Some(_) => plan.set.push((*port, wanted.q_key)),
            None => {
                let next = failures.get(port).map_or(0, |failures| failures.next_at);
                if next <= now {
                    plan.make.push((*port, *wanted));
                } else {
                    plan.next = Some(plan.next.map_or(next, |earlier| earlier.min(next)));
                }
            }
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;
    const MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);

    fn wanted(segment: u16, q_key: u32) -> Wanted {
        Wanted { segment: (SegmentIndex(segment), 42), mac: MAC, q_key }
    }

    fn there(segment: u16, q_key: u32, failed: bool) -> There {
        There { segment: (SegmentIndex(segment), 42), mac: MAC, q_key, failed }
    }

    #[test]
    fn pairs_come_go_change_their_key_and_are_replaced() {
        let want = BTreeMap::from([
            (1, wanted(0, 7)),
            (2, wanted(0, 7)),
            (3, wanted(0, 8)),
            (4, wanted(0, 7)),
            (5, wanted(1, 7)),
            (7, Wanted { mac: Mac([2, 9, 9, 9, 9, 9]), ..wanted(0, 7) }),
            (8, Wanted { segment: (SegmentIndex(0), 43), ..wanted(0, 7) }),
        ]);
        let have = BTreeMap::from([
            (2, there(0, 7, false)),
            (3, there(0, 7, false)),
            (4, there(0, 7, true)),
            (5, there(0, 7, false)),
            (6, there(0, 7, false)),
            (7, there(0, 7, false)),
            (8, there(0, 7, false)),
        ]);
        let plan = plan(&want, &have, &BTreeMap::new(), 0);
        assert_eq!(
            plan.drop,
            [4, 5, 6, 7, 8],
            "failed, of another segment, wanted no more, of another address or VNI"
        );
        assert_eq!(plan.make, [1, 4, 5, 7, 8].map(|port| (port, want[&port])));
        assert_eq!((plan.set, plan.next), (vec![(3, 8)], None));
    }

    #[test]
    fn a_pair_that_fails_again_and_again_waits_longer_and_longer() {
        let want = BTreeMap::from([(1, wanted(0, 7))]);
        let (mut failures, mut now, mut pauses) = (Failures::default(), 1000 * MS, vec![]);
        for _ in 0..12 {
            failures.tried(now);
            now += MS;
            failures.note(now);
            let all = BTreeMap::from([(1, failures)]);
            let next = plan(&want, &BTreeMap::new(), &all, now).next.unwrap_or(now);
            if next > now {
                assert!(plan(&want, &BTreeMap::new(), &all, next - 1).make.is_empty());
            }
            assert_eq!(plan(&want, &BTreeMap::new(), &all, next).make.len(), 1);
            pauses.push((next - now) / MS);
            now = next;
        }
        assert_eq!(pauses, [0, 100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000, 10_000, 10_000]);
        failures.tried(now);
        now += GOOD;
        failures.note(now);
        assert_eq!((failures.count, failures.next_at), (13, now), "it was good for a minute");
    }

    proptest! {
        /// Whatever was there: once it is done, nothing is left to do.
        #[test]
        fn what_was_planned_is_what_was_wanted(
            want in prop::collection::btree_map(0..8u16, (0..3u16, 0..3u32), 0..8),
            have in prop::collection::btree_map(0..8u16, (0..3u16, 0..3u32, any::<bool>()), 0..8),
        ) {
            let want: BTreeMap<_, _> = want.into_iter().map(|(port, (s, q))| (port, wanted(s, q))).collect();
            let mut have: BTreeMap<_, _> =
                have.into_iter().map(|(port, (s, q, failed))| (port, there(s, q, failed))).collect();
            let first = plan(&want, &have, &BTreeMap::new(), 0);
            for port in &first.drop {
                prop_assert!(have.remove(port).is_some());
            }
            for (port, wanted) in &first.make {
                let Wanted { segment, mac, q_key } = *wanted;
                let made = There { segment, mac, q_key, failed: false };
                prop_assert!(have.insert(*port, made).is_none(), "never two");
            }
            for (port, q_key) in &first.set {
                have.get_mut(port).unwrap().q_key = *q_key;
            }
            let as_wanted: BTreeMap<_, _> =
                want.iter().map(|(port, w)| (*port, there(w.segment.0.0, w.q_key, false))).collect();
            prop_assert_eq!(&have, &as_wanted);
            prop_assert_eq!(plan(&want, &have, &BTreeMap::new(), 0), Plan::default());
        }
    }
}
