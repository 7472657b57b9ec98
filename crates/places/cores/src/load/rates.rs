//! Growth of counters over the last minute.

use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Rates are those of this time.
const WINDOW: Duration = Duration::from_secs(60);

/// Samples closer than this replace each other, so that frequent looks need no more memory.
const APART: Duration = Duration::from_secs(10);

/// Less time than this says nothing: ticks are 10 ms.
const LEAST: Duration = Duration::from_millis(500);

/// Counters by key, with their values of the last minute.
#[derive(Debug)]
pub struct Rates<K>(BTreeMap<K, VecDeque<(Instant, u64)>>);

impl<K> Default for Rates<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord> Rates<K> {
    /// Adds the counters of one look; keys without a counter are forgotten.
    pub fn add(&mut self, now: Instant, counters: impl IntoIterator<Item = (K, u64)>) {
        for (key, value) in counters {
            let samples = self.0.entry(key).or_default();
            // It began anew.
            if samples.back().is_some_and(|(_, last)| *last > value) {
                samples.clear();
            }
            let frequent = samples.len() >= 2 && {
                let (last, before) = (samples[samples.len() - 1].0, samples[samples.len() - 2].0);
                last.duration_since(before) < APART
            };
            if frequent {
                samples.pop_back();
            }
            samples.push_back((now, value));
            while samples.get(1).is_some_and(|(at, _)| now.duration_since(*at) >= WINDOW) {
                samples.pop_front();
            }
        }
        self.0.retain(|_, samples| samples.back().is_some_and(|(at, _)| *at == now));
    }

    /// Returns the growth of a counter in `unit`; `None` until it was looked at twice.
    pub fn per(&self, key: &K, unit: Duration) -> Option<u64> {
        let samples = self.0.get(key)?;
        let ((began, first), (ended, last)) = (samples.front()?, samples.back()?);
        let time = ended.duration_since(*began);
        let growth = u128::from(last - first) * unit.as_nanos();
        let rate = (time >= LEAST).then(|| growth / time.as_nanos())?;
        Some(u64::try_from(rate).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_rate_needs_two_looks_and_forgets_what_is_over() {
        let (mut rates, begin) = (Rates::default(), Instant::now());
        rates.add(begin, [("a", 10), ("b", 0)]);
        assert_eq!(rates.per(&"a", SECOND), None);
        rates.add(begin + SECOND * 10, [("a", 110)]);
        assert_eq!((rates.per(&"a", SECOND), rates.per(&"b", SECOND)), (Some(10), None));
        // Idle since: after a minute nothing of it is left.
        for look in 2..=7 {
            rates.add(begin + SECOND * 10 * look, [("a", 110)]);
        }
        assert_eq!(rates.per(&"a", SECOND), Some(0));
        // A counter that began anew.
        rates.add(begin + SECOND * 80, [("a", 5)]);
        assert_eq!(rates.per(&"a", SECOND), None);
    }

    proptest! {
        #[test]
        fn a_constant_growth_is_its_rate_at_any_looks(
            pauses in proptest::collection::vec(500_u64..30_000, 1..80),
            rate in 0_u64..1_000_000,
        ) {
            let (mut rates, mut now) = (Rates::default(), Instant::now());
            let mut value = 0;
            rates.add(now, [((), value)]);
            for pause in pauses {
                now += Duration::from_millis(pause);
                value += rate * pause;
                rates.add(now, [((), value)]);
                prop_assert_eq!(rates.per(&(), Duration::from_millis(1)), Some(rate));
                prop_assert!(rates.0[&()].len() <= 8);
            }
        }
    }
}
