//! Attributes a time to its causes, by all that is known to have happened meanwhile. Pure.
//!
//! ```text
//!  the wait      ├───────────────────────────────────────────────┤
//!  own loop      ├────────────────────────┤
//!  a task                   ├─────────────────┤
//!  a softirq                     ├────┤
//!                ├─own loop─┼task┼soft┼─task───┼───unexplained───┤
//! ```
//!
//! Each nanosecond belongs to the most exact cause. A host that takes the CPU takes it from any work there;
//! softirqs and interrupts run in the time of a task; and a loop of the worker lasts through all of them.

use std::collections::{BTreeMap, BTreeSet};

/// How exact a cause is; the highest wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// The worker was in a loop.
    Loop,
    /// Another task had the CPU, or it was idle.
    Task,
    /// A softirq or an interrupt ran.
    Softirq,
    /// The host of the virtual machine had the CPU.
    Host,
}

/// An activity from `from` to `to`.
#[derive(Clone, Debug)]
pub struct Span<T> {
    /// ns, of the clock of the wait.
    pub from: u64,
    /// See `from`.
    pub to: u64,
    /// Its exactness.
    pub rank: Rank,
    /// The activity.
    pub what: T,
}

/// Divides the time from `from` to `to` among its causes (ns); `None` is unexplained time. The sum is the
/// whole time.
pub fn shares<T: Ord>(from: u64, to: u64, spans: &[Span<T>]) -> BTreeMap<Option<&T>, u64> {
    let within = |span: &Span<T>| (span.from.clamp(from, to.max(from)), span.to.clamp(from, to.max(from)));
    // Beginnings and ends in order of time.
    let mut edges: Vec<(u64, bool, usize)> = Vec::new();
    for (number, span) in spans.iter().enumerate() {
        let (began, ended) = within(span);
        if began < ended {
            edges.extend([(began, true, number), (ended, false, number)]);
        }
    }
    edges.sort_unstable();
    let mut shares = BTreeMap::new();
    // The present activities by exactness; of equal ones the later in the list wins.
    let mut open: BTreeSet<(Rank, usize)> = BTreeSet::new();
    let mut since = from;
    let mut spend = |open: &BTreeSet<(Rank, usize)>, since: u64, until: u64| {
        if since < until {
            let what = open.last().map(|(_, number)| &spans[*number].what);
            *shares.entry(what).or_default() += until - since;
        }
    };
    for (at, begins, number) in edges {
        spend(&open, since, at);
        since = at;
        match begins {
            true => open.insert((spans[number].rank, number)),
            false => open.remove(&(spans[number].rank, number)),
        };
    }
    spend(&open, since, to);
    shares
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn span(from: u64, to: u64, rank: Rank, what: u8) -> Span<u8> {
        Span { from, to, rank, what }
    }

    #[test]
    fn each_part_of_a_wait_belongs_to_the_most_exact_span() {
        let spans = [
            span(0, 50, Rank::Loop, 1),
            span(30, 70, Rank::Task, 2),
            span(40, 45, Rank::Softirq, 3),
            span(200, 300, Rank::Host, 4),
        ];
        let found = shares(10, 100, &spans);
        let expected = [(Some(&1), 20), (Some(&2), 35), (Some(&3), 5), (None, 30)];
        assert_eq!(found, BTreeMap::from(expected));
        assert_eq!(shares::<u8>(10, 20, &[]), BTreeMap::from([(None, 10)]));
        assert!(shares(20, 10, &spans).is_empty(), "a time that ends before it begins");
    }

    proptest! {
        /// The same as looking at each nanosecond by itself.
        #[test]
        fn shares_are_those_of_the_nanoseconds(
            from in 0u64..40,
            length in 0u64..40,
            spans in prop::collection::vec((0u64..80, 0u64..80, 0usize..4, 0u8..5), 0..12),
        ) {
            let ranks = [Rank::Loop, Rank::Task, Rank::Softirq, Rank::Host];
            let spans: Vec<Span<u8>> =
                spans.into_iter().map(|(a, b, rank, what)| span(a, b, ranks[rank], what)).collect();
            let mut model: BTreeMap<Option<&u8>, u64> = BTreeMap::new();
            for at in from..from + length {
                let here = spans.iter().enumerate().filter(|(_, s)| s.from <= at && at < s.to);
                let best = here.max_by_key(|(number, s)| (s.rank, *number));
                *model.entry(best.map(|(_, s)| &s.what)).or_default() += 1;
            }
            let found = shares(from, from + length, &spans);
            prop_assert_eq!(&found, &model);
            prop_assert_eq!(found.values().sum::<u64>(), length);
        }
    }
}
