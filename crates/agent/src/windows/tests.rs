//! The windows against a model that remembers every event.

use super::history::History;
use crate::views::{Began, Last};
use proptest::prelude::*;
use std::time::{Duration, Instant};
use tidegate_evidence::histogram::BUCKETS;
use tidegate_evidence::{Delay, Histogram, VnicStats};

/// A port, and all that ever happened at it.
#[derive(Default)]
struct Model {
    delays: Histogram,
    waits: Histogram,
    stats: VnicStats,
    /// Time (ms), delay and token wait of each frame.
    events: Vec<(u64, u64, u64)>,
}

impl Model {
    fn send(&mut self, at: u64, delay: u64, wait: u64) {
        self.events.push((at, delay, wait));
        self.delays.record(delay);
        self.waits.record(wait);
        self.stats.tx.frames += 1;
        *self.stats.tx.dropped.entry(["codel", "late"][(delay % 2) as usize].into()).or_default() +=
            delay % 3;
        self.stats.delay = Delay::from(&self.delays);
        self.stats.tokens_tx = Some(Delay::from(&self.waits));
    }

    /// Returns the figures that a window from `from` on has to have.
    fn since(&self, from: u64) -> (Delay, Delay, u64, u64) {
        let (mut delays, mut waits, mut dropped) = (Histogram::default(), Histogram::default(), 0);
        for (_, delay, wait) in self.events.iter().filter(|(at, ..)| *at > from) {
            delays.record(*delay);
            waits.record(*wait);
            dropped += delay % 3;
        }
        (Delay::from(&delays), Delay::from(&waits), delays.count(), dropped)
    }
}

/// Omits the largest value, of which a window knows only the bucket.
fn buckets(delay: &Delay) -> (u64, Vec<(u64, u64)>) {
    (delay.count, delay.buckets.clone())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whenever samples are taken, a window has every event since it began, and no other.
    #[test]
    fn a_window_counts_the_events_since_its_beginning_and_no_others(
        steps in prop::collection::vec((1u64..40_000, 0u64..4, 0u64..1 << 34, 0u64..1 << 30), 1..400),
        asked in 0u64..3,
    ) {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut model = Model::default();
        let mut history = History::new(start, &model.stats, None, Began::Agent);
        let (mut now, mut longest) = (0, 0);
        for (gap, events, delay, wait) in steps {
            // Mostly as the agent looks, now and then late.
            let gap = if gap < 35_000 { gap % 1_500 + 1 } else { gap };
            for event in 1..=events {
                // After the previous sample, even if only 1 ms is between two samples.
                model.send(now + (gap * event).div_ceil(events + 1), delay >> event, wait >> event);
            }
            now += gap;
            longest = longest.max(gap);
            history.sample(at(now), &model.stats, None);
        }
        // What came since the last sample is part of it.
        now += 100;
        model.send(now, 7, 7);
        let last = [Last::TenSeconds, Last::Minute, Last::Hour][asked as usize];
        history.sample(at(now), &model.stats, None);
        let (view, stats) = history.window(last);
        let covers = view.covers_ns / 1_000_000;
        let asked = view.asked_ns / 1_000_000;
        prop_assert!(covers <= now && (covers >= asked || covers == now), "{covers} of {asked}, {now} since the start");
        // At most a step longer: a step is no longer than its level's, but where a sample came late.
        let step = [1_500, 6_000, 300_000].into_iter().filter(|step| *step <= asked / 5 + 1_500).max().unwrap_or(0);
        prop_assert!(covers <= asked + step + longest + 1_500, "{covers} of {asked}");
        prop_assert_eq!(view.began, (covers < asked).then_some(Began::Agent));
        let (delays, waits, frames, dropped) = model.since(now - covers);
        prop_assert_eq!(buckets(&stats.delay), buckets(&delays));
        prop_assert_eq!(buckets(stats.tokens_tx.as_ref().unwrap()), buckets(&waits));
        prop_assert_eq!((stats.tx.frames, stats.tx.dropped.values().sum::<u64>()), (frames, dropped));
        prop_assert!(stats.delay.max >= delays.max && stats.delay.max - delays.max <= delays.max / 32);
        prop_assert_eq!(stats.delay.p999.min(delays.max), delays.p999);
    }
}

fn counted(frames: u64) -> VnicStats {
    let mut stats = VnicStats::default();
    stats.tx.frames = frames;
    stats
}

#[test]
fn a_falling_counter_or_another_contract_starts_a_new_history() {
    let start = Instant::now();
    let at = |ms: u64| start + Duration::from_millis(ms);
    let contracts =
        [100, 200].map(|mtu| tidegate_contract::Vnic { mtu, ..tidegate_testkit::contract::vnic("a", 1) });
    let mut history = History::new(start, &counted(50), Some(&contracts[0]), Began::Agent);
    let shown = |history: &History| {
        let (view, stats) = history.window(Last::Minute);
        (view.covers_ns / 1_000_000, view.began, stats.tx.frames)
    };
    assert_eq!(shown(&history), (0, Some(Began::Agent), 0), "what was before is not known");
    history.sample(at(1_000), &counted(60), Some(&contracts[0]));
    history.sample(at(1_500), &counted(61), Some(&contracts[0]));
    assert_eq!(shown(&history), (1_500, Some(Began::Agent), 11));
    // A new port of the same name: its counts are new, also before the next step.
    history.sample(at(1_600), &counted(3), Some(&contracts[0]));
    assert_eq!(shown(&history), (600, Some(Began::Counters), 3));
    history.sample(at(2_500), &counted(4), Some(&contracts[0]));
    history.sample(at(3_500), &counted(5), Some(&contracts[0]));
    assert_eq!(shown(&history), (1_000, Some(Began::Counters), 1));
    // At once, not only when a step is due.
    history.sample(at(3_600), &counted(5), Some(&contracts[1]));
    assert_eq!(shown(&history), (0, Some(Began::Contract), 0));
    history.sample(at(4_600), &counted(9), Some(&contracts[1]));
    assert_eq!(shown(&history), (1_000, Some(Began::Contract), 4));
}

/// Otherwise a deadline that was possibly missed would read as one that certainly was.
#[test]
fn the_worst_realtime_delay_in_a_window_is_that_since_the_start() {
    let start = Instant::now();
    let worst =
        |frames| VnicStats { realtime_worst_ns: 300, realtime_worst_least_ns: 200, ..counted(frames) };
    let mut history = History::new(start, &worst(1), None, Began::Agent);
    history.sample(start + Duration::from_secs(1), &worst(3), None);
    let (_, stats) = history.window(Last::TenSeconds);
    assert_eq!((stats.tx.frames, stats.realtime_worst_ns, stats.realtime_worst_least_ns), (2, 300, 200));
}

#[test]
fn a_window_that_is_full_says_so() {
    let start = Instant::now();
    let mut model = Model::default();
    let mut history = History::new(start, &model.stats, None, Began::Agent);
    for second in 1..=2 * 3600 {
        // Frames of each length from 1 us to 1 s.
        model.send(second * 1000, 1_000 << (second % 20), 1_000 << (second % 18));
        history.sample(start + Duration::from_secs(second), &model.stats, None);
    }
    for (last, most) in [(Last::TenSeconds, 11), (Last::Minute, 66), (Last::Hour, 3_900)] {
        let (view, stats) = history.window(last);
        let (covers, asked) = (view.covers_ns / 1_000_000_000, view.asked_ns / 1_000_000_000);
        assert!(view.began.is_none() && covers >= asked && covers <= most, "{covers} of {asked}");
        assert_eq!(stats.tx.frames, covers);
    }
    assert!(history.steps() <= 36, "{}", history.steps());
}

#[test]
fn a_history_has_bounded_memory_for_any_counters() {
    let start = Instant::now();
    let mut stats = VnicStats::default();
    let mut history = History::new(start, &stats, None, Began::Agent);
    // A sample each second in the last minute, and one each 6 s before.
    for second in (6..3_940).step_by(6).chain(3_941..=4_000) {
        // Each bucket of each histogram grows by 1000 frames a second.
        let all = Histogram::recorded(u64::MAX, 0, vec![second * 1_000; BUCKETS]).unwrap();
        stats.delay = Delay::from(&all);
        stats.delay_least = stats.delay.clone();
        stats.tokens_tx = Some(stats.delay.clone());
        for waits in [&mut stats.tokens_rx, &mut stats.sparse_tx, &mut stats.sparse_rx] {
            *waits = Some(stats.delay.clone());
        }
        history.sample(start + Duration::from_secs(second), &stats, None);
    }
    assert!(history.bytes() < 900_000, "{} bytes in {} steps", history.bytes(), history.steps());
}
