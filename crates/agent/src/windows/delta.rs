//! What a vNIC counted in one step, and in several together. Pure.

use super::packed::Packed;
use std::collections::BTreeMap;
use tidegate_switch::stats::histogram::{BUCKETS, upper};
use tidegate_switch::stats::{Delay, Histogram, Traffic, VnicStats, Work};

/// What was counted in one step.
#[derive(Clone, Debug, Default)]
pub(super) struct Delta {
    /// All but the histograms, and what is as it is now.
    counters: VnicStats,
    delay: Packed,
    delay_least: Packed,
    tokens_tx: Packed,
    tokens_rx: Packed,
}

impl Delta {
    /// What `now` has more than `then`; `None` where it has less of anything, and so began anew.
    pub(super) fn between(then: &VnicStats, now: &VnicStats) -> Option<Self> {
        let tokens = |then: &Option<Delay>, now: &Option<Delay>| {
            let none = Delay::default();
            Packed::between(then.as_ref().unwrap_or(&none), now.as_ref().unwrap_or(&none))
        };
        Some(Self {
            counters: combined(now, then, u64::checked_sub)?,
            delay: Packed::between(&then.delay, &now.delay)?,
            delay_least: Packed::between(&then.delay_least, &now.delay_least)?,
            tokens_tx: tokens(&then.tokens_tx, &now.tokens_tx)?,
            tokens_rx: tokens(&then.tokens_rx, &now.tokens_rx)?,
        })
    }

    /// This and another one.
    pub(super) fn and(&self, other: &Self) -> Self {
        Self {
            counters: sum(&self.counters, &other.counters),
            delay: self.delay.and(&other.delay),
            delay_least: self.delay_least.and(&other.delay_least),
            tokens_tx: self.tokens_tx.and(&other.tokens_tx),
            tokens_rx: self.tokens_rx.and(&other.tokens_rx),
        }
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        let packed = [&self.delay, &self.delay_least, &self.tokens_tx, &self.tokens_rx];
        size_of::<Self>() + packed.map(Packed::bytes).iter().sum::<usize>()
    }
}

/// Several steps together.
pub(super) struct Sum {
    counters: VnicStats,
    histograms: Box<[[u64; BUCKETS]; 4]>,
}

impl Sum {
    pub(super) fn new() -> Self {
        Self { counters: VnicStats::default(), histograms: Box::new([[0; BUCKETS]; 4]) }
    }

    pub(super) fn add(&mut self, delta: &Delta) {
        self.counters = sum(&self.counters, &delta.counters);
        let of = [&delta.delay, &delta.delay_least, &delta.tokens_tx, &delta.tokens_rx];
        self.histograms.iter_mut().zip(of).for_each(|(all, packed)| packed.add_to(all));
    }

    /// As figures of a vNIC that is as `now`: its gauges, and no value is larger than its largest ever.
    pub(super) fn figures(self, now: &VnicStats) -> VnicStats {
        let delay = |buckets: &[u64; BUCKETS], ever: &Delay| {
            let top = buckets.iter().rposition(|count| *count > 0).map_or(0, upper);
            // The sum is for no figure.
            let histogram = Histogram::recorded(top.min(ever.max), 0, buckets.to_vec()).unwrap_or_default();
            Delay::from(&histogram)
        };
        let [all, least, tx, rx] = &*self.histograms;
        VnicStats {
            name: now.name.clone(),
            index: now.index,
            throttled: now.throttled,
            tx: with_flows(self.counters.tx, &now.tx),
            rx: with_flows(self.counters.rx, &now.rx),
            work: self.counters.work.filter(|_| now.work.is_some()),
            delay: delay(all, &now.delay),
            delay_least: delay(least, &now.delay_least),
            tokens_tx: now.tokens_tx.as_ref().map(|ever| delay(tx, ever)),
            tokens_rx: now.tokens_rx.as_ref().map(|ever| delay(rx, ever)),
            // Of a window it is not kept: it stays that since the deadline is in force.
            realtime_worst_ns: now.realtime_worst_ns,
            realtime_worst_least_ns: now.realtime_worst_least_ns,
            link_local: now.link_local.clone(),
            ..self.counters
        }
    }
}

fn with_flows(counted: Traffic, now: &Traffic) -> Traffic {
    Traffic { flows_now: now.flows_now, flows_most: now.flows_most, ..counted }
}

fn sum(a: &VnicStats, b: &VnicStats) -> VnicStats {
    combined(a, b, |a, b| Some(a.saturating_add(b))).unwrap_or_default()
}

/// Each counter of both by `op`, without histograms; `None` where `op` has none.
fn combined(a: &VnicStats, b: &VnicStats, op: fn(u64, u64) -> Option<u64>) -> Option<VnicStats> {
    let map = |a: &BTreeMap<String, u64>, b: &BTreeMap<String, u64>| {
        let mut all = BTreeMap::new();
        for label in a.keys().chain(b.keys()) {
            let of = |map: &BTreeMap<String, u64>| map.get(label).copied().unwrap_or(0);
            let value = op(of(a), of(b))?;
            if value > 0 && !all.contains_key(label) {
                all.insert(label.clone(), value);
            }
        }
        Some(all)
    };
    let traffic = |a: &Traffic, b: &Traffic| {
        Some(Traffic {
            frames: op(a.frames, b.frames)?,
            wire_frames: op(a.wire_frames, b.wire_frames)?,
            wire_bytes: op(a.wire_bytes, b.wire_bytes)?,
            dropped: map(&a.dropped, &b.dropped)?,
            marked: op(a.marked, b.marked)?,
            flows_now: 0,
            flows_most: 0,
        })
    };
    let work = |a: &Option<Work>, b: &Option<Work>| {
        let none = Work::default();
        let (a, b) = (a.as_ref().unwrap_or(&none), b.as_ref().unwrap_or(&none));
        Some(Work {
            take_ns: op(a.take_ns, b.take_ns)?,
            deliver_ns: op(a.deliver_ns, b.deliver_ns)?,
            delivered: op(a.delivered, b.delivered)?,
            buffers_ns: op(a.buffers_ns, b.buffers_ns)?,
            kicks_ns: op(a.kicks_ns, b.kicks_ns)?,
        })
    };
    Some(VnicStats {
        tx: traffic(&a.tx, &b.tx)?,
        rx: traffic(&a.rx, &b.rx)?,
        throttled_ns: op(a.throttled_ns, b.throttled_ns)?,
        work: Some(work(&a.work, &b.work)?),
        realtime_delivered: op(a.realtime_delivered, b.realtime_delivered)?,
        misses: map(&a.misses, &b.misses)?,
        misses_possible: op(a.misses_possible, b.misses_possible)?,
        misses_asleep: op(a.misses_asleep, b.misses_asleep)?,
        ..VnicStats::default()
    })
}
