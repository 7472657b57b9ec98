//! Replaces one switch by another, in this process.

use super::{PATIENCE, TestSwitch, contract};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_switch::control::Client;
use tidegate_switch::control::notes::{Change, Notes};
use tidegate_switch::server::ports::Connect;
use tidegate_switch::server::{Switch, replace, session};
use tidegate_switch::vhost_user::listener::Restored;
use tidegate_switch::vhost_user::saved::{Descriptors, SavedConnection};

pub fn control(host: &TestSwitch) -> PathBuf {
    let path = host.socket("control");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    host.switch.control.set(listener.try_clone().unwrap().into()).unwrap();
    let switch = host.switch.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            session::spawn(switch.clone(), stream);
        }
    });
    path
}

/// As `TestSwitch::until`, but works with a switch that has retired and no longer reports its ports.
#[track_caller]
pub fn until(mut done: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < end, "waited too long");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// What a subscriber of the control socket knows of the connections.
#[derive(Default)]
pub struct Known {
    pub connections: BTreeMap<String, (SavedConnection, u64)>,
    pub descriptors: Descriptors,
    pub gone: usize,
}

impl Known {
    pub fn hear(&mut self, notes: &mut Notes) {
        while let Ok(Some((note, descriptors))) = notes.try_next() {
            match note.change {
                Change::Descriptors(numbers) => self.descriptors.extend(numbers.into_iter().zip(descriptors)),
                Change::State { messages, saved } => {
                    self.connections.insert(note.vnic, (*saved, messages));
                }
                Change::Closed => {
                    self.gone += 1;
                    self.connections.remove(&note.vnic);
                }
                Change::Listener | Change::Tap => assert!(!descriptors.is_empty()),
            }
        }
    }

    pub fn wait(&mut self, notes: &mut Notes, done: impl Fn(&Self) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !done(self) {
            self.hear(notes);
            assert!(Instant::now() < end, "not told: {:?}", self.connections);
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

/// Restores the ports in `next` while the old switch stays retired, as if dead.
pub fn restore(next: &Arc<Switch>, path: &Path, contracts: &[String]) {
    let mut client = Client::connect(path).unwrap();
    let (_, counters, statistics) = client.hello().unwrap();
    let mut notes = client.subscribe().unwrap();
    let mut known = Known::default();
    known.wait(&mut notes, |known| known.connections.len() == contracts.len());
    let (retired, _control) = client.retire().unwrap();
    assert_eq!(retired.ports.len(), contracts.len());
    known.hear(&mut notes);
    next.inherit(&statistics).unwrap();
    next.set_host(retired.host).unwrap();
    for toml in contracts {
        let vnic = contract(toml);
        let (saved, messages) = known.connections.remove(&vnic.name).unwrap();
        assert_eq!(counters.messages(&vnic.name), Some(messages));
        let descriptors = saved.numbers().map(|n| (n, known.descriptors.remove(&n).unwrap())).collect();
        let restored = Restored { listener: None, saved, descriptors, gate: None };
        next.set_port(vnic, Connect::Restored(Box::new(restored))).unwrap();
    }
    // Dropping the client would let the old switch continue.
    std::mem::forget(client);
}

/// As `tidegate switch --replace`, without the last step, which would end this process.
pub fn upgrade(next: &Arc<Switch>, path: &std::path::Path) {
    let taken = replace::prepare(next, Client::connect(path).unwrap(), None).unwrap();
    let client = taken.start_traffic().unwrap();
    std::mem::forget(client);
}
