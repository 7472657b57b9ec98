//! What the service manager is told as long as the agent turns: without it, it ends this process and starts another one.
//!
//! ```text
//!  reconciler ─ asks a place, gets its answer ─▶ Pulse ─▶ feed, on the API's thread ─▶ WATCHDOG=1
//! ```
//!
//! So it hears of us while both threads turn: the reconciler asks every place twice a second.

use crate::place::{Action, Capabilities, Capture, Observed, Place, PlaceError, Refusal, Wanted};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tidegate_contract::{Attach, Vnic};
use tidegate_service::Notifier;

/// How often it is told, within the time that it waits.
const TIMES: u32 = 4;

/// Counts what the reconciler has done.
#[derive(Clone, Debug, Default)]
pub struct Pulse(Arc<AtomicU64>);

impl Pulse {
    fn beat(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A place, each of whose answers is a beat of the pulse.
pub struct Felt {
    /// The place.
    pub place: Box<dyn Place>,
    /// Of the reconciler that asks it.
    pub pulse: Pulse,
}

impl Place for Felt {
    fn name(&self) -> &'static str {
        self.place.name()
    }

    fn capabilities(&self, attach: &Attach) -> Option<Capabilities> {
        self.place.capabilities(attach)
    }

    fn notes(&self, vnic: &Vnic) -> Vec<String> {
        self.place.notes(vnic)
    }

    fn plan(&self, wanted: &Wanted<'_>, observed: &Observed) -> Result<Vec<Action>, Vec<Refusal>> {
        let planned = self.place.plan(wanted, observed);
        self.pulse.beat();
        planned
    }

    fn prepare(&mut self, actions: &[&Action]) -> Result<(), PlaceError> {
        let prepared = self.place.prepare(actions);
        self.pulse.beat();
        prepared
    }

    fn apply(&mut self, action: &Action) -> Result<(), PlaceError> {
        let applied = self.place.apply(action);
        self.pulse.beat();
        applied
    }

    fn observe(&mut self, coming: &[Vnic]) -> Result<Observed, PlaceError> {
        let observed = self.place.observe(coming);
        self.pulse.beat();
        observed
    }

    fn capture(&self) -> Option<Arc<dyn Capture>> {
        self.place.capture()
    }
}

/// Tells the service manager within each `interval` that the agent is alive, as long as it is. To be polled by the
/// thread that answers the API.
pub async fn feed(manager: Notifier, interval: Duration, pulse: Pulse) {
    let mut known = None;
    loop {
        let count = Some(pulse.count());
        if known != count {
            known = count;
            if let Err(error) = manager.alive() {
                tracing::warn!(%error, "the service manager cannot be told that the agent is alive");
            }
        }
        tokio::time::sleep(interval / TIMES).await;
    }
}
