//! The state that a switch has sent for its successor; bounded.
//!
//! ```text
//!  Note + descriptors ──▶ Handover: vNIC ─▶ connection (what was said, its descriptors), listener or tap
//!                            └ more than a switch can have: an error, and what was known of that vNIC is forgotten
//! ```

use super::notes::{Change, Note};
use crate::capacity::VNICS;
use crate::vhost_user::saved::{Number, SavedConnection};
use std::collections::{BTreeMap, HashMap};
use tidegate_contract::Vnic;
use tidegate_service::foreign::Foreign;

/// Most descriptors of one vNIC: three for each of 256 queues, and memory.
const MOST: usize = 1024;
/// Most queue pairs of a tap.
const QUEUES: usize = 256;

/// A front end's connection.
#[derive(Debug)]
pub struct Connected {
    /// State of the connection.
    pub saved: SavedConnection,
    /// Descriptors of the connection.
    pub descriptors: HashMap<Number, Foreign>,
    /// Number of messages after which the state holds.
    pub messages: u64,
}

/// The notes of one switch.
#[derive(Debug, Default)]
pub struct Handover {
    /// Connections of vNICs; `None` without a connection, or if it is unknown.
    pub connections: BTreeMap<String, Option<Connected>>,
    /// Listening sockets and taps.
    pub links: BTreeMap<String, Vec<Foreign>>,
    /// Descriptors of connections, before the note that needs them.
    coming: BTreeMap<String, HashMap<Number, Foreign>>,
}

/// A note that a correct switch does not send.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidNote {
    /// An invalid vNIC name.
    #[error("a note has an invalid vNIC name")]
    Name,
    /// More vNICs than a switch has.
    #[error("the notes name more than {VNICS} vNICs")]
    Vnics,
    /// The number of descriptors does not match the note.
    #[error(
        "vNIC {vnic}: a note came with {descriptors} descriptors, but needs another number of descriptors"
    )]
    Descriptors {
        /// The vNIC.
        vnic: String,
        /// Number of received descriptors.
        descriptors: usize,
    },
    /// More than a connection can have.
    #[error("vNIC {0}: the notes have more descriptors, queues or memory regions than a connection can have")]
    Connection(String),
    /// A descriptor of the connection is missing.
    #[error("vNIC {vnic}: descriptor {number} is missing: the connection of the vNIC cannot continue")]
    Missing {
        /// The vNIC.
        vnic: String,
        /// The descriptor's number.
        number: Number,
    },
}

impl Handover {
    /// Processes a note. Unneeded descriptors are closed elsewhere.
    ///
    /// # Errors
    /// The note is invalid; the state of that connection is forgotten.
    pub fn note(&mut self, note: Note, descriptors: Vec<Foreign>) -> Result<(), InvalidNote> {
        let vnic = note.vnic;
        if !Vnic::is_name(&vnic) {
            return Err(InvalidNote::Name);
        }
        let known = self.connections.contains_key(&vnic)
            || self.coming.contains_key(&vnic)
            || self.links.contains_key(&vnic);
        if !known && self.connections.len().max(self.coming.len()).max(self.links.len()) >= VNICS {
            return Err(InvalidNote::Vnics);
        }
        let taken = self.take(&vnic, note.change, descriptors);
        if taken.is_err() {
            self.coming.remove(&vnic);
            self.connections.insert(vnic, None);
        }
        taken
    }

    /// Processes a note without its descriptors.
    ///
    /// # Errors
    /// The note had descriptors, or is invalid; all state of its vNIC is forgotten.
    pub fn note_without_descriptors(&mut self, note: Note) -> Result<(), InvalidNote> {
        let vnic = note.vnic.clone();
        let taken = self.note(note, vec![]);
        if taken.is_err() {
            self.links.remove(&vnic);
        }
        taken
    }

    fn take(&mut self, vnic: &str, change: Change, descriptors: Vec<Foreign>) -> Result<(), InvalidNote> {
        let wrong = InvalidNote::Descriptors { vnic: vnic.into(), descriptors: descriptors.len() };
        let expect = |is_so: bool| if is_so { Ok(()) } else { Err(wrong) };
        match change {
            Change::Descriptors(numbers) => {
                expect(numbers.len() == descriptors.len())?;
                let coming = self.coming.entry(vnic.into()).or_default();
                if coming.len() + numbers.len() > MOST {
                    return Err(InvalidNote::Connection(vnic.into()));
                }
                coming.extend(numbers.into_iter().zip(descriptors));
            }
            Change::State { messages, saved } => {
                expect(descriptors.is_empty())?;
                if !saved.is_possible() {
                    return Err(InvalidNote::Connection(vnic.into()));
                }
                let mut known = self.coming.remove(vnic).unwrap_or_default();
                if let Some(before) = self.connections.remove(vnic).flatten() {
                    known.extend(before.descriptors);
                }
                let mut needed = HashMap::new();
                for number in saved.numbers() {
                    match known.remove(&number) {
                        Some(fd) => drop(needed.insert(number, fd)),
                        None if needed.contains_key(&number) => {}
                        None => return Err(InvalidNote::Missing { vnic: vnic.into(), number }),
                    }
                }
                let connected = Connected { saved: *saved, descriptors: needed, messages };
                self.connections.insert(vnic.into(), Some(connected));
            }
            Change::Closed => {
                expect(descriptors.is_empty())?;
                self.coming.remove(vnic);
                self.connections.insert(vnic.into(), None);
            }
            Change::Listener => {
                expect(descriptors.len() == 1)?;
                self.links.insert(vnic.into(), descriptors);
            }
            Change::Tap => {
                expect((1..=QUEUES).contains(&descriptors.len()))?;
                self.links.insert(vnic.into(), descriptors);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tidegate_service::foreign::Budget;

    fn files(count: usize, budget: &Arc<Budget>) -> Vec<Foreign> {
        let null = std::fs::File::open("/dev/null").unwrap();
        (0..count).map(|_| Foreign::new(null.try_clone().unwrap().into(), budget)).collect()
    }

    fn note(vnic: &str, change: Change) -> Note {
        Note { vnic: vnic.into(), change }
    }

    fn said(stream: Number) -> Change {
        let saved = SavedConnection {
            stream,
            features: None,
            protocol_features: 0,
            regions: vec![],
            memory_is_alive: false,
            vrings: vec![],
            inflight: None,
            log: None,
        };
        Change::State { messages: 2, saved: Box::new(saved) }
    }

    #[test]
    fn a_connection_has_its_latest_state_and_the_descriptors_of_that_state() {
        let (mut handover, budget) = (Handover::default(), Budget::new(100));
        handover.note(note("a", Change::Descriptors(vec![1, 2])), files(2, &budget)).unwrap();
        handover.note(note("a", said(1)), vec![]).unwrap();
        let connected = handover.connections["a"].as_ref().unwrap();
        assert_eq!((connected.descriptors.len(), connected.messages), (1, 2));
        handover.note(note("a", said(1)), vec![]).unwrap();
        handover.note(note("b", Change::Closed), vec![]).unwrap();
        assert!(handover.connections["b"].is_none());
        // Descriptors that the last note did not need are gone.
        let missing = InvalidNote::Missing { vnic: "a".into(), number: 2 };
        assert_eq!(handover.note(note("a", said(2)), vec![]), Err(missing));
        assert!(handover.connections["a"].is_none());
    }

    #[test]
    fn a_note_without_its_descriptors_ends_the_earlier_state() {
        let (mut handover, budget) = (Handover::default(), Budget::new(100));
        for vnic in ["a", "b"] {
            handover.note(note(vnic, Change::Descriptors(vec![1])), files(1, &budget)).unwrap();
            handover.note(note(vnic, said(1)), vec![]).unwrap();
            handover.note(note(vnic, Change::Listener), files(1, &budget)).unwrap();
        }
        // The earlier descriptors are enough for this note.
        handover.note_without_descriptors(note("a", said(1))).unwrap();
        assert!(handover.connections["a"].is_some() && handover.links.contains_key("a"));
        handover.note_without_descriptors(note("a", Change::Descriptors(vec![2]))).unwrap_err();
        handover.note_without_descriptors(note("b", Change::Closed)).unwrap();
        assert!(handover.connections["a"].is_none() && !handover.links.contains_key("a"));
        assert!(handover.connections["b"].is_none() && handover.links.contains_key("b"));
    }

    #[test]
    fn more_than_a_switch_can_have_is_not_taken() {
        let (mut handover, budget) = (Handover::default(), Budget::new(10_000));
        assert_eq!(handover.note(note("../x", Change::Closed), vec![]), Err(InvalidNote::Name));
        for number in 0..VNICS {
            handover.note(note(&format!("v{number}"), Change::Closed), vec![]).unwrap();
        }
        assert_eq!(handover.note(note("more", Change::Closed), vec![]), Err(InvalidNote::Vnics));
        assert_eq!(handover.note(note("more", Change::Listener), files(1, &budget)), Err(InvalidNote::Vnics));
        for (change, count) in [
            (Change::Listener, 0),
            (Change::Listener, 2),
            (Change::Tap, 0),
            (Change::Descriptors(vec![1]), 2),
            (Change::Closed, 1),
            (said(1), 1),
        ] {
            assert!(
                handover.note(note("v1", change.clone()), files(count, &budget)).is_err(),
                "{change:?} with {count}"
            );
        }
        let numbers = |from: u64| Change::Descriptors((from..from + 250).collect());
        for from in 0..4 {
            handover.note(note("v2", numbers(250 * from)), files(250, &budget)).unwrap();
        }
        let more = handover.note(note("v2", numbers(1000)), files(250, &budget));
        assert_eq!(more, Err(InvalidNote::Connection("v2".into())));
        assert!(handover.coming.is_empty());
    }
}
