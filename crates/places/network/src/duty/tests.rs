//! Any sequence of answers: the registration is kept, everything is asked for in the end, nothing twice without need.

use super::*;
use crate::book::{Policy, Standing, WantedPath};
use proptest::{collection::vec, prelude::*};
use tidegate_contract::network_paths::PathTerms;
use tidegate_contract::{Bytes, Nanos, Rate};
use tidegate_controller_api::{PathState, Peer};

const LEASE: Duration = Duration::from_secs(3);

fn wanted(number: u64, rate: u64) -> WantedPath {
    let terms = PathTerms {
        vnic: format!("v{number}"),
        remote: "b".into(),
        peer: "h2".into(),
        uplink: "net0".into(),
        source: [192, 0, 2, 1].into(),
        target: [192, 0, 2, 2].into(),
        target_port: 4789,
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
    Registration { run: run.into(), uplinks: vec![], vnics: vec![], arrivals: vec![] }
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
    /// The controller forgets all.
    Forget,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => (0u64..4, 1u64..4).prop_map(|(n, rate)| Event::Want(n, rate)),
        1 => (0u64..4).prop_map(Event::Release),
        1 => any::<u8>().prop_map(|n| Event::Announce(n % 3)),
        4 => (0u64..2000).prop_map(Event::Pass),
        2 => (0u8..5).prop_map(Event::Mood),
        1 => Just(Event::Forget),
    ]
}

/// A controller by its answers.
#[derive(Default)]
struct There {
    mood: u8,
    registered: bool,
    paths: BTreeMap<String, Path>,
}

impl There {
    fn trouble(&self) -> Result<(), Trouble> {
        match self.mood {
            1 => Err(Trouble::Away("away".into())),
            2 => Err(Trouble::Busy(Duration::from_millis(700))),
            _ if !self.registered => Err(Trouble::NotFound("not registered".into())),
            _ => Ok(()),
        }
    }
}

/// Does what is due; returns how long to rest.
fn step(state: &mut State, there: &mut There, now: Instant) -> Duration {
    let mut duty = state.next(now);
    if let Duty::Rest(host) = duty {
        duty = match state.next_path(|_| Some(49_160), now) {
            Duty::Rest(paths) => Duty::Rest(host.min(paths)),
            other => other,
        };
    }
    match duty {
        Duty::Rest(time) => return time,
        Duty::Register(registration) => {
            there.registered |= !matches!(there.mood, 1 | 2);
            let answer = there.trouble().map(|()| News::of(view(&there.paths)));
            state.registered(*registration, answer, now, now);
        }
        Duty::Request(request) => {
            let answer = there.trouble().and_then(|()| match there.mood {
                3 => Err(Trouble::Refused(vec!["full".into()])),
                4 => Err(Trouble::Waiting(vec!["h2".into()])),
                _ => Ok(granted(&request)),
            });
            if let Ok(path) = &answer {
                there.paths.insert(path.name.clone(), path.clone());
            }
            state.answered(*request, answer, now);
        }
        Duty::Release(name) => {
            let answer = there.trouble().and_then(|()| match there.paths.remove(&name) {
                Some(_) => Ok(()),
                None => Err(Trouble::NotFound("no such path".into())),
            });
            state.released(&name, answer, now);
        }
        Duty::Report(misses) => {
            let answer = there.trouble();
            state.reported(&misses, answer, now);
        }
    }
    Duration::ZERO
}

proptest! {
    /// Whatever happened, a controller that answers has the registration and exactly the wanted paths soon, on their terms,
    /// and then there is nothing to do but to renew.
    #[test]
    fn all_is_as_wanted_in_the_end(events in vec(event(), 0..40)) {
        let mut now = Instant::now();
        let (mut state, mut there) = (State { host: "h1".into(), accepted: true, ..State::default() }, There::default());
        state.wanted = Some(registration("r0"));
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
                Event::Forget => {
                    there.registered = false;
                    there.paths.clear();
                }
            }
            for _ in 0..3 {
                now += step(&mut state, &mut there, now);
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
        prop_assert!(there.registered && state.trouble.is_none());
        let names: Vec<&String> = state.book.entries().keys().collect();
        prop_assert_eq!(there.paths.keys().collect::<Vec<_>>(), names);
        for (name, entry) in state.book.entries() {
            prop_assert!(matches!(entry.standing, Standing::Granted(_)), "{}: {:?}", name, entry.standing);
            prop_assert_eq!(there.paths[name].request.rate, entry.wanted.terms.rate.bits());
        }
        prop_assert_eq!(state.book.leaving().count(), 0);
    }
}
