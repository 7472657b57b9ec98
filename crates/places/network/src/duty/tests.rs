//! Any sequence of answers: the registration is kept, everything is asked for in the end, nothing twice without need.

use super::*;
use crate::book::{Policy, Standing, WantedPath};
use proptest::{collection::vec, prelude::*};
use tidegate_contract::network_paths::{PathTerms, Seen};
use tidegate_contract::{Bytes, Nanos, Rate};
use tidegate_controller_api::{PathState, Peer};

const LEASE: Duration = Duration::from_secs(3);

fn wanted(number: u64, rate: u64) -> WantedPath {
    let terms = PathTerms {
        vnic: format!("v{number}"),
        remote: "b".into(),
        peer: "h2".into(),
        uplink: "net0".into(),
        seen: Seen::Outer { source: [192, 0, 2, 1].into(), target: [192, 0, 2, 2].into(), target_port: 4789 },
        dscp: 46,
        rate: Rate::from_bits(rate).unwrap(),
        burst: Bytes::new(9000),
        smallest_frame: Bytes::new(142),
        largest_frame: Bytes::new(1514),
        deadline: Nanos::new(3000),
        here: Nanos::new(1000),
        budget: Nanos::new(1000),
        arrival: Nanos::new(1000),
    };
    WantedPath { terms, policy: Policy::default() }
}

fn registration(run: &str) -> Registration {
    Registration { run: run.into(), uplinks: vec![], vnics: vec![], arrivals: vec![], view: 0 }
}

fn view(paths: &BTreeMap<String, Path>) -> View {
    let peer = Peer {
        host: "h2".into(),
        address: [192, 0, 2, 2].into(),
        port: 4789,
        segments: vec![],
        arrival_budget: 1000,
    };
    let paths = paths.values().cloned().collect();
    let lease = LEASE.as_nanos() as u64;
    View { version: 1, term: 1, lease, peers: vec![peer], remotes: vec![], paths, refused: vec![] }
}

fn granted(request: &PathRequest) -> Path {
    Path {
        name: request.name(),
        request: request.clone(),
        state: PathState::Active,
        level: 0,
        links: vec![],
        generation: 1,
        tag: 1,
        bound: 1,
        far_burst: 1,
        misses: 0,
        reasons: vec![],
        lasting: false,
    }
}

/// What happens before a step.
#[derive(Clone, Debug)]
enum Event {
    Want(u64, u64),
    Release(u64),
    Announce(u8),
    /// So many ms pass.
    Pass(u64),
    /// The next answers are of this kind.
    Mood(u8),
    /// The controller forgets all, and its term becomes this one.
    Forget(u64),
    /// The agent ends; the next one knows what was accepted.
    Restart,
    /// News of the View, which was asked for so many ms ago.
    News(u64),
    /// The switch gives a pair a port that none has had.
    Port(u64),
    /// An operator gives a path other terms.
    Replace(u64),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (0u64..4, 1u64..4).prop_map(|(n, rate)| Event::Want(n, rate)),
        2 => (0u64..4).prop_map(Event::Release),
        2 => any::<u8>().prop_map(|n| Event::Announce(n % 3)),
        8 => (0u64..2000).prop_map(Event::Pass),
        4 => (0u8..6).prop_map(Event::Mood),
        2 => (0u64..4).prop_map(Event::Forget),
        1 => Just(Event::Restart),
        4 => (0u64..3000).prop_map(Event::News),
        1 => (0u64..4).prop_map(Event::Port),
        1 => (0u64..4).prop_map(Event::Replace),
    ]
}

/// A controller by its answers, and the ports of a switch.
struct There {
    mood: u8,
    term: u64,
    /// When the registration began, if there is one.
    registered: Option<Instant>,
    paths: BTreeMap<String, Path>,
    /// A request that the controller has taken in, whose answer is on its way.
    slow: Option<(PathRequest, Result<Path, Trouble>)>,
    ports: BTreeMap<String, u16>,
    fresh: u16,
}

impl There {
    fn new() -> Self {
        let ports = (0..4).map(|number| (format!("v{number}"), 49_160 + number)).collect();
        Self { mood: 0, term: 1, registered: None, paths: BTreeMap::new(), slow: None, ports, fresh: 50_000 }
    }

    fn trouble(&self) -> Result<(), Trouble> {
        match self.mood {
            1 => Err(Trouble::Away("away".into())),
            2 => Err(Trouble::Busy(Duration::from_millis(700))),
            _ if self.registered.is_none() => Err(Trouble::NotFound("not registered".into())),
            _ => Ok(()),
        }
    }

    /// Releases the paths of a host whose lease is over.
    fn expire(&mut self, now: Instant) {
        if self.registered.is_some_and(|since| now >= since + LEASE) {
            self.registered = None;
            self.paths.clear();
        }
    }

    fn view(&self) -> News {
        let mut view = view(&self.paths);
        view.term = self.term;
        News::of(view)
    }

    fn decide(&mut self, request: &PathRequest) -> Result<Path, Trouble> {
        self.trouble()?;
        if self.paths.values().any(|path| path.name != request.name() && path.request.key == request.key) {
            return Err(Trouble::Refused(vec!["another path has this key".into()]));
        }
        match self.mood {
            3 => Err(Trouble::Refused(vec!["full".into()])),
            4 => Err(Trouble::Waiting(vec!["h2".into()])),
            _ => {
                let path = granted(request);
                self.paths.insert(path.name.clone(), path.clone());
                Ok(path)
            }
        }
    }
}

/// Does what is due; returns how long to rest.
fn step(state: &mut State, there: &mut There, now: Instant) -> Duration {
    there.expire(now);
    let mut duty = state.next(now);
    // The thread of the paths waits for its answer.
    if let (Duty::Rest(host), None) = (&duty, &there.slow) {
        let host = *host;
        duty = match state.next_path(|pair| there.ports.get(&pair.vnic).copied(), now) {
            Duty::Rest(paths) => Duty::Rest(host.min(paths)),
            other => other,
        };
    }
    match duty {
        Duty::Rest(time) => {
            if there.mood != 5
                && let Some((request, answer)) = there.slow.take()
            {
                state.answered(request, answer, now);
            }
            return time;
        }
        Duty::Register(registration) => {
            if !matches!(there.mood, 1 | 2) {
                there.registered = Some(now);
            }
            let answer = there.trouble().map(|()| there.view());
            state.registered(*registration, answer, now, now);
        }
        Duty::Request(request) => {
            let answer = there.decide(&request);
            if there.mood == 5 {
                there.slow = Some((*request, answer));
            } else {
                state.answered(*request, answer, now);
            }
        }
        Duty::Release(name) => {
            let answer = there.trouble().and_then(|()| match there.paths.remove(&name) {
                Some(_) => Ok(()),
                None => Err(Trouble::NotFound("no such path".into())),
            });
            state.released(&name, answer, now);
        }
        Duty::Keys => state.keys_given(None, now),
        Duty::Report(misses) => {
            let answer = there.trouble();
            state.reported(&misses, answer, now);
        }
    }
    Duration::ZERO
}

/// What is promised is as the controller has it, or the controller could not say otherwise yet.
fn promised(state: &State, there: &There, now: Instant) -> Vec<String> {
    let is_promised = |entry: &&crate::book::Entry| {
        let port = there.ports.get(&entry.wanted.terms.vnic).copied();
        entry.unpromised(crate::shown::Now { port, leased: state.is_leased(now) }).is_none()
    };
    state.book.entries().values().filter(is_promised).map(|entry| entry.wanted.terms.name()).collect()
}

fn begin() -> State {
    let mut state = State { host: "h1".into(), accepted: true, ..State::default() };
    state.wanted = Some(registration("r0"));
    state
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Whatever happened, a controller that answers has the registration and exactly the wanted paths soon, on their terms,
    /// and then there is nothing to do but to renew. At no time is a path promised that ended with the lease, or that has
    /// other terms than those in force, or another port than that of its pair.
    #[test]
    fn all_is_as_wanted_in_the_end(events in vec(event(), 0..60)) {
        let mut now = Instant::now() + Duration::from_secs(10);
        let (mut state, mut there) = (begin(), There::new());
        // A few may be replaced or lost behind the host's back, until it hears of that.
        let mut touched = false;
        for event in events {
            match event {
                Event::Want(number, rate) => {
                    state.book.ask(wanted(number, rate), now);
                    state.hurry();
                }
                Event::Release(number) => {
                    if state.book.entries().contains_key(&format!("v{number}>b")) {
                        state.book.release(&format!("v{number}>b"), now);
                    }
                }
                Event::Announce(number) => state.wanted = Some(registration(&format!("r{number}"))),
                Event::Pass(ms) => now += Duration::from_millis(ms),
                Event::Mood(mood) => there.mood = mood,
                Event::Forget(term) => {
                    touched = true;
                    (there.registered, there.term) = (None, term);
                    there.paths.clear();
                }
                Event::Restart => {
                    let wanted: Vec<_> = state.book.entries().values().map(|entry| entry.wanted.clone()).collect();
                    there.slow = None;
                    state = begin();
                    wanted.into_iter().for_each(|wanted| state.book.ask(wanted, now));
                }
                Event::News(ms) => {
                    let answer = there.trouble().map(|()| there.view());
                    state.viewed(answer, now - Duration::from_millis(ms), now);
                }
                Event::Port(number) => {
                    there.fresh += 1;
                    there.ports.insert(format!("v{number}"), there.fresh);
                }
                Event::Replace(number) => {
                    touched = true;
                    if let Some(path) = there.paths.get_mut(&format!("v{number}>b")) {
                        path.request.rate = 1000;
                    }
                }
            }
            for _ in 0..3 {
                now += step(&mut state, &mut there, now);
                there.expire(now);
                for name in promised(&state, &there, now) {
                    let path = there.paths.get(&name);
                    let pair = there.ports[&name[..2]];
                    let rate = state.book.entries()[&name].wanted.terms.rate.bits();
                    let is_there =
                        path.is_some_and(|path| (path.request.key.udp().unwrap().source_port, path.request.rate) == (pair, rate));
                    prop_assert!(touched || is_there, "{} is promised, and is {:?}", name, path);
                }
            }
        }
        there.mood = 0;
        let end = now + Duration::from_secs(120);
        let mut steps = 0;
        while now < end {
            now += step(&mut state, &mut there, now);
            steps += 1;
            prop_assert!(steps < 2000, "it asks without end");
        }
        prop_assert!(there.registered.is_some() && state.trouble.is_none());
        let names: Vec<&String> = state.book.entries().keys().collect();
        prop_assert_eq!(there.paths.keys().collect::<Vec<_>>(), names.clone());
        prop_assert!(promised(&state, &there, now).iter().eq(names));
        for (name, entry) in state.book.entries() {
            prop_assert!(matches!(entry.standing, Standing::Granted(_)), "{}: {:?}", name, entry.standing);
            prop_assert_eq!(there.paths[name].request.rate, entry.wanted.terms.rate.bits());
        }
        prop_assert_eq!(state.book.leaving().count(), 0);
    }
}
