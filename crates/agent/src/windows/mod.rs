//! Figures of the last 10 s, minute and hour, apart from those since a port was made.
//!
//! ```text
//!  place ─ observed, twice a second ─▶ Windows::sample ─▶ a History for each vNIC: what was counted, in steps
//!                                                              │
//!  API, `?last=1m` ─▶ Windows::view ◀── the youngest steps, and what came since ──┘
//! ```
//!
//! The place's counters only grow, so a window is the sum of their growth in its steps. The histories are in the agent's
//! memory: a new agent begins anew, and says so. An idle vNIC costs a comparison a second.
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

/// The histories of all vNICs, by place. The reconciler writes, the API reads; the lock is held for one vNIC or one
/// place's samples, and never during a wait.
#[derive(Clone, Debug, Default)]
pub struct Windows(Arc<Mutex<HashMap<&'static str, PlaceHistories>>>);

#[derive(Debug, Default)]
struct PlaceHistories {
    /// Whether this agent has looked at the place.
    has_samples: bool,
    vnics: HashMap<String, History>,
}

impl Windows {
    /// Takes a sample of all vNICs that a place counts, and forgets vNICs that are gone.
    pub fn sample(&self, place: &'static str, observed: &Observed) {
        let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let place = places.entry(place).or_default();
        let (at, counted) = (observed.evidence.taken, &observed.evidence.vnics);
        // A new vNIC: seen at this agent's first look, or made since the last one.
        let began = if place.has_samples { Began::Counters } else { Began::Agent };
        place.has_samples = true;
        place.vnics.retain(|name, _| counted.contains_key(name));
        for (name, stats) in counted {
            let contract = observed.vnics.get(name).map(|vnic| &vnic.vnic);
            match place.vnics.get_mut(name) {
                Some(history) => history.sample(at, stats, contract),
                None => drop(place.vnics.insert(name.clone(), History::new(at, stats, contract, began))),
            }
        }
    }

    /// Returns a vNIC with the figures of a window in place of those since its port was made. A vNIC without figures is
    /// unchanged.
    pub fn view(&self, mut view: VnicView, last: Last) -> VnicView {
        if view.stats.is_none() {
            return view;
        }
        let places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let history = places.get(view.place.as_str()).and_then(|place| place.vnics.get(&view.name));
        let figures = history.map(|history| history.window(last));
        drop(places);
        // A vNIC that is gone by now has none.
        (view.window, view.stats) = figures.unzip();
        // Counted since the port was made.
        view.figures.clear();
        view
    }
}
