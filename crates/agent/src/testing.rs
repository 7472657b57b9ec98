//! The suite that every place has to pass: an agent dies at any point of an apply, and its successor takes over.
//!
//! ```text
//!  first agent: old document in force ─▶ apply new ─ dies at point n ─▶ the disk, the place
//!                                                                             │
//!  successor (dies at point m) ─▶ successor: old or new, whole, and nothing else ◀┘
//! ```
//!
//! The agent is the real one with real files. A [`World`] has the place: real or a toy.

use crate::reconciler::Reconciler;
use crate::store::{Contracts, Owner};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;
use tidegate_contract::Vnic;
use tidegate_durable::StateFile;
use tidegate_durable::cut::testing::dies_at;
use tidegate_paths::Paths;
use tidegate_place::{Adopt, Installed};

/// Names, MACs and attachments to choose from.
const CHOICES: u8 = 4;

/// A host whose place outlives the agent.
pub trait World {
    /// Makes a fresh host.
    fn new() -> Self;

    /// The agent's folder: `etc` and `state` are in it, and contracts may name guests' sockets below it.
    fn folder(&self) -> &Path;

    /// The place of an agent that starts.
    fn place(&self) -> Box<dyn Installed>;

    /// A contract with one of [`CHOICES`] attachments, of one of two kinds if the place has two.
    fn vnic(&self, choice: Choice) -> Vnic;

    /// A contract of another agent, in force at the place, that the suite may adopt with another rate (Mbit/s).
    fn foreign(&self, _rate: u64) -> Option<Vnic> {
        None
    }

    /// The agent died: its descriptors and threads are gone when this returns.
    fn bury(&self) {}

    /// The place's process dies with the agent, and another one starts. False if the place has no process.
    fn restart(&mut self) -> bool {
        false
    }

    /// The contracts that the place enforces.
    fn in_force(&self) -> BTreeMap<String, Vnic>;

    /// Panics if something else than these contracts is left of the agents' work.
    fn check(&self, expected: &BTreeMap<String, Vnic>);
}

/// The choices that make one contract.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    /// Its name, as a number.
    pub name: u8,
    /// The last byte of its MAC.
    pub mac: u8,
    /// The number of its attachment.
    pub attachment: u8,
    /// The other kind of attachment.
    pub other_kind: bool,
    /// `tx.max`, Mbit/s.
    pub rate: u64,
}

/// One case.
#[derive(Clone, Debug)]
pub struct Case {
    /// The contracts in force before.
    pub old: Vec<Choice>,
    /// The contracts that the agent applies.
    pub new: Vec<Choice>,
    /// The rate of the foreign contract in the new document, if that adopts it.
    pub adopts: Option<u64>,
    /// The place's process dies with the agent.
    pub restart: bool,
    /// The point at which the first successor dies.
    pub second_death: Option<u32>,
}

fn document() -> impl Strategy<Value = Vec<Choice>> {
    let order = || Just((0..CHOICES).collect::<Vec<_>>()).prop_shuffle();
    let rest = prop::collection::vec((any::<bool>(), 1u64..4), usize::from(CHOICES));
    (0..=usize::from(CHOICES), order(), order(), order(), rest).prop_map(
        |(n, names, macs, attachments, rest)| {
            let choice = |i: usize| Choice {
                name: names[i],
                mac: macs[i],
                attachment: attachments[i],
                other_kind: rest[i].0,
                rate: rest[i].1,
            };
            (0..n).map(choice).collect()
        },
    )
}

fn case() -> impl Strategy<Value = Case> {
    let adopts = prop::option::of(1u64..3);
    (document(), document(), adopts, prop::bool::weighted(0.3), prop::option::of(0u32..30)).prop_map(
        |(old, new, adopts, restart, second_death)| Case { old, new, adopts, restart, second_death },
    )
}

type Set = BTreeMap<String, Vnic>;

fn set<W: World>(world: &W, choices: &[Choice], foreign: Option<Vnic>) -> Set {
    let vnics = choices.iter().map(|choice| world.vnic(*choice)).chain(foreign);
    vnics.map(|vnic| (vnic.name.clone(), vnic)).collect()
}

fn agent<W: World>(world: &W) -> Reconciler {
    let folder = world.folder();
    let guests = Paths::new(&[folder.into()], &[]).expect("a folder of this test").guests;
    let places = vec![world.place()];
    let mut agent =
        Reconciler::new(&folder.join("etc"), &folder.join("state"), guests, places).expect("loads");
    assert!(!agent.has_problem("state"), "the contracts are damaged");
    agent.recover();
    agent.start();
    agent
}

fn accepted<W: World>(world: &W) -> Set {
    let file = StateFile::new(world.folder().join("state/contracts.json"));
    let loaded = file.load::<Contracts>().expect("readable");
    assert_eq!(loaded.damage, None);
    by_name(&loaded.value.unwrap_or_default())
}

fn by_name(contracts: &Contracts) -> Set {
    contracts.vnics().map(|(_, v)| (v.value.name.clone(), v.value.clone())).collect()
}

fn apply(agent: &mut Reconciler, set: &Set) {
    let text = "# Nothing, perhaps\n".to_owned() + &set.values().map(Vnic::to_toml).collect::<String>();
    agent.apply(&text, "test", &Owner::Api, true, Adopt::No, false).unwrap_or_else(|e| panic!("{e}\n{text}"));
}

/// Applies `contracts` (TOML) once, with a new agent for these places in `folder`.
///
/// # Errors
/// The contracts are refused, in the agent's words.
///
/// # Panics
/// Its state cannot be read.
pub fn apply_once(folder: &Path, places: Vec<Box<dyn Installed>>, contracts: &str) -> Result<(), String> {
    let guests = Paths::new(&[folder.into()], &[]).expect("a folder of this test").guests;
    let mut agent =
        Reconciler::new(&folder.join("etc"), &folder.join("state"), guests, places).expect("loads");
    agent.start();
    let applied = agent.apply(contracts, "test", &Owner::Api, false, Adopt::No, false);
    applied.map(drop).map_err(|e| e.to_string())
}

/// Ticks the agent until nothing is left to do.
fn settle(agent: &mut Reconciler) {
    let mut plans = Vec::new();
    for _ in 0..40 {
        plans.push(agent.planned());
        if plans.last().is_some_and(Vec::is_empty) {
            assert_eq!(agent.planned(), Vec::<String>::new(), "a second look finds more to do");
            agent.tick();
            return;
        }
        agent.tick();
        // A failed action is tried again later.
        if agent.has_failures() {
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    panic!("it never settles: {plans:#?}");
}

/// Runs a case with a death at point `at`; returns whether the apply survived.
///
/// # Panics
/// The successor finds something else than the old or the new document.
pub fn dies<W: World>(case: &Case, at: u32) -> bool {
    let mut world = W::new();
    let old = set(&world, &case.old, None);
    let foreign = case.adopts.and_then(|rate| world.foreign(rate));
    let new = set(&world, &case.new, foreign);
    let others: Set = world.in_force().into_values().map(|vnic| (vnic.name.clone(), vnic)).collect();
    let mut first = agent(&world);
    if !old.is_empty() {
        apply(&mut first, &old);
    }
    settle(&mut first);
    assert_eq!(accepted(&world), old);

    let survived = dies_at(at, || apply(&mut first, &new)).is_some();
    drop(first);
    world.bury();
    let restarted = case.restart && world.restart();
    let accepted_now = accepted(&world);
    assert!(accepted_now == old || accepted_now == new, "half of it was accepted: {accepted_now:#?}");
    assert!(!survived || accepted_now == new, "applied, and not on disk");

    if let Some(second_death) = case.second_death {
        let _ = dies_at(second_death, || agent(&world));
        world.bury();
    }
    let mut last = agent(&world);
    settle(&mut last);
    assert_eq!(by_name(last.contracts()), accepted_now);
    assert_eq!(accepted(&world), accepted_now);

    let mut expected = accepted_now.clone();
    // A foreign contract that is not adopted is unchanged.
    expected.extend(others.into_iter().filter(|(name, _)| !restarted && !accepted_now.contains_key(name)));
    assert_eq!(world.in_force(), expected, "the place enforces something else than accepted and foreign");
    world.check(&expected);
    drop(last);
    // A successor recognises its contracts by these records.
    let ours: Vec<String> = world.place().recorded().into_iter().map(|vnic| vnic.name).collect();
    let mut ours = ours;
    ours.sort();
    assert_eq!(ours, accepted_now.keys().cloned().collect::<Vec<_>>());
    survived
}

/// Returns the number of points at which an apply can die.
///
/// # Panics
/// As [`dies`].
pub fn deaths<W: World>(case: &Case) -> usize {
    (0..).take_while(|at| !dies::<W>(case, *at)).count()
}

/// Tests that an apply that dies anywhere is wholly done or not at all: `cases` random cases, or as many as the
/// environment's `PROPTEST_CASES`, each with a death at every point.
///
/// # Panics
/// As [`dies`]; or the points are so few that they prove nothing.
pub fn dies_anywhere<W: World>(cases: u32) {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(cases);
    let (applies, died) = (Cell::new(0), Cell::new(0));
    let config = ProptestConfig {
        cases,
        max_shrink_iters: 30,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let each = |case: Case| {
        applies.set(applies.get() + 1);
        died.set(died.get() + deaths::<W>(&case));
        Ok(())
    };
    TestRunner::new(config).run(&case(), each).unwrap_or_else(|e| panic!("{e}"));
    println!("cut points: {} deaths in {} applies", died.get(), applies.get());
    assert!(died.get() > 10 * applies.get(), "few points: {} in {}", died.get(), applies.get());
}
