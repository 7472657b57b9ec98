//! How long the program takes for a frame, by test runs of the kernel: with so many entries, and any one of them at a time.
//!
//! Each run chooses a flow by chance and writes it into the frame, so that caches help no more than they would. Three programs do so: one
//! that does no more, one that parses the frame, and one that steers it. Differences are the figures.

use crate::key::{Fields, Pattern};
use crate::live::Live;
use crate::maps::{MapError, Value, failed};
use crate::probe::Probe;
use crate::table::{Entry, MASKS, Table, VXLAN_PORT};
use libbpf_rs::ProgramInput;
use serde::Serialize;
use tidegate_cores::cpus::Cpus;

/// Runs of a program per round.
const REPEAT: u32 = 1 << 18;

/// A case to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// Different flows, each with an entry; 1 to 2^24.
    pub entries: u32,
    /// Masks; frames meet the last one. 0: the entries are exact. At most 8.
    pub masks: usize,
}

/// Nanoseconds per frame: of rounds the shortest, the middle and the longest.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Nanoseconds {
    /// Shortest.
    pub min: f64,
    /// Middle.
    pub median: f64,
    /// Longest.
    pub worst: f64,
}

/// What a frame costs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cost {
    /// Entries of the table.
    pub entries: u32,
    /// Masks; 0 of exact entries.
    pub masks: usize,
    /// Headers: VXLAN on IPv4, with UDP on IPv4 inside.
    pub parse: Nanoseconds,
    /// Look-up, counters, and the choice of the CPU.
    pub look_up: Nanoseconds,
    /// Both.
    pub whole: Nanoseconds,
}

/// Measures a case in so many rounds, at least 1. The programs take turns, so that all meet the same noise.
///
/// # Errors
/// The kernel refuses maps or programs.
pub fn cost(case: Case, rounds: usize) -> Result<Cost, MapError> {
    let Case { entries, masks } = case;
    let probe = Probe::load(entries + MASKS as u32, entries)?;
    // The frames go to a CPU that is another one, as most do. If there is none, they stay.
    let cpu = libbpf_rs::num_possible_cpus().map_err(failed("count CPUs"))?.saturating_sub(1);
    let table = Table::new(of_masks(masks, cpu), Cpus::new(), VXLAN_PORT);
    let table = table.map_err(failed("make the table"))?;
    let mut live = Live::new(1);
    live.update(&probe.maps, &table, &Cpus::from([cpu]), 64)?;
    let settings =
        probe.maps.read_settings()?.ok_or_else(|| failed("read the settings")("there are none"))?;
    let (last, number) = match table.masks.last() {
        Some(mask) => (*mask, settings.number(mask).unwrap_or_default()),
        None => (crate::key::EXACT, 0),
    };
    // All flows of the frame; those of `of_masks` match none.
    let value = Value { cpu, counter: 0 };
    let flows: Vec<_> =
        (0..entries).map(|n| (flow(n).masked(&last).key(number), Value { counter: n, ..value })).collect();
    probe.maps.set_entries(&flows)?;
    let frame = frame();
    let run = |name| {
        let input = ProgramInput { data_in: Some(&frame), repeat: REPEAT, ..ProgramInput::default() };
        let said = probe.run(name, input)?;
        Ok::<_, MapError>((said.return_value, said.duration.as_nanos() as f64))
    };
    let (mut parse, mut look_up, mut whole) = (vec![], vec![], vec![]);
    run("measure_whole")?;
    for _ in 0..rounds.max(1) {
        let (empty, parsed, all) =
            (run("measure_empty")?.1, run("measure_parse")?.1, run("measure_whole")?.1);
        parse.push(parsed - empty);
        look_up.push(all - parsed);
        whole.push(all - empty);
    }
    let missed = probe.maps.read_outcome(0)?.iter().map(|count| count.frames).sum::<u64>();
    if missed < u64::from(REPEAT) * rounds as u64 {
        return Err(failed("measure")(format!("only {missed} frames met an entry")));
    }
    let [parse, look_up, whole] = [parse, look_up, whole].map(of_rounds);
    Ok(Cost { entries, masks, parse, look_up, whole })
}

fn of_rounds(mut rounds: Vec<f64>) -> Nanoseconds {
    rounds.sort_by(f64::total_cmp);
    Nanoseconds { min: rounds[0], median: rounds[rounds.len() / 2], worst: rounds[rounds.len() - 1] }
}

/// Entries that no frame meets, with so many masks, or an exact one.
fn of_masks(masks: usize, cpu: usize) -> Vec<Entry> {
    let name = |n: usize| format!("mask {n}");
    let flow = Fields { tunnel: 1, id: 1, ..Fields::default() };
    let Some(last) = masks.checked_sub(1) else {
        return vec![Entry { name: name(0), pattern: Pattern { flow, mask: crate::key::EXACT }, cpu }];
    };
    // From the most bits to the fewest: the source's address alone is the last one, and all compare that.
    let entry = |n: usize| {
        let ones = u16::MAX;
        let mut mask = Fields { from: [u8::MAX; 16], tunnel: u8::MAX, family: u8::MAX, ..Fields::default() };
        let more = last - n;
        mask.id = if more & 1 != 0 { u32::MAX } else { 0 };
        mask.to_port = if more & 2 != 0 { ones } else { 0 };
        mask.from_port = if more & 4 != 0 { ones } else { 0 };
        Entry { name: name(n), pattern: Pattern { flow: flow.masked(&mask), mask }, cpu }
    };
    (0..masks).map(entry).collect()
}

/// The frame: VXLAN on IPv4, with UDP on IPv4 inside. Its inner source address is at 76 bytes, as in `probe.bpf.c`.
fn frame() -> Vec<u8> {
    let ethernet = |mac: u8| [[2, 0, 0, 0, 0, mac], [2, 0, 0, 0, 0, 9]].concat();
    let ip = |from: u8| {
        let mut header = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0, 192, 0, 2, from];
        header.extend([192, 0, 2, 1]);
        header
    };
    let udp = |to: u16| [&[0xc0, 0][..], &to.to_be_bytes(), &[0; 4]].concat();
    let outer = [ethernet(1), vec![8, 0], ip(2), udp(VXLAN_PORT), vec![8, 0, 0, 0, 0, 0, 42, 0]].concat();
    [outer, ethernet(3), vec![8, 0], ip(0), udp(5001), vec![0; 18]].concat()
}

/// The flow of the frame if its inner source address is this number.
fn flow(number: u32) -> Fields {
    let mut flow = Fields {
        id: 42,
        from_port: 0xc000,
        to_port: 5001,
        mac: [2, 0, 0, 0, 0, 3],
        tunnel: 1,
        protocol: 17,
        family: 4,
        ..Fields::default()
    };
    flow.from[..4].copy_from_slice(&number.to_be_bytes());
    flow.to[..4].copy_from_slice(&[192, 0, 2, 1]);
    flow
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_of_a_measurement_meet_the_entries() {
        for (entries, masks) in [(1, 0), (10, 1), (100, 8)] {
            let Some(cost) = tidegate_testkit::unless_skipped(cost(Case { entries, masks }, 1)) else {
                return;
            };
            assert_eq!((cost.entries, cost.masks), (entries, masks));
        }
    }

    #[test]
    fn the_frame_has_the_flow() {
        assert_eq!(crate::model::parse(&frame(), VXLAN_PORT, &Default::default()), Ok(flow(0xc000_0200)));
    }
}
