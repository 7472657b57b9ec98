//! An agent that dies at any point of an apply, and what its successor makes of it.
//!
//! ```text
//!  first agent: old document in force ─▶ apply new ─ dies at point n ─▶ what is on disk, in the switch, in the
//!  file system ─▶ successor (dies at point m) ─▶ successor: old or new, whole, and nothing else
//! ```
//!
//! The agent is the real one with real files and sockets; only the switch carries no frames.

#[allow(dead_code, reason = "the tests of the API use the rest")]
#[path = "../../tests/common/fake_switch.rs"]
mod fake_switch;

use super::check::check;
use super::{Contracts, Durable, Reconciler};
use crate::api::types::Adopt;
use crate::cut::testing::dies_at;
use crate::guest::limits::SoftLimits;
use crate::paths::Paths;
use crate::place::{Action, Place, Wanted};
use crate::switch_place::SwitchPlace;
use crate::testing::vnic;
use fake_switch::FakeSwitch;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_contract::{Attach, Rate, SocketMode, SocketOwner, Vnic};
use tidegate_switch::control::{Client, Link};
use tidegate_switch::foreign::Budget;

/// vNICs to choose from; the last one is in the switch before, and nobody's of ours.
const NAMES: u8 = 4;

/// A vNIC in a document.
#[derive(Clone, Debug)]
struct Spec {
    name: u8,
    mac: u8,
    link: u8,
    dialled: bool,
    rate: u64,
}

#[derive(Clone, Debug)]
struct Case {
    old: Vec<Spec>,
    new: Vec<Spec>,
    /// The foreign vNIC's rate in the new document, where that takes it over.
    takes_over: Option<u64>,
    /// The switch dies with the agent.
    switch_too: bool,
    /// Where the first successor dies.
    again: Option<u32>,
}

fn document() -> impl Strategy<Value = Vec<Spec>> {
    let order = || Just((0..NAMES).collect::<Vec<_>>()).prop_shuffle();
    let rest = prop::collection::vec((any::<bool>(), 1u64..4), usize::from(NAMES));
    (0..=usize::from(NAMES), order(), order(), order(), rest).prop_map(|(n, names, macs, links, rest)| {
        (0..n)
            .map(|i| Spec {
                name: names[i],
                mac: macs[i],
                link: links[i],
                dialled: rest[i].0,
                rate: rest[i].1,
            })
            .collect()
    })
}

fn case() -> impl Strategy<Value = Case> {
    let takes_over = prop::option::of(1u64..3);
    (document(), document(), takes_over, prop::bool::weighted(0.3), prop::option::of(0u32..30)).prop_map(
        |(old, new, takes_over, switch_too, again)| Case { old, new, takes_over, switch_too, again },
    )
}

struct World {
    /// Ends, by its socket, before the folder goes.
    switch: FakeSwitch,
    dir: tempfile::TempDir,
    /// Of each agent.
    foreign: RefCell<Vec<Arc<Budget>>>,
    /// Front ends that listen and wait to be dialled.
    _front_ends: Vec<UnixListener>,
}

impl World {
    fn new() -> Self {
        // In memory where that can be: there are thousands of saves.
        let memory = PathBuf::from("/dev/shm");
        let dir = tempfile::tempdir_in(if memory.is_dir() { memory } else { std::env::temp_dir() }).unwrap();
        std::fs::create_dir(dir.path().join("state")).unwrap();
        let switch = FakeSwitch::start(&dir.path().join("switch.sock"));
        let front_ends =
            (0..NAMES).map(|n| UnixListener::bind(dir.path().join(format!("dialled{n}"))).unwrap());
        let world = Self { _front_ends: front_ends.collect(), switch, foreign: RefCell::default(), dir };
        world.make_foreign();
        world
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn paths(&self) -> Paths {
        Paths::new(&[self.dir.path().into()], &[]).unwrap()
    }

    fn foreign(&self, rate: u64) -> Vnic {
        self.vnic(&Spec { name: 99, mac: 99, link: 99, dialled: false, rate })
    }

    fn make_foreign(&self) {
        let listener = UnixListener::bind(self.path("made99")).unwrap();
        let mut client = Client::connect(&self.path("switch.sock")).unwrap();
        client.hello().unwrap();
        client.set_port(&self.foreign(7), Link::Listener(listener.as_fd())).unwrap();
    }

    fn vnic(&self, spec: &Spec) -> Vnic {
        let mut vnic = vnic(&format!("v{}", spec.name), spec.mac);
        vnic.tx.max = Rate::from_bits(spec.rate * 1_000_000);
        let (what, mode) =
            if spec.dialled { ("dialled", SocketMode::Client) } else { ("made", SocketMode::Server) };
        let path = self.path(&format!("{what}{}", spec.link));
        vnic.attach = Attach::VhostUser { path, mode, owner: SocketOwner::default() };
        vnic
    }

    fn set(&self, document: &[Spec], foreign: Option<u64>) -> BTreeMap<String, Vnic> {
        let vnics = document.iter().map(|s| self.vnic(s)).chain(foreign.map(|rate| self.foreign(rate)));
        vnics.map(|v| (v.name.clone(), v)).collect()
    }

    fn agent(&self) -> Reconciler {
        let (place, damage) = SwitchPlace::new(
            &self.path("switch.sock"),
            &self.path("state"),
            self.paths(),
            Arc::new(|| ()),
            false,
        )
        .unwrap();
        assert_eq!(damage, None);
        self.foreign.borrow_mut().push(place.foreign());
        let made = place.made();
        let places: Vec<Box<dyn Place>> = vec![Box::new(place)];
        let guests = self.paths().guests;
        let mut agent = Reconciler::new(&self.path("etc"), &self.path("state"), guests, places).unwrap();
        assert_eq!(agent.problems.get("state"), None);
        agent.recover(made);
        agent.start();
        agent
    }

    /// The agents died, and their descriptors with them: the kernel closes those at once, a thread of ours soon.
    fn bury(&self) {
        let end = Instant::now() + Duration::from_secs(60);
        while self.foreign.borrow().iter().any(|foreign| foreign.held() > 0) {
            assert!(Instant::now() < end, "an agent that died holds descriptors");
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    fn accepted(&self) -> BTreeMap<String, Vnic> {
        let loaded = Durable::new(self.path("state/contracts.json")).load::<Contracts>().unwrap();
        assert_eq!(loaded.damage, None);
        by_name(&loaded.value.unwrap_or_default())
    }

    fn in_switch(&self) -> BTreeMap<String, Vnic> {
        self.switch.state().ports.values().map(|p| (p.vnic.name.clone(), p.vnic.clone())).collect()
    }

    /// Names of the socket files that agents make.
    fn sockets(&self) -> BTreeSet<PathBuf> {
        let entries = std::fs::read_dir(self.dir.path()).unwrap().flatten();
        entries
            .map(|e| e.path())
            .filter(|p| p.file_name().unwrap().to_string_lossy().starts_with("made"))
            .collect()
    }
}

fn by_name(contracts: &Contracts) -> BTreeMap<String, Vnic> {
    contracts.vnics().map(|(_, v)| (v.value.name.clone(), v.value.clone())).collect()
}

fn apply(agent: &mut Reconciler, set: &BTreeMap<String, Vnic>) {
    let text = "# Nothing, perhaps\n".to_owned() + &set.values().map(Vnic::to_toml).collect::<String>();
    agent
        .apply(&text, "test", &crate::store::Owner::Api, true, Adopt::No, false)
        .unwrap_or_else(|e| panic!("{e}\n{text}"));
}

/// What there is to do.
fn plan(agent: &mut Reconciler) -> Vec<Action> {
    agent.observe();
    let checked = check(&agent.contracts, &SoftLimits::default(), &agent.places).unwrap();
    let wanted = Wanted { host: &checked.host, vnics: &checked.by_place[0], adopt: Adopt::No };
    agent.places[0].plan(&wanted, agent.seen[0].as_ref().unwrap()).unwrap()
}

/// Lets the agent do what it does twice a second until there is nothing to do.
fn settle(agent: &mut Reconciler) {
    let mut plans = Vec::new();
    for _ in 0..40 {
        plans.push(plan(agent));
        if plans.last().is_some_and(Vec::is_empty) {
            assert_eq!(plan(agent), [], "a second look finds more to do");
            agent.observe();
            return;
        }
        agent.repair();
        // What was tried and did not work is tried again later.
        if !agent.failures.is_empty() {
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    panic!("it never settles: {plans:#?}, {:?}", agent.failures);
}

/// The same life up to point `at`; whether the apply survived that.
fn try_cut(case: &Case, at: u32) -> bool {
    let mut world = World::new();
    let old = world.set(&case.old, None);
    let new = world.set(&case.new, case.takes_over);
    let mut agent = world.agent();
    if !old.is_empty() {
        apply(&mut agent, &old);
    }
    settle(&mut agent);
    assert_eq!(world.accepted(), old);

    let survived = dies_at(at, || apply(&mut agent, &new)).is_some();
    drop(agent);
    world.bury();
    if case.switch_too {
        world.switch.restart();
        let _ = std::fs::remove_file(world.path("made99"));
    }
    let accepted = world.accepted();
    assert!(accepted == old || accepted == new, "half of it was accepted: {accepted:#?}");
    assert!(!survived || accepted == new, "applied, and not on disk");

    if let Some(again) = case.again {
        let _ = dies_at(again, || world.agent());
        world.bury();
    }
    let mut agent = world.agent();
    settle(&mut agent);
    assert_eq!(by_name(&agent.contracts), accepted);
    assert_eq!(world.accepted(), accepted);

    let foreign_stays = !case.switch_too && !accepted.contains_key("v99");
    let mut expected = accepted.clone();
    if foreign_stays {
        expected.insert("v99".into(), world.foreign(7));
    }
    assert_eq!(world.in_switch(), expected, "in the switch is something else than accepted and foreign");

    let sockets = expected.values().filter_map(|v| match &v.attach {
        Attach::VhostUser { path, mode: SocketMode::Server, .. } => Some(path.clone()),
        _ => None,
    });
    let sockets: BTreeSet<_> = sockets.collect();
    assert_eq!(world.sockets(), sockets);
    for socket in &sockets {
        UnixStream::connect(socket).unwrap_or_else(|e| panic!("nobody listens at {socket:?}: {e}"));
    }
    drop(agent);
    // What the next one would know to be its own.
    let (place, _) = SwitchPlace::new(
        &world.path("switch.sock"),
        &world.path("state"),
        world.paths(),
        Arc::new(|| ()),
        false,
    )
    .unwrap();
    let ours: BTreeSet<_> = place.made().into_iter().map(|v| v.name).collect();
    assert_eq!(ours, accepted.keys().cloned().collect());
    survived
}

/// One vNIC gives its socket's path to another: for a while both have it on record.
#[test]
fn an_apply_that_dies_while_a_path_changes_hands_is_wholly_done_or_not_at_all() {
    let spec = |name, mac, link, dialled, rate| Spec { name, mac, link, dialled, rate };
    let case = Case {
        old: vec![spec(1, 0, 1, false, 1)],
        new: vec![spec(1, 1, 3, true, 2), spec(0, 2, 1, false, 3)],
        takes_over: None,
        switch_too: false,
        again: None,
    };
    let deaths = (0..).take_while(|at| !try_cut(&case, *at)).count();
    assert!(deaths > 10, "few points: {deaths}");
}

#[test]
fn an_apply_that_dies_anywhere_is_wholly_done_or_not_at_all() {
    let (applies, deaths) = (Cell::new(0), Cell::new(0));
    // Each case is dozens of lives: few by default, more with PROPTEST_CASES.
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(6);
    let config = ProptestConfig {
        cases,
        max_shrink_iters: 30,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let each = |case| {
        applies.set(applies.get() + 1);
        for at in 0.. {
            if try_cut(&case, at) {
                return Ok(());
            }
            deaths.set(deaths.get() + 1);
        }
        Ok(())
    };
    TestRunner::new(config).run(&case(), each).unwrap_or_else(|e| panic!("{e}"));
    println!("cut points: {} deaths in {} applies", deaths.get(), applies.get());
    assert!(deaths.get() > 10 * applies.get(), "few points: {} in {}", deaths.get(), applies.get());
}

/// That the points are where things happen: an apply of each kind of action has dozens.
#[test]
fn there_are_many_points() {
    let spec = |name, link| Spec { name, mac: name, link, dialled: false, rate: 1 };
    let case = Case {
        old: vec![spec(0, 0), spec(1, 1)],
        new: vec![spec(0, 1), spec(2, 0)],
        takes_over: Some(2),
        switch_too: false,
        again: None,
    };
    let points = (0..).find(|at| try_cut(&case, *at)).unwrap();
    assert!(points >= 40, "{points} points");
}
