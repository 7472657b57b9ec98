//! Totals against counters that never wrap.

use super::Doubts;
use super::accumulator::{Accumulator, Count, Most, Reading, Value};
use super::window::Layout;
use proptest::prelude::*;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::Duration;
use tidegate_contract::Rate;

/// A NIC whose counters are so narrow that they wrap all the time.
#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    frames: u64,
    octets: u64,
}

/// Events between two looks.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// Frames of so many bytes without FCS.
    Traffic(u64, u64),
    /// The NIC is reset after some traffic, and counts on from 0.
    Reset(u64, u64),
}

const WIDTH: u32 = 20;
const RANGE: u64 = 1 << WIDTH;
/// The most in an interval: a quarter of the range, for a caller that looks often enough.
const RATE: u64 = 1_000_000_000;

/// An interval in which a NIC of this speed may count so many bytes.
fn interval(bytes: u64) -> Duration {
    Duration::from_nanos(bytes * 8 * 1_000_000_000 / RATE / super::accumulator::HEADROOM)
}

fn most(bytes: u64) -> Most {
    Most::within(interval(bytes) + Duration::from_nanos(100), Rate::from_bits(RATE).expect("a rate"))
}

fn reading(counters: Counters, width: u32) -> Reading {
    let value = |now: u64| Value { now: now & (u64::MAX >> (64 - width)), width };
    Reading::default()
        .with(Count::TxFrames, value(counters.frames))
        .with(Count::TxBytes, value(counters.octets))
        .with_fcs()
}

fn events(largest: u64) -> impl Strategy<Value = Vec<Event>> {
    let frames = (0..largest, 60..1500_u64);
    let event = prop_oneof![
        9 => frames.clone().prop_map(|(n, size)| Event::Traffic(n, size)),
        1 => frames.prop_map(|(n, size)| Event::Reset(n, size)),
    ];
    prop::collection::vec(event, 1..200)
}

proptest! {
    /// Looked at often enough, wrapping counters come to the exact sums, without a doubt.
    #[test]
    fn wraps_are_exact(events in events(100), begin: u64) {
        let mut truth = Counters::default();
        let mut nic = Counters { frames: begin, octets: begin.wrapping_mul(77) };
        let mut accumulator = Accumulator::default();
        accumulator.add(&reading(nic, WIDTH), None);
        for event in events {
            let (Event::Traffic(frames, size) | Event::Reset(frames, size)) = event;
            let octets = frames * (size + 4);
            truth = Counters { frames: truth.frames + frames, octets: truth.octets + frames * size };
            nic = Counters { frames: nic.frames.wrapping_add(frames), octets: nic.octets.wrapping_add(octets) };
            accumulator.add(&reading(nic, WIDTH), Some(most(RANGE / 4)));
        }
        prop_assert_eq!(accumulator.total(Count::TxFrames), Some(truth.frames));
        prop_assert_eq!(accumulator.total(Count::TxBytes), Some(truth.octets));
        prop_assert_eq!(accumulator.total(Count::RxBytes), None);
        prop_assert_eq!(accumulator.doubts(), Doubts::default());
    }

    /// Resets never make more of what was counted, beyond what one interval can hold; and without a doubt nothing is wrong.
    #[test]
    fn resets_are_seen_or_harmless(events in events(100), begin: u64) {
        let largest = RANGE / 4;
        let (mut truth, mut resets) = (Counters::default(), 0);
        let mut nic = Counters { frames: begin, octets: begin.wrapping_mul(77) };
        let mut accumulator = Accumulator::default();
        accumulator.add(&reading(nic, WIDTH), None);
        for event in events {
            let (Event::Traffic(frames, size) | Event::Reset(frames, size)) = event;
            let counted = Counters { frames, octets: frames * (size + 4) };
            truth = Counters { frames: truth.frames + frames, octets: truth.octets + frames * size };
            nic = match event {
                Event::Traffic(..) => Counters {
                    frames: nic.frames.wrapping_add(counted.frames),
                    octets: nic.octets.wrapping_add(counted.octets),
                },
                Event::Reset(..) => {
                    resets += 1;
                    Counters { frames: frames / 2, octets: counted.octets / 2 }
                }
            };
            accumulator.add(&reading(nic, WIDTH), Some(most(largest)));
        }
        let total = accumulator.total(Count::TxBytes).expect("counted");
        let error = total.abs_diff(truth.octets);
        prop_assert!(error <= resets * (largest + 1000), "{} instead of {}", total, truth.octets);
        prop_assert_eq!(accumulator.doubts().missed_wraps, 0);
        prop_assert!(accumulator.doubts().resets <= resets);
        if resets == 0 {
            prop_assert_eq!(error, 0);
        }
    }

    /// Looked at too seldom, what is missing is whole ranges, and each such interval is a doubt.
    #[test]
    fn a_wrap_that_may_have_been_missed_is_a_doubt(frames in prop::collection::vec(0..5000_u64, 1..50)) {
        let (mut nic, mut accumulator) = (Counters::default(), Accumulator::default());
        accumulator.add(&reading(nic, WIDTH), None);
        for frames in &frames {
            nic = Counters { frames: nic.frames + frames, octets: nic.octets + frames * 1504 };
            accumulator.add(&reading(nic, WIDTH), Some(most(5000 * 1504)));
        }
        let doubts = Doubts { missed_wraps: frames.len() as u64, resets: 0 };
        prop_assert_eq!(accumulator.doubts(), doubts);
        let total = accumulator.total(Count::TxFrames).expect("counted");
        prop_assert_eq!(total, nic.frames, "frames did not wrap unseen");
        let bytes = accumulator.total(Count::TxBytes).expect("counted");
        prop_assert!(bytes <= nic.frames * 1500);
    }

    /// What drivers keep in 64 bits may be old, come in leaps, and begin anew.
    #[test]
    fn a_wide_counter_may_leap_and_a_fall_is_a_reset(leaps in prop::collection::vec((0..u64::MAX >> 20, any::<bool>()), 1..50)) {
        let (mut now, mut truth, mut resets) = (1_u64 << 40, 0, 0);
        let mut accumulator = Accumulator::default();
        let read = |now| Reading::default().with(Count::RxBytes, Value::wide(now));
        accumulator.add(&read(now), None);
        for (leap, reset) in leaps {
            let before = now;
            now = if reset { leap } else { now + leap };
            // One that leaps over where it was cannot be told from one that goes on.
            let seen = now < before;
            truth += if seen { now } else { now - before };
            resets += u64::from(seen);
            accumulator.add(&read(now), Some(most(1)));
        }
        prop_assert_eq!(accumulator.total(Count::RxBytes), Some(truth));
        prop_assert_eq!(accumulator.doubts(), Doubts { missed_wraps: 0, resets });
    }
}

#[test]
fn the_longest_interval_follows_from_speed_and_width() {
    let gigabit = Rate::from_bits(1_000_000_000).expect("a rate");
    let range = Layout::I82576.octets_range();
    // A counter of 32 bits takes 34 s at 1 Gbit/s.
    let longest = Most::interval_until(range, gigabit);
    assert_eq!(longest.as_secs(), 34 / super::accumulator::HEADROOM);
    let add = |interval| {
        let mut accumulator = Accumulator::default();
        let read = |now| Reading::default().with(Count::TxBytes, Value { now, width: 32 });
        accumulator.add(&read(u64::from(u32::MAX)), None);
        accumulator.add(&read(99), Some(Most::within(interval, gigabit)));
        (accumulator.total(Count::TxBytes), accumulator.doubts().missed_wraps)
    };
    assert_eq!(add(longest / 2), (Some(100), 0));
    assert_eq!(add(longest * 2), (Some(100), 1));
}

#[test]
fn counts_of_another_source_add_to_the_total() {
    let mut accumulator = Accumulator::default();
    let read = |now| Reading::default().with(Count::TxFrames, Value::wide(now));
    for now in [10, 15] {
        accumulator.add(&read(now), None);
    }
    accumulator.change_source();
    for now in [1_000_000, 1_000_001] {
        accumulator.add(&read(now), None);
    }
    assert_eq!(accumulator.total(Count::TxFrames), Some(6));
    assert_eq!(accumulator.doubts().resets, 1, "what came in between is missing");
}

#[test]
fn registers_are_where_the_data_sheets_say() {
    let window: BTreeMap<u32, u32> =
        [(0x1_0114, 1), (0x1_0134, 100), (0x1_0110, 2), (0x1_0118, 200), (0x1_013c, 3)].into();
    let read = Layout::I82576.read(1, |offset| window.get(&offset).copied()).expect("there");
    let narrow = |now| Value { now, width: 32 };
    let wanted = Reading::default()
        .with(Count::TxFrames, narrow(1))
        .with(Count::TxBytes, narrow(100))
        .with(Count::RxFrames, narrow(2))
        .with(Count::RxBytes, narrow(200))
        .with(Count::RxMulticast, narrow(3))
        .with_fcs();
    assert_eq!(read, wanted);
    assert_eq!(Layout::I82576.read(8, |_| Some(0)), None, "8 pools");
    assert_eq!(Layout::I82576.read(0, |_| Some(u32::MAX)), None, "gone or asleep");
    assert_eq!(Layout::of((0x8086, 0x10c9)), Some(Layout::I82576));
    assert_eq!(Layout::of((0x8086, 0x10fb)), Some(Layout::I82599));
    assert_eq!(Layout::of((0x15b3, 0x10fb)), None);
}

#[test]
fn an_upper_half_that_changes_while_the_lower_is_read_is_read_again() {
    // It carries between the first and the second read of the upper half of VF 2's octets received.
    let (low, high) = (0x1020 + 0x80, 0xd020 + 0x80);
    let looks = Cell::new(0);
    let register = |offset| {
        Some(match offset {
            o if o == high => {
                looks.set(looks.get() + 1);
                if looks.get() == 1 { 4 } else { 5 }
            }
            o if o == low => 7,
            _ => 0,
        })
    };
    let read = Layout::I82599.read(2, register).expect("there");
    assert_eq!(looks.get(), 3);
    let mut accumulator = Accumulator::default();
    accumulator.add(&Layout::I82599.read(2, |_| Some(0)).expect("there"), None);
    accumulator.add(&read, None);
    assert_eq!(accumulator.total(Count::RxBytes), Some((5 << 32) + 7));
}
