//! The thread that gives the agent what the controller tells: the agent waits for its places, so no place waits for it.
//!
//! ```text
//!  place ── give ──▶ Shared (locked) ── newest Offer ──▶ thread ──▶ agent
//!        ◀─ taken ──      ▲──────────── Taken ◀───────────┘ again after a while, if not all came into force
//! ```

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tidegate_place::{Offer, Offers, Taken};

/// Pause before the same offer is made again: what stood in its way may be gone.
const AGAIN: Duration = Duration::from_secs(10);

/// Gives offers. Dropped, its thread ends by itself.
#[derive(Default)]
pub struct Offering {
    shared: Arc<Shared>,
    is_running: bool,
}

/// What was offered, and what became of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offered {
    /// The newest offer.
    pub newest: Option<Offer>,
    /// What became of the last one that the agent saw.
    pub taken: Taken,
    /// Whether that was the newest one.
    pub is_taken: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    news: Condvar,
}

#[derive(Default)]
struct State {
    /// The newest offer.
    newest: Option<Offer>,
    /// The agent is still to see it.
    is_open: bool,
    /// What became of the last one that the agent saw.
    taken: Taken,
    /// That was the newest one.
    is_taken: bool,
    ends: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Offering {
    /// Gives an offer in place of the one before.
    ///
    /// # Errors
    /// There is no thread.
    pub fn give(&mut self, offer: Offer, offers: &Offers) -> std::io::Result<()> {
        if !self.is_running {
            let (shared, offers) = (self.shared.clone(), offers.clone());
            std::thread::Builder::new().name("remotes".into()).spawn(move || work(&shared, &offers))?;
            self.is_running = true;
        }
        let mut state = self.shared.lock();
        (state.newest, state.is_open, state.is_taken) = (Some(offer), true, false);
        drop(state);
        self.shared.news.notify_all();
        Ok(())
    }

    /// Forgets what was given: another controller is asked, or none.
    pub fn forget(&self) {
        let mut state = self.shared.lock();
        *state = State { ends: state.ends, ..State::default() };
    }

    /// Returns what is known of the newest offer.
    pub fn offered(&self) -> Offered {
        let State { newest, taken, is_taken, .. } = &*self.shared.lock();
        Offered { newest: newest.clone(), taken: taken.clone(), is_taken: *is_taken }
    }
}

impl Drop for Offering {
    fn drop(&mut self) {
        self.shared.lock().ends = true;
        self.shared.news.notify_all();
    }
}

fn work(shared: &Shared, offers: &Offers) {
    let mut state = shared.lock();
    while !state.ends {
        let Some(offer) = state.newest.clone().filter(|_| state.is_open) else {
            let is_partial = !state.taken.declined.is_empty() && state.newest.is_some();
            if is_partial {
                let (woken, waited) =
                    shared.news.wait_timeout(state, AGAIN).unwrap_or_else(PoisonError::into_inner);
                state = woken;
                state.is_open |= waited.timed_out();
            } else {
                state = shared.news.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            continue;
        };
        state.is_open = false;
        drop(state);
        let answer = offers.offer(offer.clone());
        state = shared.lock();
        // Another one has taken its place.
        if state.newest.as_ref() != Some(&offer) {
            continue;
        }
        match answer {
            Ok(taken) => {
                let new = taken.declined.iter().filter(|(what, _)| !state.taken.declined.contains_key(*what));
                for (what, why) in new {
                    tracing::warn!("{what} of the network's controller is not in force as it is told: {why}");
                }
                (state.taken, state.is_taken) = (taken, true);
            }
            Err(why) => {
                tracing::warn!("what the network's controller tells is not in force yet: {why}");
                state = shared.news.wait_timeout(state, AGAIN).unwrap_or_else(PoisonError::into_inner).0;
                state.is_open = true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    fn offer(host: &str) -> Offer {
        Offer { host: host.into(), is_complete: true, ..Offer::default() }
    }

    #[test]
    fn the_agent_sees_each_offer_once() {
        let (tell, told) = mpsc::channel();
        let offers = Offers::new(move |offer: Offer| {
            let declined = [(format!("[remote.{}]", offer.host), "no".to_owned())].into();
            tell.send(offer.host).expect("the test waits");
            Ok(Taken { declined, ..Taken::default() })
        });
        let mut offering = Offering::default();
        for host in ["h1", "h2"] {
            offering.give(offer(host), &offers).expect("a thread");
            assert_eq!(told.recv().expect("an offer"), host);
        }
        let is_taken = || offering.offered().taken.declined.contains_key("[remote.h2]");
        while !is_taken() {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(offering.offered().newest, Some(offer("h2")));
        offering.forget();
        assert_eq!(offering.offered(), Offered::default());
    }
}
