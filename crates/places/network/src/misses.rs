//! Late frames of paths that end here, as totals since this process began.
//!
//! ```text
//!  switch: its start; late in the network, lost ─▶ Misses: differences, added up ─▶ totals by path
//! ```
//!
//! The counters of an uplink at its first look are not counted: an agent before this one reported them. From then on a
//! path that is new, and each path of a switch that starts anew, counts from 0.

use std::collections::BTreeMap;
use tidegate_controller_api::PathMisses;
use tidegate_evidence::PairStatus;

/// The counters of a path that ends here, as the switch has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Frames late by the network, or lost.
    pub missed: u64,
    /// Most by which one was late (ns).
    pub worst: u64,
}

/// The paths that end here over one uplink.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeenPaths {
    /// Start of the switch that counts: tells switches apart.
    pub started: u64,
    /// By name.
    pub paths: BTreeMap<String, Seen>,
}

/// One look, by uplink.
pub type Look = BTreeMap<String, SeenPaths>;

/// Returns the counters of pairs: what left this host late is not the network's fault.
pub fn seen<'a>(started: u64, pairs: impl Iterator<Item = &'a PairStatus>) -> SeenPaths {
    let of = |pair: &PairStatus| {
        let missed = pair.late.network.saturating_add(pair.lost);
        (format!("{}>{}", pair.remote, pair.vnic), Seen { missed, worst: pair.worst_ns })
    };
    SeenPaths { started, paths: pairs.filter(|pair| pair.arrived > 0).map(of).collect() }
}

/// Totals.
#[derive(Clone, Debug, Default)]
pub struct Misses {
    last: Look,
    totals: BTreeMap<String, PathMisses>,
}

impl Misses {
    /// Returns the counters of the last look at each uplink.
    pub fn last(&self) -> &Look {
        &self.last
    }

    /// Adds what is new at Unix time `now` (s). An uplink that the look lacks stays as it was: its switch does not answer.
    pub fn count(&mut self, look: Look, now: f64) {
        for (uplink, seen) in look {
            let Some(before) = self.last.insert(uplink, seen.clone()) else { continue };
            for (name, Seen { missed, worst }) in seen.paths {
                let before = before.paths.get(&name).filter(|_| before.started == seen.started);
                let before = before.map_or(0, |before| before.missed);
                // A pair that is made anew counts from 0, too.
                let new = if missed < before { missed } else { missed - before };
                if new == 0 {
                    continue;
                }
                let path = self.totals.entry(name.clone()).or_insert(PathMisses {
                    name,
                    total: 0,
                    worst: 0,
                    last: now,
                });
                (path.total, path.last) = (path.total.saturating_add(new), now);
                path.worst = path.worst.max(worst);
            }
        }
    }

    /// Returns the totals.
    pub fn totals(&self) -> &BTreeMap<String, PathMisses> {
        &self.totals
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns a look at `net0`, at a switch that started then.
    fn look(started: u64, paths: &[(&str, u64)]) -> Look {
        let paths =
            paths.iter().map(|(name, missed)| ((*name).to_owned(), Seen { missed: *missed, worst: 7 }));
        [("net0".to_owned(), SeenPaths { started, paths: paths.collect() })].into()
    }

    fn total(misses: &Misses, path: &str) -> u64 {
        misses.totals().get(path).map_or(0, |path| path.total)
    }

    #[test]
    fn a_first_look_counts_nothing_when_it_comes_late_or_for_another_uplink() {
        let mut misses = Misses::default();
        // The switch does not answer.
        misses.count(Look::new(), 1.0);
        misses.count(look(1, &[("b>a", 900)]), 2.0);
        assert!(misses.totals().is_empty());
        let other =
            SeenPaths { started: 1, paths: [("c>a".to_owned(), Seen { missed: 50, worst: 7 })].into() };
        misses.count([("net1".to_owned(), other)].into(), 3.0);
        assert!(misses.totals().is_empty(), "it joined later");
        misses.count(look(1, &[("b>a", 901), ("d>a", 3)]), 4.0);
        assert_eq!(
            (total(&misses, "b>a"), total(&misses, "d>a")),
            (1, 3),
            "d>a is new since the look before"
        );
    }

    #[test]
    fn a_pair_that_is_made_anew_counts_from_0() {
        let mut misses = Misses::default();
        misses.count(look(1, &[("b>a", 5)]), 1.0);
        misses.count(look(1, &[]), 2.0);
        misses.count(look(1, &[("b>a", 6)]), 3.0);
        assert_eq!(total(&misses, "b>a"), 6);
    }

    proptest! {
        /// Whatever restarts of the switch come in between, all misses after the first look are in the total.
        #[test]
        fn none_is_missing_from_the_totals(first in 0u64..1000, steps in prop::collection::vec((0u64..50, prop::bool::weighted(0.1)), 0..40)) {
            let mut misses = Misses::default();
            misses.count(look(0, &[("b>a", first)]), 1.0);
            prop_assert!(misses.totals().is_empty(), "an earlier agent reported these");
            let (mut started, mut counter, mut expected) = (0, first, 0);
            for (new, restarts) in steps {
                if restarts {
                    (started, counter) = (started + 1, 0);
                }
                counter += new;
                expected += new;
                misses.count(look(started, &[("b>a", counter)]), 2.0);
                prop_assert_eq!(total(&misses, "b>a"), expected);
            }
        }
    }
}
