//! Figures of the last 10 s, minute and hour, apart from those since a port was made.
//!
//! ```text
//!  place ─ observed, twice a second ─▶ Windows::sample ─▶ a History for each vNIC: what was counted, in steps
//!                                                              │
//!  API, `?last=1m` ─▶ Windows::view ◀── the youngest steps, and what came since ──┘
//! ```
//!
//! The place's counters only grow, so a window is the sum of what they grew in its steps. It is kept in the agent's memory:
//! another agent begins anew, and says so. A vNIC that counts nothing costs a comparison a second.
//!
//! - `history`: the steps of one vNIC
//! - `delta`: what was counted in one step, and in several together
//! - `packed`: a histogram in few bytes

mod delta;
mod history;
mod packed;
#[cfg(test)]
mod tests;

use crate::views::{Began, Last, VnicView};
use history::History;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tidegate_place::Observed;

/// The histories of all vNICs, of each place. The reconciler writes, the API reads; the lock is held for one vNIC, or for
/// one place's samples, and never while anything is waited for.
#[derive(Clone, Debug, Default)]
pub struct Windows(Arc<Mutex<HashMap<&'static str, PlaceHistories>>>);

/// One place.
#[derive(Debug, Default)]
struct PlaceHistories {
    /// It was looked at.
    looked: bool,
    vnics: HashMap<String, History>,
}

impl Windows {
    /// Takes a sample of all that a place counts. A vNIC that is not there any more is forgotten.
    pub fn sample(&self, place: &'static str, observed: &Observed) {
        let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let place = places.entry(place).or_default();
        let (at, counted) = (observed.evidence.taken, &observed.evidence.vnics);
        // Of those that are new: the first look of this agent, or one that was made meanwhile.
        let began = if place.looked { Began::Counters } else { Began::Agent };
        place.looked = true;
        place.vnics.retain(|name, _| counted.contains_key(name));
        for (name, stats) in counted {
            let contract = observed.vnics.get(name).map(|vnic| &vnic.vnic);
            match place.vnics.get_mut(name) {
                Some(history) => history.sample(at, stats, contract),
                None => drop(place.vnics.insert(name.clone(), History::new(at, stats, contract, began))),
            }
        }
    }

    /// A vNIC with the figures of the last of time in place of those since its port was made. One of which nothing is
    /// known stays as it is.
    pub fn view(&self, mut view: VnicView, last: Last) -> VnicView {
        if view.stats.is_none() {
            return view;
        }
        let places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let history = places.get(view.place.as_str()).and_then(|place| place.vnics.get(&view.name));
        let figures = history.map(|history| history.window(last));
        drop(places);
        // One that went meanwhile has none.
        (view.window, view.stats) = figures.unzip();
        // Those are since the port was made.
        view.figures.clear();
        view
    }
}
