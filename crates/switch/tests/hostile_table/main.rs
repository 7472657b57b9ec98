//! Every way in which a front end can lie, by name: what it costs, and that it costs other ports nothing.
//!
//! ```text
//!  liar ──── one lie after the other ───▶ ┌────────┐ ──▶ its frame, or its connection; counted
//!                                         │ switch │
//!  a ══ numbered frames, deadline ══════▶ └────────┘ ══▶ b: none lost, none late for it
//! ```
//!
//! The neighbours' frames never stop. The test prints a table of the outcomes (`-- --nocapture`), as JSON
//! into the file that `TIDEGATE_REPORT` names.
//!
//! - [`rings`]: descriptors and indices
//! - [`frames`]: headers of frames and of virtio
//! - [`memory`]: memory tables and files
//! - [`messages`]: messages on the socket
//! - [`scene`]: the liar's port, and the guests that it talks to
//! - [`neighbours`]: two guests beside the liar

#[path = "../harness/mod.rs"]
mod harness;

mod frames;
mod memory;
mod messages;
mod neighbours;
mod rings;
mod scene;

use harness::{TestSwitch, report};
use neighbours::Neighbours;
use scene::{Case, Costs, Layout, Scene};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};
use tidegate_evidence::Connection;
use tidegate_switch::control::PortStatus;

/// Time in which a port must keep its connection.
const MOMENT: Duration = Duration::from_millis(20);

fn cases() -> Vec<Case> {
    [rings::cases(), frames::cases(), memory::cases(), messages::cases()].concat()
}

struct Outcome {
    name: &'static str,
    layout: &'static str,
    cost: String,
    reason: String,
}

fn outcome(scene: &mut Scene, case: &Case, neighbours: &Neighbours) -> Outcome {
    let before = scene.liar();
    let drops = scene.drops();
    let kept = (case.lie)(scene);
    let (cost, reason) = match case.costs {
        Costs::Connection(kind, text) => {
            let count = |port: &PortStatus| port.thrown_out.get(kind).copied().unwrap_or(0);
            scene.host.until(|| {
                let now = scene.liar();
                count(&now) > count(&before) && now.connection == Connection::Waiting
            });
            let reason = scene.liar().last_error.unwrap_or_default();
            assert!(reason.contains(text), "{}: {reason}", case.name);
            (format!("connection ({kind})"), reason)
        }
        Costs::Frame(reason) => {
            let count = |drops: &BTreeMap<String, u64>| drops.get(reason).copied().unwrap_or(0);
            scene.host.until(|| count(&scene.drops()) > count(&drops));
            stays_up(scene, case, &before);
            ("frame".to_owned(), reason.to_owned())
        }
        Costs::Nothing => {
            stays_up(scene, case, &before);
            ("nothing".to_owned(), String::new())
        }
    };
    drop(kept);
    scene.host.until(|| scene.liar().connection == Connection::Waiting);
    scene.assert_serves(case.name);
    neighbours.wait_for_more(case.name);
    let layout = if scene.packed { "packed" } else { "split" };
    Outcome { name: case.name, layout, cost, reason }
}

fn stays_up(scene: &Scene, case: &Case, before: &PortStatus) {
    let start = Instant::now();
    while start.elapsed() < MOMENT {
        let now = scene.liar();
        assert_eq!(now.thrown_out, before.thrown_out, "{}: {:?}", case.name, now.last_error);
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn run(workers: usize, packed: bool, outcomes: &mut Vec<Outcome>) -> serde_json::Value {
    let mut failed = Vec::new();
    let host = TestSwitch::new(workers);
    let neighbours = Neighbours::start(&host);
    let mut scene = Scene::new(&host, packed);
    let only = std::env::var("TIDEGATE_CASE").unwrap_or_default();
    for case in cases().iter().filter(|case| case.name.contains(&only)) {
        if matches!((case.layout, packed), (Layout::Split, true) | (Layout::Packed, false)) {
            continue;
        }
        // Names all failing cases, not only the first.
        match catch_unwind(AssertUnwindSafe(|| outcome(&mut scene, case, &neighbours))) {
            Ok(outcome) => outcomes.push(outcome),
            Err(_) => failed.push(format!("{} ({workers} workers)", case.name)),
        }
    }
    let report = neighbours.finish(&host);
    assert!(failed.is_empty(), "these cost something else: {failed:#?}");
    report
}

#[test]
fn every_lie_costs_the_liar_alone() {
    let mut outcomes = Vec::new();
    let neighbours = [(1, false), (2, true)].map(|(workers, packed)| run(workers, packed, &mut outcomes));
    println!("{:<62} {:<7} {:<21} reason", "lie", "rings", "costs");
    for Outcome { name, layout, cost, reason, .. } in &outcomes {
        let reason: String = reason.chars().take(90).collect();
        println!("{name:<62} {layout:<7} {cost:<21} {reason}");
    }
    println!("{} lies; neighbours {neighbours:?}", outcomes.len());
    let mut costs = BTreeMap::<&str, usize>::new();
    for outcome in &outcomes {
        *costs.entry(&outcome.cost).or_default() += 1;
    }
    let mut rows = vec![report::row(
        "lies told, each by name, with split and packed rings".to_owned(),
        "each costs what it is to cost",
        format!("{} lies: {costs:?}", outcomes.len()),
        true,
    )];
    for (rings, seen) in ["split", "packed"].iter().zip(&neighbours) {
        let missed: u64 =
            seen["deadlines_missed"].as_object().unwrap().values().filter_map(|it| it.as_u64()).sum();
        let lost = format!("{} of {} numbered frames", seen["lost"], seen["frames"]);
        rows.push(report::row(format!("frames that neighbours lost meanwhile, {rings}"), "0", lost, true));
        let worst = seen["worst_delay_us"].as_f64().unwrap() / 1000.0;
        let missed = format!("{missed}; worst delay {worst:.1} ms");
        rows.push(report::info(format!("deadlines of 50 ms that neighbours missed, {rings}"), missed));
    }
    let each = |o: &Outcome| report::info(format!("{}, {}", o.name, o.layout), format!("costs {}", o.cost));
    rows.extend(outcomes.iter().map(each));
    let notes = [
        "A lie that costs something else fails the test, as does a frame that a neighbour loses.",
        "A deadline is missed where this machine kept worker or receiver from the CPU; none was behind another's frames.",
    ];
    report::write("hostile", "hostile_table", &rows, &notes);
}
