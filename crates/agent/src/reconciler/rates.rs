//! Rates at one place over the last second, from its counters. Pure.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};
use tidegate_evidence::Evidence;

const WINDOW: Duration = Duration::from_secs(1);
/// Least time between two samples, however often clients ask.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(50);

/// Samples of the counters of one place's vNICs over a little more than the last second.
#[derive(Debug, Default)]
pub struct Rates(HashMap<String, VecDeque<Sample>>);

#[derive(Clone, Copy, Debug)]
struct Sample {
    at: Instant,
    tx: u64,
    rx: u64,
}

impl Rates {
    /// Takes a sample of all vNICs that the place counts, and forgets all others.
    pub fn sample(&mut self, evidence: &Evidence) {
        self.0.retain(|name, _| evidence.vnics.contains_key(name));
        for (name, stats) in &evidence.vnics {
            let now = Sample { at: evidence.taken, tx: stats.tx.wire_bytes, rx: stats.rx.wire_bytes };
            let samples = self.0.entry(name.clone()).or_default();
            // Counters that fell belong to a new port of the same name.
            if samples.back().is_some_and(|last| last.tx > now.tx || last.rx > now.rx) {
                samples.clear();
            }
            if samples.back().is_some_and(|last| now.at.duration_since(last.at) < SHORTEST_INTERVAL) {
                continue;
            }
            samples.push_back(now);
            while samples.get(1).is_some_and(|s| now.at.duration_since(s.at) >= WINDOW) {
                samples.pop_front();
            }
        }
    }

    /// Returns (tx, rx) in bit/s on the wire; `None` before the second sample.
    pub fn of(&self, name: &str) -> Option<(u64, u64)> {
        let samples = self.0.get(name)?;
        let (first, last) = (samples.front()?, samples.back()?);
        let nanos = last.at.duration_since(first.at).as_nanos();
        let rate = |bytes: u64| Some((u128::from(bytes) * 8_000_000_000).checked_div(nanos)? as u64);
        Some((rate(last.tx - first.tx)?, rate(last.rx - first.rx)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_evidence::VnicStats;

    fn evidence(taken: Instant, tx: u64, rx: u64) -> Evidence {
        let mut stats = VnicStats::default();
        (stats.tx.wire_bytes, stats.rx.wire_bytes) = (tx, rx);
        Evidence {
            taken,
            vnics: [("a".into(), stats)].into(),
            misses: [].into(),
            culprits: [].into(),
            unobserved: None,
            source: String::new(),
            figures: [].into(),
            unknown: [].into(),
            workers: vec![],
            counts_latency: true,
            counts_flows: true,
            denied_calls: 0,
            log: None,
            peers: vec![],
            pairs: [].into(),
            rdma: [].into(),
            sockets: [].into(),
            far_misses: [].into(),
            paths: [].into(),
        }
    }

    #[test]
    fn rates_cover_the_last_second() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut rates = Rates::default();
        assert_eq!(rates.of("a"), None);
        rates.sample(&evidence(at(0), 1_000, 0));
        assert_eq!(rates.of("a"), None, "one sample is no rate");
        rates.sample(&evidence(at(500), 2_000, 0));
        assert_eq!(rates.of("a"), Some((16_000, 0)));
        rates.sample(&evidence(at(1_000), 2_000, 125));
        assert_eq!(rates.of("a"), Some((8_000, 1_000)));
        rates.sample(&evidence(at(1_500), 2_000, 125));
        assert_eq!(rates.of("a"), Some((0, 1_000)));
        rates.sample(&evidence(at(2_000), 0, 0));
        assert_eq!(rates.of("a"), None, "counters fell: a new port");
    }
}
