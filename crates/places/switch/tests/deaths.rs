//! An agent that dies at any point of an apply, with the host switch: real files and sockets, and a switch without frames.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_agent::testing::{Case, Choice, World, deaths, dies_anywhere};
use tidegate_contract::{Attach, Rate, SocketMode, SocketOwner, Vnic};
use tidegate_paths::Paths;
use tidegate_place::Installed;
use tidegate_place_switch::{Options, SwitchPlace};
use tidegate_service::foreign::Budget;
use tidegate_switch::control::{Attachment, Client};
use tidegate_testkit::contract::vnic;
use tidegate_testkit::fake_switch::FakeSwitch;

struct SwitchWorld {
    /// Ends by its socket, before the folder goes.
    switch: FakeSwitch,
    dir: tempfile::TempDir,
    /// One for each agent.
    foreign: RefCell<Vec<Arc<Budget>>>,
    /// Front ends that listen and wait to be dialled.
    _front_ends: Vec<UnixListener>,
}

impl SwitchWorld {
    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Another agent's vNIC, with this rate.
    fn other(&self, rate: u64) -> Vnic {
        self.vnic(Choice { name: 99, mac: 99, attachment: 99, other_kind: false, rate })
    }
}

impl World for SwitchWorld {
    fn new() -> Self {
        // In memory if possible: the suite saves thousands of times.
        let memory = PathBuf::from("/dev/shm");
        let dir = tempfile::tempdir_in(if memory.is_dir() { memory } else { std::env::temp_dir() }).unwrap();
        std::fs::create_dir(dir.path().join("state")).unwrap();
        let switch = FakeSwitch::start(&dir.path().join("switch.sock"));
        let front_ends = (0..4).map(|n| UnixListener::bind(dir.path().join(format!("dialled{n}"))).unwrap());
        let world = Self { _front_ends: front_ends.collect(), switch, foreign: RefCell::default(), dir };
        let listener = UnixListener::bind(world.path("made99")).unwrap();
        let mut client = Client::connect(&world.path("switch.sock")).unwrap();
        client.hello().unwrap();
        client.set_port(&world.other(7), Attachment::Listener(listener.as_fd())).unwrap();
        world
    }

    fn folder(&self) -> &Path {
        self.dir.path()
    }

    fn place(&self) -> Box<dyn Installed> {
        let options = Options { socket: self.path("switch.sock"), observe_cpu: false };
        let paths = Paths::new(&[self.dir.path().into()], &[]).unwrap();
        let (place, damage) =
            SwitchPlace::new(&options, &self.path("state"), paths, Arc::new(|| ())).unwrap();
        assert_eq!(damage, []);
        self.foreign.borrow_mut().push(place.foreign());
        Box::new(place)
    }

    fn vnic(&self, choice: Choice) -> Vnic {
        let mut vnic = vnic(&format!("v{}", choice.name), choice.mac);
        vnic.tx.max = Rate::from_bits(choice.rate * 1_000_000);
        let (what, mode) =
            if choice.other_kind { ("dialled", SocketMode::Client) } else { ("made", SocketMode::Server) };
        let path = self.path(&format!("{what}{}", choice.attachment));
        vnic.attach = Attach::VhostUser { path, mode, owner: SocketOwner::default() };
        vnic
    }

    fn foreign(&self, rate: u64) -> Option<Vnic> {
        Some(self.other(rate))
    }

    /// The kernel closes a dead agent's descriptors at once; here a thread closes them soon.
    fn bury(&self) {
        let end = Instant::now() + Duration::from_secs(60);
        while self.foreign.borrow().iter().any(|foreign| foreign.in_use() > 0) {
            assert!(Instant::now() < end, "an agent that died holds descriptors");
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    fn restart(&mut self) -> bool {
        self.switch.restart();
        let _ = std::fs::remove_file(self.path("made99"));
        true
    }

    fn in_force(&self) -> BTreeMap<String, Vnic> {
        self.switch.state().ports.values().map(|p| (p.vnic.name.clone(), p.vnic.clone())).collect()
    }

    fn check(&self, expected: &BTreeMap<String, Vnic>) {
        let sockets = expected.values().filter_map(|v| match &v.attach {
            Attach::VhostUser { path, mode: SocketMode::Server, .. } => Some(path.clone()),
            _ => None,
        });
        let sockets: BTreeSet<PathBuf> = sockets.collect();
        let entries = std::fs::read_dir(self.dir.path()).unwrap().flatten().map(|e| e.path());
        let made = entries.filter(|p| p.file_name().unwrap().to_string_lossy().starts_with("made"));
        assert_eq!(made.collect::<BTreeSet<_>>(), sockets);
        for socket in &sockets {
            UnixStream::connect(socket).unwrap_or_else(|e| panic!("no listener at {socket:?}: {e}"));
        }
    }
}

fn choice(name: u8, mac: u8, attachment: u8, rate: u64) -> Choice {
    Choice { name, mac, attachment, other_kind: false, rate }
}

/// One vNIC gives its socket's path to another: for a while both have it on record.
#[test]
fn an_apply_that_dies_while_a_path_gets_another_vnic_is_wholly_done_or_wholly_undone() {
    let case = Case {
        old: vec![choice(1, 0, 1, 1)],
        new: vec![choice(1, 1, 3, 2), choice(0, 2, 1, 3)],
        adopts: None,
        restart: false,
        second_death: None,
    };
    let deaths = deaths::<SwitchWorld>(&case);
    assert!(deaths > 10, "few points: {deaths}");
}

#[test]
fn an_apply_that_dies_anywhere_is_wholly_done_or_wholly_undone() {
    dies_anywhere::<SwitchWorld>(6);
}

/// The points are between effects: an apply of each kind of action has dozens.
#[test]
fn an_apply_has_dozens_of_points_where_it_can_die() {
    let case = Case {
        old: vec![choice(0, 0, 0, 1), choice(1, 1, 1, 1)],
        new: vec![choice(0, 0, 1, 1), choice(2, 2, 0, 1)],
        adopts: Some(2),
        restart: false,
        second_death: None,
    };
    let points = deaths::<SwitchWorld>(&case);
    assert!(points >= 40, "{points} points");
}
