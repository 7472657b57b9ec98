//! Events for the clients that listen: bounded, and no sender waits.
//!
//! ```text
//!  board ─ changes ─▶ Events ─┬▶ queue of a client ─▶ /v1/events
//!                             └▶ full: counted, and told with the next event
//! ```

use crate::views::EventView;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// Most clients: more than one user may have connections.
pub const CLIENTS: usize = 64;
/// Events that wait for a client.
pub const QUEUE: usize = 256;

/// The clients. Clones are the same ones.
#[derive(Clone, Debug, Default)]
pub struct Events(Arc<Mutex<Vec<Client>>>);

#[derive(Debug)]
struct Client {
    queue: Sender<EventView>,
    /// Events that had no room since the last one that had.
    lost: u64,
}

impl Events {
    /// Returns the events from now on; `None` if there are as many clients as may be.
    pub fn listen(&self) -> Option<Receiver<EventView>> {
        let mut clients = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        clients.retain(|client| !client.queue.is_closed());
        if clients.len() >= CLIENTS {
            return None;
        }
        let (queue, events) = channel(QUEUE);
        clients.push(Client { queue, lost: 0 });
        Some(events)
    }

    /// Sends the events that `make` returns, if a client listens.
    pub fn send(&self, make: impl FnOnce() -> Vec<EventView>) {
        let mut clients = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        clients.retain(|client| !client.queue.is_closed());
        if clients.is_empty() {
            return;
        }
        for event in make() {
            for Client { queue, lost } in clients.iter_mut() {
                match queue.try_send(EventView { lost: *lost, ..event.clone() }) {
                    Ok(()) => *lost = 0,
                    Err(_) => *lost += 1,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::views::EventKind;

    fn event(at: u64) -> EventView {
        let kind = EventKind::Drift;
        EventView { at, kind, about: String::new(), what: String::new(), miss: None, far_miss: None, lost: 0 }
    }

    #[test]
    fn a_slow_client_is_told_how_many_events_it_lost() {
        let events = Events::default();
        let (mut slow, mut fast) = (events.listen().unwrap(), events.listen().unwrap());
        for at in 0..QUEUE as u64 + 3 {
            events.send(|| vec![event(at)]);
            assert_eq!(fast.try_recv().unwrap(), event(at));
        }
        assert_eq!(slow.try_recv().unwrap(), event(0));
        events.send(|| vec![event(999)]);
        let rest: Vec<_> = std::iter::from_fn(|| slow.try_recv().ok()).collect();
        assert_eq!(rest.len(), QUEUE);
        assert_eq!(rest[QUEUE - 1], EventView { lost: 3, ..event(999) });
        assert!(rest[..QUEUE - 1].iter().all(|event| event.lost == 0));
    }

    #[test]
    fn clients_are_few_and_one_that_left_makes_room() {
        let events = Events::default();
        events.send(|| panic!("no client listens"));
        let mut clients: Vec<_> = (0..CLIENTS).map(|_| events.listen().unwrap()).collect();
        assert!(events.listen().is_none());
        clients.pop();
        assert!(events.listen().is_some());
    }
}
