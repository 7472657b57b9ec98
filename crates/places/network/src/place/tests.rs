//! The place against a controller that does as it is told.

use super::*;
use crate::controller::{Asks, Trouble};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tidegate_contract::controller::Identity;
use tidegate_contract::{Host, Remote, Tx, Uplink, testing};
use tidegate_controller_api::{
    self as api, Misses as Late, Path as Granted, PathRequest, PathState, Registration,
};
use tidegate_evidence::{Evidence, LateCounts, PairStatus};
use tidegate_place::{Action, Adopt, HostWork, Network, Offer, Pair};

/// A test fails after this time rather than hang.
const LONG: Duration = Duration::from_secs(60);

/// What the controller says, and what it was asked.
#[derive(Default)]
struct Said {
    away: AtomicBool,
    refuses: AtomicBool,
    waits: AtomicBool,
    busy: AtomicBool,
    /// It answers nothing about paths, or nothing at all, while this is set.
    slow: AtomicBool,
    mute: AtomicBool,
    /// The bound that it grants; 0: as it should be.
    bound: AtomicU64,
    term: AtomicU64,
    registrations: Mutex<Vec<Registration>>,
    paths: Mutex<BTreeMap<String, Granted>>,
    releases: Mutex<Vec<String>>,
    late: Mutex<Vec<Late>>,
    remotes: Mutex<Vec<api::Remote>>,
    left: Mutex<Vec<String>>,
}

/// Waits as long as `flag` is set, at most as long as a client would.
fn hold(flag: &AtomicBool) {
    let end = Instant::now() + Duration::from_secs(10);
    while flag.load(Ordering::SeqCst) && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(10));
    }
}

struct Fake(Arc<Said>);

impl Fake {
    fn answers(&self) -> Result<(), Trouble> {
        hold(&self.0.mute);
        let away = self.0.away.load(Ordering::SeqCst);
        if away { Err(Trouble::Away("it is switched off".into())) } else { Ok(()) }
    }
}

impl Asks for Fake {
    fn register(&self, _: &str, registration: &Registration) -> Result<View, Trouble> {
        self.answers()?;
        self.0.registrations.lock().unwrap().push(registration.clone());
        self.view("h1", 0, Duration::ZERO)
    }

    fn view(&self, _: &str, after: u64, wait: Duration) -> Result<View, Trouble> {
        self.answers()?;
        if after > 0 {
            std::thread::sleep(wait.min(Duration::from_millis(50)));
        }
        let peer = api::Peer {
            host: "h2".into(),
            address: [192, 0, 2, 2].into(),
            port: 4789,
            segments: vec![1],
            arrival_budget: 500_000,
        };
        let paths = self.0.paths.lock().unwrap().values().cloned().collect();
        Ok(View {
            version: 1,
            term: 1 + self.0.term.load(Ordering::SeqCst),
            lease: 3_000_000_000,
            peers: vec![peer],
            remotes: self.0.remotes.lock().unwrap().clone(),
            paths,
            refused: vec![],
        })
    }

    fn request(&self, request: &PathRequest) -> Result<Granted, Trouble> {
        self.answers()?;
        hold(&self.0.slow);
        if self.0.busy.load(Ordering::SeqCst) {
            return Err(Trouble::Busy(Duration::from_millis(100)));
        }
        let is_other = |path: &Granted| path.name != request.name() && path.request.key == request.key;
        if self.0.paths.lock().unwrap().values().any(is_other) {
            return Err(Trouble::Refused(vec!["another path has the same addresses, ports and mark".into()]));
        }
        if self.0.refuses.load(Ordering::SeqCst) {
            return Err(Trouble::Refused(vec!["no route fits".into(), "s1:2>s2:1 has 1 Mbit/s left".into()]));
        }
        if self.0.waits.load(Ordering::SeqCst) {
            return Err(Trouble::Waiting(vec!["h2 has not admitted plc1".into()]));
        }
        let path = Granted {
            name: request.name(),
            request: request.clone(),
            state: PathState::Active,
            level: 1,
            links: vec!["h1>s1:1".into(), "s1:2>h2".into()],
            generation: 1,
            tag: 7,
            bound: self.0.bound.load(Ordering::SeqCst).max(40_000),
            far_burst: 9000,
            misses: 0,
            reasons: vec![],
            lasting: false,
        };
        self.0.paths.lock().unwrap().insert(path.name.clone(), path.clone());
        Ok(path)
    }

    fn release(&self, name: &str) -> Result<(), Trouble> {
        self.answers()?;
        self.0.releases.lock().unwrap().push(name.into());
        let gone = self.0.paths.lock().unwrap().remove(name);
        gone.map(drop).ok_or_else(|| Trouble::NotFound("no such path".into()))
    }

    fn misses(&self, _: &str, misses: &Late) -> Result<(), Trouble> {
        self.answers()?;
        self.0.late.lock().unwrap().push(misses.clone());
        Ok(())
    }

    fn keys(&self, _: &str) -> Result<api::SegmentKeys, Trouble> {
        Err(Trouble::Busy(Duration::from_secs(60)))
    }

    fn leave(&self, host: &str) -> Result<(), Trouble> {
        self.0.left.lock().unwrap().push(host.into());
        Ok(())
    }
}

/// A host with the place alone.
struct Lab {
    place: NetworkPlace,
    said: Arc<Said>,
    ports: PairPorts,
    network: Network,
    vnics: Vec<Vnic>,
    evidence: Evidence,
    /// Of the switch.
    started: u64,
    /// By a plan before.
    refused: Vec<&'static str>,
}

fn place(folder: &Path, said: &Arc<Said>, ports: &PairPorts, offers: Offers) -> NetworkPlace {
    let there = said.clone();
    let open: Open = Box::new(move |_| Ok(Box::new(Fake(there.clone()))));
    let (place, damage) = NetworkPlace::new(folder, ports.clone(), KeyRing::default(), offers, open).unwrap();
    assert_eq!(damage, None);
    place
}

impl Lab {
    fn new(folder: &Path) -> Self {
        Self::offering(folder, Offers::default())
    }

    /// With an agent that takes offers.
    fn offering(folder: &Path, offers: Offers) -> Self {
        let (said, ports) = (Arc::new(Said::default()), PairPorts::default());
        ports.tell([(Pair::new("net0", "plc1", "plc9"), 49_160)]);
        let controller = Controller {
            urls: vec!["http://127.0.0.1:1".into()],
            host: "h1".into(),
            identity: Identity::Token { file: "/t".into() },
            uplinks: vec!["net0".into()],
        };
        let uplink = Uplink { latency: None, controlled: true, ..testing::uplink("net0") };
        let remotes = vec![testing::remote("plc9")];
        let network = Network { uplinks: vec![uplink], remotes, keys: vec![], controller: Some(controller) };
        let place = place(folder, &said, &ports, offers);
        Self {
            place,
            said,
            ports,
            network,
            vnics: vec![plc1()],
            evidence: Evidence::empty("a test"),
            started: 1,
            refused: vec![],
        }
    }

    fn plan(&mut self) -> Result<Vec<NetworkAction>, Vec<Refusal>> {
        let (observed, facts) = self.place.observe(&[]).unwrap();
        let written: Vec<&Vnic> = self.vnics.iter().collect();
        let work = HostWork {
            written,
            evidence: vec![&self.evidence],
            switch_started: Some(self.started),
            refused: self.refused.iter().copied().collect(),
            ..HostWork::default()
        };
        let wanted = Wanted {
            host: &Host::default(),
            network: &self.network,
            vnics: &[],
            adopt: Adopt::No,
            claims: &[],
            work: &work,
        };
        self.place.plan(&wanted, &observed, &facts).map(|plan| plan.actions)
    }

    /// Makes a change, or takes it back, as the agent does.
    fn change(&mut self) -> Result<(), String> {
        let actions = self.plan().map_err(|refusals| refusals[0].reason.clone())?;
        self.place.prepare(&actions.iter().collect::<Vec<_>>()).unwrap();
        let mut done: Vec<NetworkAction> = Vec::new();
        let mut result = Ok(());
        for action in actions {
            if let Err(error) = self.place.apply(&action) {
                result = Err(error.to_string());
                break;
            }
            done.push(action);
        }
        if result.is_err() {
            for back in done.iter().rev().filter_map(Action::inverse) {
                self.place.apply(&back).unwrap();
            }
        }
        self.place.accept(&[]);
        result
    }

    fn repair(&mut self) {
        for action in self.plan().unwrap() {
            self.place.apply(&action).unwrap();
        }
        self.place.accept(&[]);
    }

    fn unpromised(&mut self) -> Option<String> {
        self.place.observe(&[]).unwrap().0.unpromised.remove("plc1")
    }

    fn until(&mut self, what: &str, mut is_so: impl FnMut(&mut Self) -> bool) {
        let end = Instant::now() + LONG;
        while !is_so(self) {
            assert!(Instant::now() < end, "{what}: {:?}", self.unpromised());
            self.repair();
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn plc1() -> Vnic {
    let mut vnic = testing::vnic("plc1");
    vnic.tx = Tx { max: "12mbit".parse().ok(), burst: "6kB".parse().ok(), ..Tx::default() };
    vnic.deadline = "2500us".parse().ok();
    vnic.to = vec!["plc9".into()];
    vnic.mtu = 1418;
    vnic
}

#[test]
fn a_change_has_its_path_when_it_is_in_force() {
    let folder = tempfile::tempdir().unwrap();
    let mut lab = Lab::new(folder.path());
    assert_eq!(lab.change(), Ok(()));
    assert_eq!(lab.unpromised(), None);
    let paths = lab.place.observe(&[]).unwrap().0.evidence.paths;
    let [path] = &paths["plc1"][..] else { panic!("{paths:?}") };
    assert_eq!((path.state.as_str(), path.bound_ns, path.budget_ns), ("active", Some(40_000), 1_000_000));
    assert_eq!((path.port, path.links.len()), (Some(49_160), 2));
    let asked = lab.said.paths.lock().unwrap()["plc1>plc9"].request.clone();
    assert_eq!(
        (asked.source.as_str(), asked.target.as_str(), asked.key.udp().unwrap().source_port),
        ("h1", "h2", 49_160)
    );
    let announced = lab.said.registrations.lock().unwrap().last().unwrap().clone();
    assert_eq!(
        (announced.vnics[0].name.as_str(), announced.vnics[0].to.as_slice()),
        ("plc1", &["plc9".to_owned()][..])
    );
    // What the controller tells of others is given to the agent as soon as it is known.
    lab.until("nothing is left to do", |lab| lab.plan().unwrap().is_empty());

    // Another port: asked for anew, without a change.
    lab.ports.tell([(Pair::new("net0", "plc1", "plc9"), 49_161)]);
    lab.until("the new port", |lab| {
        lab.said.paths.lock().unwrap()["plc1>plc9"].request.key.udp().unwrap().source_port == 49_161
    });

    // A second agent asks on the same terms, also while the controller would refuse a new path.
    let Lab { said, ports, network, vnics, evidence, .. } = lab;
    said.registrations.lock().unwrap().clear();
    let place = place(folder.path(), &said, &ports, Offers::default());
    let mut lab = Lab { place, said, ports, network, vnics, evidence, started: 1, refused: vec![] };
    let asks =
        |action: &NetworkAction| matches!(action, NetworkAction::Ask { .. } | NetworkAction::Release { .. });
    assert!(!lab.plan().unwrap().iter().any(asks), "they are on record");
    lab.repair();
    lab.until("the path again", |lab| lab.unpromised().is_none());
    assert_eq!(lab.said.releases.lock().unwrap().len(), 0);
    lab.vnics.clear();
    assert_eq!(lab.change(), Ok(()));
    lab.until("the release", |lab| *lab.said.releases.lock().unwrap() == ["plc1>plc9"]);
    lab.until("the record without it", |lab| lab.place.read(|state| state.book.leaving().count() == 0));
    lab.network.controller = None;
    lab.repair();
    lab.until("the end of the registration", |lab| *lab.said.left.lock().unwrap() == ["h1"]);
}

#[test]
fn a_refused_path_refuses_the_change_or_is_asked_for_again() {
    let folder = tempfile::tempdir().unwrap();
    let mut lab = Lab::new(folder.path());
    lab.said.refuses.store(true, Ordering::SeqCst);
    let why = lab.change().unwrap_err();
    assert!(why.contains("refuses its path to plc9: no route fits; s1:2>s2:1 has 1 Mbit/s left"), "{why}");
    assert!(lab.place.read(|state| state.book.entries().is_empty()));
    lab.vnics[0].on_refused = Some(OnRefused::BestEffort);
    assert_eq!(lab.change(), Ok(()));
    let why = lab.unpromised().unwrap();
    assert!(why.contains("refuses its path to plc9: no route fits"), "{why}");
    lab.said.refuses.store(false, Ordering::SeqCst);
    lab.until("a path after a refusal", |lab| lab.unpromised().is_none());

    // Refused terms leave the path as it was.
    lab.said.refuses.store(true, Ordering::SeqCst);
    lab.vnics[0].on_refused = None;
    lab.vnics[0].tx.max = "20mbit".parse().ok();
    assert!(lab.change().is_err());
    lab.vnics[0] = plc1();
    let kept = lab.place.read(|state| state.book.entries()["plc1>plc9"].wanted.terms.rate);
    assert_eq!(kept.bits(), 28_400_000);
}

#[test]
fn without_a_controller_a_change_waits_or_is_best_effort() {
    let folder = tempfile::tempdir().unwrap();
    let mut lab = Lab::new(folder.path());
    lab.said.away.store(true, Ordering::SeqCst);
    lab.vnics[0].on_unreachable = Some(OnUnreachable::Wait);
    let why = lab.change().unwrap_err();
    assert!(why.contains("does not answer: it is switched off"), "{why}");
    lab.vnics[0].on_unreachable = None;
    assert_eq!(lab.change(), Ok(()));
    assert!(lab.unpromised().unwrap().contains("does not answer for its path to plc9"));
    let problem = lab.place.observe(&[]).unwrap().0.problem.unwrap();
    assert_eq!(problem, "the network's controller does not answer: it is switched off");
    lab.said.away.store(false, Ordering::SeqCst);
    lab.until("a path after an absence", |lab| lab.unpromised().is_none());
    assert_eq!(lab.place.observe(&[]).unwrap().0.problem, None);
    // What was granted counts until the lease ends: then the controller may have released it.
    lab.said.away.store(true, Ordering::SeqCst);
    lab.until("its absence", |lab| lab.place.observe(&[]).unwrap().0.problem.is_some());
    lab.until("the end of the lease", |lab| {
        lab.unpromised().is_some_and(|why| why.contains("since the lease of this host's registration ended"))
    });
    lab.said.away.store(false, Ordering::SeqCst);
    lab.until("the path again", |lab| lab.unpromised().is_none());
}

#[test]
fn a_far_host_that_has_not_decided_blocks_no_change() {
    let folder = tempfile::tempdir().unwrap();
    let mut lab = Lab::new(folder.path());
    lab.said.waits.store(true, Ordering::SeqCst);
    assert_eq!(lab.change(), Ok(()));
    assert!(lab.unpromised().unwrap().contains("waits: h2 has not admitted plc1"));
    lab.said.waits.store(false, Ordering::SeqCst);
    lab.until("its path", |lab| lab.unpromised().is_none());
}

#[test]
fn a_path_of_a_plain_nic_is_asked_for_by_its_macs() {
    let folder = tempfile::tempdir().unwrap();
    let mut lab = Lab::new(folder.path());
    let uplink = &mut lab.network.uplinks[0];
    (uplink.kind, uplink.local) = (tidegate_contract::UplinkKind::Packet, None);
    (uplink.peers[0].address, uplink.peers[0].stamps) = (None, false);
    uplink.peers[0].segments = tidegate_contract::Segment::new(1).map(|segment| vec![segment]);
    lab.ports.tell([]);
    assert_eq!(lab.change(), Ok(()));
    let why = lab.unpromised().unwrap();
    assert!(why.contains("no host has announced plc9 behind a plain NIC with VLAN 1"), "{why}");
    let (own, far) = (lab.vnics[0].mac.to_string(), lab.network.remotes[0].mac.to_string());
    let vnic = api::Announced {
        name: "plc9".into(),
        mac: far.clone(),
        segment: 1,
        addresses: vec![],
        rate: None,
        burst: None,
        deadline: None,
        to: vec![],
    };
    *lab.said.remotes.lock().unwrap() = vec![api::Remote { vnic, host: "h2".into(), plain: true }];
    lab.until("the path, without a source port", |lab| lab.unpromised().is_none());
    let asked = lab.said.paths.lock().unwrap()["plc1>plc9"].request.clone();
    let key = api::EthernetKey { vlan: 1, priority: 5, source_mac: own, target_mac: far };
    assert_eq!((asked.key, asked.dscp), (api::Key::Ethernet(key), 0));
    assert_eq!(lab.ports.granted("net0"), Some([Pair::new("net0", "plc1", "plc9")].into()));
    let uplinks = lab.said.registrations.lock().unwrap().last().unwrap().uplinks.clone();
    assert_eq!((uplinks[0].address, uplinks[0].port, &uplinks[0].vlans[..]), (None, None, &[1][..]));
}

#[test]
fn what_cannot_be_keyed_is_refused_or_noted() {
    let folder = tempfile::tempdir().unwrap();
    let mut lab = Lab::new(folder.path());
    lab.network.uplinks[0].peers[0].stamps = false;
    let why = lab.change().unwrap_err();
    assert!(
        why.contains("no path to plc9 through the network can be asked for: peer host2 has stamps"),
        "{why}"
    );
    assert!(why.ends_with("or write on-refused = \"best-effort\""), "{why}");
    // In force already, as by files: the others have their paths, and it says why it has none.
    lab.refused = vec!["plc1"];
    let noted = lab.plan().unwrap();
    let is_note =
        |action: &NetworkAction| matches!(action, NetworkAction::Note(faults) if faults.contains_key("plc1"));
    assert!(noted.iter().any(is_note), "{noted:?}");
    assert!(noted.iter().any(|action| matches!(action, NetworkAction::Announce { .. })), "{noted:?}");
    lab.refused = vec![];
    lab.vnics[0].on_refused = Some(OnRefused::BestEffort);
    assert_eq!(lab.change(), Ok(()));
    assert!(lab.unpromised().unwrap().starts_with("no path to plc9 through the network can be asked for"));
    // A far host that needs more than this one's configuration says leaves nothing.
    let mut lab = Lab::new(&folder.path().join("other"));
    lab.network.uplinks[0].arrival_budget = "20us".parse().unwrap();
    lab.network.uplinks[0].latency = "400us".parse().ok();
    let why = lab.change().unwrap_err();
    assert!(
        why.contains("host h2 needs 500us after a frame's arrival") && why.contains("set arrival-budget"),
        "{why}"
    );
}

#[test]
fn late_frames_are_reported_as_totals() {
    let folder = tempfile::tempdir().unwrap();
    let mut lab = Lab::new(folder.path());
    lab.network.remotes = vec![Remote { ..testing::remote("plc9") }];
    let pair = |late: u64, lost: u64| PairStatus {
        vnic: "plc1".into(),
        remote: "plc9".into(),
        arrived: 1000,
        late: LateCounts { sender: 5, network: late, receiver: 7 },
        lost,
        worst_ns: 9000,
        ..PairStatus::default()
    };
    let set = |lab: &mut Lab, late, lost| {
        lab.evidence.pairs = [("net0".to_owned(), vec![pair(late, lost)])].into();
    };
    set(&mut lab, 100, 10);
    assert_eq!(lab.change(), Ok(()));
    set(&mut lab, 103, 11);
    lab.repair();
    set(&mut lab, 2, 0);
    lab.repair();
    let total = |lab: &Lab| {
        let all = lab.said.late.lock().unwrap();
        all.last().map(|late| (late.paths[0].name.clone(), late.paths[0].total, late.paths[0].worst))
    };
    lab.until("all late frames", |lab| total(lab) == Some(("plc9>plc1".into(), 6, 9000)));
    // A switch that is started anew counts from 0, and may have reached the old count.
    lab.started += 1;
    set(&mut lab, 2, 0);
    lab.repair();
    lab.until("those of another switch", |lab| total(lab) == Some(("plc9>plc1".into(), 8, 9000)));
    let reports = lab.said.late.lock().unwrap().len();
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(lab.said.late.lock().unwrap().len(), reports, "nothing is new");
}

#[test]
fn what_the_controller_tells_is_offered_once_and_takes_nothing_away_at_first() {
    let folder = tempfile::tempdir().unwrap();
    let offered = Arc::new(Mutex::new(Vec::new()));
    let there = offered.clone();
    let offers = Offers::new(move |offer: Offer| {
        there.lock().unwrap().push(offer);
        let declined = [("[remote.plc7]".to_owned(), "no room".to_owned())].into();
        Ok(Taken { declined, differences: vec!["peer h9 has another address".into()] })
    });
    let mut lab = Lab::offering(folder.path(), offers);
    lab.vnics[0].to.push("plc7".into());
    lab.vnics[0].on_refused = Some(OnRefused::BestEffort);
    lab.change().unwrap();
    lab.until("a complete offer", |_| offered.lock().unwrap().len() == 2);
    let all = offered.lock().unwrap().clone();
    assert_eq!((all[0].is_complete, all[1].is_complete), (false, true), "hosts need a lease to register");
    assert_eq!(all[0].document, all[1].document);
    assert_eq!(all[0].document.peers[0].value.peer.name, "h2");
    lab.until("the reason", |lab| {
        lab.unpromised().is_some_and(|why| why.contains("plc7 cannot be reached: no room"))
    });
    let problem = lab.place.observe(&[]).unwrap().0.problem.unwrap();
    assert!(
        problem.contains("not in force as the network's controller tells it [remote.plc7]: no room"),
        "{problem}"
    );
    assert!(problem.contains("tells others peer h9 has another address"), "{problem}");
    assert!(lab.plan().unwrap().is_empty(), "the same is not offered again by the plan");

    // Without a controller nothing is remembered.
    lab.network.controller = None;
    lab.repair();
    assert_eq!(lab.place.offering.offered().newest, None);
}

#[test]
fn a_sender_is_refused_only_after_the_agent_has_decided() {
    let folder = tempfile::tempdir().unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let (answer, answers) = std::sync::mpsc::channel();
    let answers = Mutex::new(answers);
    let offers = Offers::new(move |offer: Offer| {
        tell.send(offer).unwrap();
        Ok(answers.lock().unwrap().recv_timeout(LONG).unwrap())
    });
    let mut lab = Lab::offering(folder.path(), offers);
    let mac = lab.network.remotes[0].mac.to_string();
    let mut vnic = api::Announced {
        name: "plc9".into(),
        mac,
        segment: 1,
        addresses: vec![],
        rate: Some(10_000_000),
        burst: Some(4000),
        deadline: None,
        to: vec![],
    };
    let say = |lab: &Lab, vnic: &api::Announced| {
        *lab.said.remotes.lock().unwrap() =
            vec![api::Remote { vnic: vnic.clone(), host: "h2".into(), plain: false }];
    };
    let arrivals = |lab: &Lab| lab.said.registrations.lock().unwrap().last().unwrap().arrivals.clone();
    say(&lab, &vnic);
    lab.change().unwrap();
    for is_complete in [false, true] {
        lab.until("an offer", |_| told.try_recv().is_ok_and(|offer| offer.is_complete == is_complete));
        answer.send(Taken::default()).unwrap();
    }
    lab.until("all is taken", |lab| lab.place.offering.offered().is_taken);
    // The remote in force has no deadline yet.
    (vnic.deadline, vnic.to) = (Some(2_000_000), vec!["plc1".into()]);
    say(&lab, &vnic);
    lab.until("the deadline", |_| {
        told.try_recv().is_ok_and(|offer| offer.document.remotes[0].value.deadline.is_some())
    });
    for _ in 0..10 {
        lab.repair();
        assert_eq!(arrivals(&lab), []);
        std::thread::sleep(Duration::from_millis(20));
    }
    let declined = [("[remote.plc9]".to_owned(), "no room".to_owned())].into();
    answer.send(Taken { declined, ..Taken::default() }).unwrap();
    lab.until("the refusal", |lab| !arrivals(lab).is_empty());
    assert_eq!(arrivals(&lab)[0].refused.as_deref(), Some("no room"));
}

mod grants;
