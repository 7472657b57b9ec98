//! Decides which clients have a place. Pure.
//!
//! ```text
//!  client of user u ─▶ has u less than EACH? ─▶ are there less than MOST? ─▶ it has a place
//!                          │ no                    │ no
//!                          ▼                       ▼
//!                 u's slowest client       the slowest client of the users that have
//!                          │               more than u, else u's   ─▶ goes, and makes room
//!                          └──── no client is slow ───┘ ─▶ refused
//! ```
//!
//! A client is slow while the agent waits for it: until its request is complete, and while it does not take its
//! answer. The slowest has kept the agent waiting longest. A client that waits for the agent keeps its place.

use std::collections::BTreeMap;
use std::time::Instant;

/// Most clients at one time, root's included: descriptors are left for ports and files.
pub const MOST: usize = 64;
/// Further places, for root only.
pub const RESERVE: usize = 16;
/// Most clients of one user; root may have all places.
pub const EACH: usize = 16;

/// The number of a client, in order of arrival.
pub type Id = u64;

/// All clients that have a place.
#[derive(Debug, Default)]
pub struct Room {
    clients: BTreeMap<Id, Client>,
    next: Id,
}

#[derive(Debug)]
struct Client {
    user: u32,
    /// When the agent began to wait for the client; `None` while the client waits for the agent.
    waiting_since: Option<Instant>,
}

/// The outcome for a new client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entrance {
    /// The new client has a place; the second client, if any, lost its place.
    Admitted(Id, Option<Id>),
    Full {
        /// Places taken.
        taken: usize,
        /// Whether the client's own user has them.
        by_user: bool,
    },
}

impl Room {
    /// Gives a new client of `user` a place, if there is one.
    pub fn enter(&mut self, user: u32, now: Instant) -> Entrance {
        let root = user == 0;
        let (own, all) = (self.of(user), self.clients.len());
        let evicted = if !root && own >= EACH {
            let Some(evicted) = self.longest_waited(|other| other == user) else {
                return Entrance::Full { taken: own, by_user: true };
            };
            Some(evicted)
        } else if all >= if root { MOST + RESERVE } else { MOST } {
            let counts: BTreeMap<u32, usize> =
                self.clients.values().fold(BTreeMap::new(), |mut counts, client| {
                    *counts.entry(client.user).or_default() += 1;
                    counts
                });
            let has_more = |other| other != 0 && other != user && (root || counts.get(&other) > Some(&own));
            let evicted =
                self.longest_waited(has_more).or_else(|| self.longest_waited(|other| other == user));
            let Some(evicted) = evicted else {
                return Entrance::Full { taken: all, by_user: false };
            };
            Some(evicted)
        } else {
            None
        };
        if let Some(evicted) = evicted {
            self.leave(evicted);
        }
        let id = self.next;
        self.next += 1;
        self.clients.insert(id, Client { user, waiting_since: Some(now) });
        Entrance::Admitted(id, evicted)
    }

    /// Notes that the agent waits for a client since `now`, or with `None` that the client waits for the agent. If
    /// the agent waits already, the earlier time counts.
    pub fn wait_for(&mut self, id: Id, now: Option<Instant>) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.waiting_since = now.map(|now| client.waiting_since.unwrap_or(now));
        }
    }

    pub fn leave(&mut self, id: Id) {
        self.clients.remove(&id);
    }

    fn of(&self, user: u32) -> usize {
        self.clients.values().filter(|client| client.user == user).count()
    }

    fn longest_waited(&self, of: impl Fn(u32) -> bool) -> Option<Id> {
        let waited = self.clients.iter().filter(|(_, client)| of(client.user));
        let waited = waited.filter_map(|(id, client)| Some((client.waiting_since?, *id)));
        waited.min().map(|(_, id)| id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    fn admit(room: &mut Room, user: u32, now: Instant) -> (Id, Option<Id>) {
        match room.enter(user, now) {
            Entrance::Admitted(id, evicted) => (id, evicted),
            full => panic!("{full:?}"),
        }
    }

    #[test]
    fn the_client_that_was_waited_for_longest_makes_room() {
        let (mut room, start) = (Room::default(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        let ids: Vec<Id> = (0..EACH as u64).map(|n| admit(&mut room, 7, at(n)).0).collect();
        // The first has asked and waits; the second too, and then it does not take its answer.
        room.wait_for(ids[0], None);
        room.wait_for(ids[1], None);
        room.wait_for(ids[1], Some(at(100)));
        room.wait_for(ids[1], Some(at(200)));
        assert_eq!(admit(&mut room, 7, at(101)).1, Some(ids[2]));
        for id in &ids[3..] {
            room.wait_for(*id, None);
        }
        let (last, goes) = admit(&mut room, 7, at(102));
        assert_eq!(goes, Some(ids[1]), "waited for since 100 ms, before the two that came then");
        room.wait_for(last, None);
        assert_eq!(admit(&mut room, 8, at(103)).1, None);
        let (only, goes) = admit(&mut room, 7, at(104));
        assert!(goes.is_some());
        room.wait_for(only, None);
        assert_eq!(room.enter(7, at(105)), Entrance::Full { taken: EACH, by_user: true });
        room.leave(ids[0]);
        assert_eq!(admit(&mut room, 7, at(106)).1, None);
    }

    #[test]
    fn places_are_left_for_root() {
        let (mut room, now) = (Room::default(), Instant::now());
        let busy = |room: &mut Room, user, count: usize| {
            for _ in 0..count {
                let (id, _) = admit(room, user, now);
                room.wait_for(id, None);
            }
        };
        (1..=4).for_each(|user| busy(&mut room, user, EACH));
        assert_eq!(room.enter(5, now), Entrance::Full { taken: MOST, by_user: false });
        busy(&mut room, 0, RESERVE);
        assert_eq!(room.enter(0, now), Entrance::Full { taken: MOST + RESERVE, by_user: false });
    }

    #[test]
    fn a_user_with_many_clients_takes_no_place_of_a_user_with_one() {
        let (mut room, now) = (Room::default(), Instant::now());
        let (first, _) = admit(&mut room, 9, now);
        let all: Vec<Id> =
            (1..=4).flat_map(|user| vec![user; EACH]).map(|user| admit(&mut room, user, now).0).collect();
        // The last client took no place of the user with a single client.
        assert!(all.len() == 4 * EACH && room.clients.contains_key(&first));
        let (_, goes) = admit(&mut room, 9, now);
        assert!(goes.is_some_and(|goes| goes != first));
    }

    proptest! {
        #[test]
        fn the_room_never_has_more_clients_than_places(steps in prop::collection::vec((0u32..8, 0u8..4, 0u64..100), 0..600)) {
            let (mut room, start) = (Room::default(), Instant::now());
            for (n, (user, what, which)) in steps.into_iter().enumerate() {
                let now = start + Duration::from_millis(n as u64);
                let id = room.next.saturating_sub(which);
                match what {
                    0 => room.wait_for(id, None),
                    1 => room.leave(id),
                    _ => {
                        let before = room.clients.len();
                        let waited = room.clients.values().any(|c| c.user == user && c.waiting_since.is_some());
                        match room.enter(user, now) {
                            Entrance::Admitted(id, goes) => {
                                prop_assert!(room.clients.contains_key(&id));
                                prop_assert_eq!(room.clients.len(), before + usize::from(goes.is_none()));
                            }
                            Entrance::Full { .. } => prop_assert!(!waited, "its own could have gone"),
                        }
                    }
                }
                prop_assert!(room.clients.len() <= MOST + RESERVE);
                let others = room.clients.values().filter(|c| c.user != 0).count();
                prop_assert!(others <= MOST);
                (1..8).for_each(|user| assert!(room.of(user) <= EACH));
            }
        }
    }
}
