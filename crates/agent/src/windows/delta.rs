//! What a vNIC counted in one step, and in several together. Pure.

use super::packed::Packed;
use std::collections::BTreeMap;
use tidegate_evidence::histogram::{BUCKETS, upper};
use tidegate_evidence::{Delay, Histogram, OnWire, Traffic, VnicStats, Work};

const HISTOGRAMS: usize = 6;

/// What was counted in one step.
#[derive(Clone, Debug, Default)]
pub(super) struct Delta {
    /// The counters, without histograms and gauges.
    counters: VnicStats,
    histograms: [Packed; HISTOGRAMS],
}

impl Delta {
    /// Returns the growth from `earlier` to `later`; `None` if a counter fell, and so began anew.
    pub(super) fn between(earlier: &VnicStats, later: &VnicStats) -> Option<Self> {
        let none = Delay::default();
        let mut packed: [Packed; HISTOGRAMS] = Default::default();
        let both = histograms(earlier).into_iter().zip(histograms(later));
        for (packed, (earlier, later)) in packed.iter_mut().zip(both) {
            *packed = Packed::between(earlier.unwrap_or(&none), later.unwrap_or(&none))?;
        }
        Some(Self { counters: combined(later, earlier, u64::checked_sub)?, histograms: packed })
    }

    /// Returns the sum of both.
    pub(super) fn and(&self, other: &Self) -> Self {
        let histograms = std::array::from_fn(|i| self.histograms[i].and(&other.histograms[i]));
        Self { counters: sum(&self.counters, &other.counters), histograms }
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>() + self.histograms.iter().map(Packed::bytes).sum::<usize>()
    }
}

/// Several steps together.
pub(super) struct Sum {
    counters: VnicStats,
    histograms: Box<[[u64; BUCKETS]; HISTOGRAMS]>,
}

impl Sum {
    pub(super) fn new() -> Self {
        Self { counters: VnicStats::default(), histograms: Box::new([[0; BUCKETS]; HISTOGRAMS]) }
    }

    pub(super) fn add(&mut self, delta: &Delta) {
        self.counters = sum(&self.counters, &delta.counters);
        self.histograms.iter_mut().zip(&delta.histograms).for_each(|(all, packed)| packed.add_to(all));
    }

    /// Returns the sum as figures, with the gauges of `now`, and no value above its largest ever.
    pub(super) fn figures(self, now: &VnicStats) -> VnicStats {
        let delay = |(buckets, ever): (&[u64; BUCKETS], Option<&Delay>)| {
            let top = buckets.iter().rposition(|count| *count > 0).map_or(0, upper);
            // No figure needs the histogram's sum.
            let histogram = Histogram::recorded(top.min(ever?.max), 0, buckets.to_vec()).unwrap_or_default();
            Some(Delay::from(&histogram))
        };
        let mut delays = self.histograms.iter().zip(histograms(now)).map(delay);
        let [all, least, tokens_tx, tokens_rx, sparse_tx, sparse_rx] =
            std::array::from_fn(|_| delays.next().flatten());
        VnicStats {
            name: now.name.clone(),
            index: now.index,
            throttled: now.throttled,
            tx: with_flows(self.counters.tx, &now.tx),
            rx: with_flows(self.counters.rx, &now.rx),
            on_wire: self.counters.on_wire.filter(|_| now.on_wire.is_some()),
            work: self.counters.work.filter(|_| now.work.is_some()),
            delay: all.unwrap_or_default(),
            delay_least: least.unwrap_or_default(),
            tokens_tx,
            tokens_rx,
            sparse_tx,
            sparse_rx,
            // Not counted by window: the worst since the deadline is in force.
            realtime_worst_ns: now.realtime_worst_ns,
            realtime_worst_least_ns: now.realtime_worst_least_ns,
            link_local: now.link_local.clone(),
            ..self.counters
        }
    }
}

/// Returns the histograms of a vNIC, `None` for those that are not counted.
fn histograms(stats: &VnicStats) -> [Option<&Delay>; HISTOGRAMS] {
    let VnicStats { delay, delay_least, tokens_tx, tokens_rx, sparse_tx, sparse_rx, .. } = stats;
    let [tokens_tx, tokens_rx, sparse_tx, sparse_rx] =
        [tokens_tx, tokens_rx, sparse_tx, sparse_rx].map(Option::as_ref);
    [Some(delay), Some(delay_least), tokens_tx, tokens_rx, sparse_tx, sparse_rx]
}

fn with_flows(counted: Traffic, now: &Traffic) -> Traffic {
    Traffic { flows_now: now.flows_now, flows_most: now.flows_most, ..counted }
}

fn sum(a: &VnicStats, b: &VnicStats) -> VnicStats {
    combined(a, b, |a, b| Some(a.saturating_add(b))).unwrap_or_default()
}

/// Combines each counter of both with `op`, without histograms; `None` if `op` returns `None`.
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
    let on_wire = |a: &Option<OnWire>, b: &Option<OnWire>| {
        let (a, b) = (a.unwrap_or_default(), b.unwrap_or_default());
        Some(OnWire {
            frames: op(a.frames, b.frames)?,
            bytes: op(a.bytes, b.bytes)?,
            copies: op(a.copies, b.copies)?,
        })
    };
    Some(VnicStats {
        tx: traffic(&a.tx, &b.tx)?,
        rx: traffic(&a.rx, &b.rx)?,
        on_wire: Some(on_wire(&a.on_wire, &b.on_wire)?),
        throttled_ns: op(a.throttled_ns, b.throttled_ns)?,
        work: Some(work(&a.work, &b.work)?),
        realtime_delivered: op(a.realtime_delivered, b.realtime_delivered)?,
        misses: map(&a.misses, &b.misses)?,
        misses_possible: op(a.misses_possible, b.misses_possible)?,
        misses_asleep: op(a.misses_asleep, b.misses_asleep)?,
        ..VnicStats::default()
    })
}
