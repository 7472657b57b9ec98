//! Late frames of paths that end here, as totals since this process began.
//!
//! ```text
//!  switch: late in the network, lost; since its start ─▶ Misses: differences, added up ─▶ totals by path
//! ```
//!
//! A switch that starts anew counts from 0; what an earlier agent of the same switch reported is not counted again.

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

/// All paths that end here, by name.
pub type SeenPaths = BTreeMap<String, Seen>;

/// Returns the counters of pairs: what left this host late is not the network's fault.
pub fn seen<'a>(pairs: impl Iterator<Item = &'a PairStatus>) -> SeenPaths {
    let of = |pair: &PairStatus| {
        let missed = pair.late.network.saturating_add(pair.lost);
        (format!("{}>{}", pair.remote, pair.vnic), Seen { missed, worst: pair.worst_ns })
    };
    pairs.filter(|pair| pair.arrived > 0).map(of).collect()
}

/// Totals.
#[derive(Clone, Debug, Default)]
pub struct Misses {
    last: Option<SeenPaths>,
    totals: BTreeMap<String, PathMisses>,
}

impl Misses {
    /// Returns the counters of the last look.
    pub fn last(&self) -> Option<&SeenPaths> {
        self.last.as_ref()
    }

    /// Adds what is new at Unix time `now` (s).
    pub fn count(&mut self, seen: SeenPaths, now: f64) {
        if let Some(before) = &self.last {
            for (name, Seen { missed, worst }) in &seen {
                let before = before.get(name).copied().unwrap_or_default();
                let new = if *missed < before.missed { *missed } else { missed - before.missed };
                if new == 0 {
                    continue;
                }
                let path = self.totals.entry(name.clone()).or_insert_with(|| PathMisses {
                    name: name.clone(),
                    total: 0,
                    worst: 0,
                    last: now,
                });
                (path.total, path.worst, path.last) = (path.total.saturating_add(new), *worst, now);
            }
        }
        // A path that is gone keeps its last counters: the switch forgets it as late as the path's end.
        let mut all = self.last.take().unwrap_or_default();
        all.extend(seen);
        self.last = Some(all);
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

    proptest! {
        /// Whatever restarts of the switch come in between, all misses after the first look are in the total.
        #[test]
        fn none_is_missing_from_the_totals(first in 0u64..1000, steps in prop::collection::vec((0u64..50, prop::bool::weighted(0.1)), 0..40)) {
            let mut misses = Misses::default();
            let look = |missed| SeenPaths::from([("b>a".to_owned(), Seen { missed, worst: 7 })]);
            misses.count(look(first), 1.0);
            prop_assert!(misses.totals().is_empty(), "an earlier agent reported these");
            let (mut counter, mut expected) = (first, 0);
            for (new, restarts) in steps {
                if restarts && new < counter {
                    counter = 0;
                }
                counter += new;
                expected += new;
                misses.count(look(counter), 2.0);
                prop_assert_eq!(misses.totals().get("b>a").map_or(0, |path| path.total), expected);
            }
        }
    }
}
