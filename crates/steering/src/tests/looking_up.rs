use super::frames::{peers, whole};
use super::run::LONGEST;
use crate::key::{EXACT, Fields, LENGTH, Pattern};
use crate::live::Live;
use crate::maps::Count;
use crate::model;
use crate::probe::Probe;
use crate::table::{Entry, Table, VXLAN_PORT};
use libbpf_rs::ProgramInput;
use proptest::prelude::*;
use std::path::Path;
use tidegate_cores::cpus::Cpus;

const SEED: u64 = 0x1234_5678;
const PASS: u32 = 2;
const REDIRECT: u32 = 4;
/// More than there are.
const NO_CPU: usize = 9999;

/// Which fields the entries of a table may compare: each table takes a few of them.
fn masks() -> Vec<Fields> {
    let tunnel = Fields { tunnel: u8::MAX, ..Fields::default() };
    let mac = Fields { mac: [u8::MAX; 6], ..tunnel };
    let id = Fields { id: u32::MAX, ..tunnel };
    let both = Fields { mac: mac.mac, ..id };
    let to = Fields { to: [u8::MAX; 16], family: u8::MAX, ..tunnel };
    let port = Fields { to_port: u16::MAX, protocol: u8::MAX, ..tunnel };
    let vlan = Fields { vlan: u16::MAX, ..port };
    let ports = Fields { from_port: u16::MAX, ..port };
    let peer = Fields { peer: u8::MAX, ..both };
    vec![EXACT, peer, mac, id, both, to, port, vlan, ports, Fields { from: [u8::MAX; 16], ..to }]
}

fn cpu(cpus: &[usize]) -> impl Strategy<Value = usize> + use<> {
    prop_oneof![
        6 => prop::sample::select(cpus.to_vec()),
        1 => Just(NO_CPU),
    ]
}

/// A table for some of these flows.
fn table(flows: Vec<Fields>, cpus: Vec<usize>) -> impl Strategy<Value = Table> {
    let choice = (prop::sample::select(flows), prop::sample::select(masks()), cpu(&cpus));
    let spread = prop::collection::btree_set(prop::sample::select(cpus), 0..3);
    (prop::collection::vec(choice, 0..24), spread).prop_filter_map(
        "two for the same frames",
        |(choices, spread)| {
            let mut entries: Vec<Entry> = vec![];
            for (n, (flow, mask, cpu)) in choices.into_iter().enumerate() {
                let pattern = Pattern { flow: flow.masked(&mask), mask };
                if entries.iter().all(|entry| entry.pattern != pattern) {
                    entries.push(Entry { name: format!("flow{n}"), pattern, cpu });
                }
            }
            Some(Table { peers: peers(), ..Table::new(entries, spread, VXLAN_PORT).ok()? })
        },
    )
}

/// Frames with a flow, and tables for them, one after the other.
fn churn(cpus: Vec<usize>) -> impl Strategy<Value = (Vec<(Vec<u8>, Fields)>, Vec<Table>)> {
    let frame = whole().prop_filter_map("no flow", |mut frame| {
        frame.truncate(LONGEST);
        let flow = model::parse(&frame, VXLAN_PORT, &peers()).ok()?;
        Some((frame, flow))
    });
    prop::collection::vec(frame, 5..30).prop_flat_map(move |frames| {
        let flows = frames.iter().map(|(_, flow)| *flow).collect();
        (Just(frames), prop::collection::vec(table(flows, cpus.clone()), 1..5))
    })
}

/// What the kernel counted: outcomes, and frames to a CPU, by entries and by hash, and of an entry.
fn counted(probe: &Probe, cpu: usize, counter: Option<u32>) -> (Vec<u64>, [u64; 2], u64) {
    let frames = |counts: Vec<Count>| counts.into_iter().sum::<Count>().frames;
    let outcomes = (0..7).map(|which| frames(probe.maps.read_outcome(which).unwrap())).collect();
    let to = [probe.maps.read_sent(cpu), probe.maps.read_spread_to(cpu)];
    let sent = to.map(|counts| frames(counts.unwrap_or_default()));
    (
        outcomes,
        sent,
        counter.map(|counter| frames(probe.maps.read_counter(counter).unwrap())).unwrap_or_default(),
    )
}

fn pin(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).unwrap();
}

#[test]
fn a_frame_goes_where_the_model_says_after_each_change_of_the_table() {
    let Some(first) = tidegate_testkit::unless_skipped(Probe::load(64, 1)) else { return };
    drop(first);
    let online = crate::cpus::online(Path::new("/")).unwrap();
    let here = *online.first().unwrap();
    pin(here);
    let config = ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() };
    let cpus: Vec<usize> = online.iter().copied().collect();
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let result = runner.run(&churn(cpus), |(frames, tables)| {
        let probe = Probe::load(64, 1).unwrap();
        let mut live = Live::new(SEED);
        for (n, table) in tables.iter().enumerate() {
            if n % 2 == 1 {
                // As the next process does.
                live = Live::read(&probe.maps).unwrap();
            }
            live.update(&probe.maps, table, &online, 64).unwrap();
            for (frame, flow) in &frames {
                check(&probe, &live, table, (frame, flow), here)?;
            }
        }
        Ok(())
    });
    result.unwrap();
}

/// Runs one frame, and compares the verdict and all counters with the model.
fn check(
    probe: &Probe,
    live: &Live,
    table: &Table,
    (frame, flow): (&[u8], &Fields),
    here: usize,
) -> Result<(), TestCaseError> {
    let entry = model::entry(table, flow);
    let spread: Cpus = table.spread.clone();
    let by_hash = || {
        let cpus: Vec<usize> = spread.iter().copied().collect();
        (!cpus.is_empty()).then(|| cpus[model::place(flow, SEED) % cpus.len()])
    };
    let to = entry.map(|entry| entry.cpu).or_else(by_hash);
    let (action, outcome) = match to {
        Some(NO_CPU) => (PASS, 3),
        Some(cpu) => (if cpu == here { PASS } else { REDIRECT }, usize::from(entry.is_none())),
        None => (PASS, 2),
    };
    let cpu = to.unwrap_or(NO_CPU);
    let counter = entry.map(|entry| live.entries().find(|(name, _)| *name == entry.name).unwrap().1.counter);
    let (mut outcomes, mut sent, matched) = counted(probe, cpu, counter);
    let input = ProgramInput { data_in: Some(frame), ..ProgramInput::default() };
    prop_assert_eq!(probe.run("only_decide", input).unwrap().return_value, action, "{:?} {:?}", flow, entry);
    outcomes[outcome] += 1;
    if let Some(sent) = sent.get_mut(outcome) {
        *sent += 1;
    }
    prop_assert_eq!(counted(probe, cpu, counter), (outcomes, sent, matched + u64::from(entry.is_some())));
    Ok(())
}

#[test]
fn a_table_that_is_too_large_is_refused_and_one_that_fills_all_room_can_be_replaced() {
    let Some(probe) = tidegate_testkit::unless_skipped(Probe::load(8, 1)) else { return };
    let online = crate::cpus::online(Path::new("/")).unwrap();
    let of = |ids: std::ops::Range<u32>| {
        let entries = ids.map(|id| {
            let mask = Fields { id: u32::MAX, tunnel: u8::MAX, ..Fields::default() };
            let pattern = Pattern { flow: Fields { id, tunnel: 1, ..Fields::default() }, mask };
            Entry { name: id.to_string(), pattern, cpu: *online.first().unwrap() }
        });
        Table::new(entries.collect(), Cpus::new(), VXLAN_PORT).unwrap()
    };
    let mut live = Live::new(SEED);
    live.update(&probe.maps, &of(0..8), &online, 64).unwrap();
    let error = live.update(&probe.maps, &of(0..9), &online, 64).unwrap_err().to_string();
    assert!(error.contains("9 entries, and there is room for 8"), "{error}");
    live.update(&probe.maps, &of(4..12), &online, 64).unwrap();
    let mut ids: Vec<u32> = (probe.maps.read_entries().unwrap().iter())
        .map(|(key, _): &([u8; LENGTH], _)| u32::from_ne_bytes(key[32..36].try_into().unwrap()))
        .collect();
    ids.sort_unstable();
    assert_eq!(ids, (4..12).collect::<Vec<_>>());
}
