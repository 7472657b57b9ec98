//! Tells the service manager that the agent works. Without these messages the service manager restarts the agent.
//!
//! ```text
//!  reconciler ─ asks a place, gets its answer ─▶ Pulse ─▶ feed, on the API's thread ─▶ WATCHDOG=1
//! ```
//!
//! So both threads have to work: the reconciler asks every place twice a second.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tidegate_contract::{Attach, Vnic};
use tidegate_place::installed::{Look, Step};
use tidegate_place::{Capabilities, Installed, PlaceError, Plan, Refusal, Wanted};
use tidegate_service::Notifier;

/// Messages per watchdog interval of the service manager.
const TIMES: u32 = 4;

/// A counter of the answers that the reconciler got from places.
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

/// A place whose answers count in the pulse.
pub struct Watched {
    pub place: Box<dyn Installed>,
    pub pulse: Pulse,
}

impl Installed for Watched {
    fn name(&self) -> &'static str {
        self.place.name()
    }

    fn unit(&self) -> &'static str {
        self.place.unit()
    }

    fn capabilities(&self, attach: &Attach) -> Option<Capabilities> {
        self.place.capabilities(attach)
    }

    fn notes(&self, vnic: &Vnic) -> Vec<String> {
        self.place.notes(vnic)
    }

    fn plan(&self, wanted: &Wanted<'_>, look: &Look) -> Result<Plan<Step>, Vec<Refusal>> {
        let planned = self.place.plan(wanted, look);
        self.pulse.beat();
        planned
    }

    fn prepare(&mut self, steps: &[&Step]) -> Result<(), PlaceError> {
        let prepared = self.place.prepare(steps);
        self.pulse.beat();
        prepared
    }

    fn apply(&mut self, step: &Step) -> Result<(), PlaceError> {
        let applied = self.place.apply(step);
        self.pulse.beat();
        applied
    }

    fn accept(&mut self, contracts: &[Vnic]) {
        self.place.accept(contracts);
        self.pulse.beat();
    }

    fn observe(&mut self, coming: &[Vnic]) -> Result<Look, PlaceError> {
        let observed = self.place.observe(coming);
        self.pulse.beat();
        observed
    }

    fn recorded(&self) -> Vec<Vnic> {
        self.place.recorded()
    }
}

/// Tells the service manager that the agent is alive, at most four times per `interval`, as long as the pulse beats.
/// The thread that answers the API has to poll this.
pub async fn feed(manager: Notifier, interval: Duration, pulse: Pulse) {
    let mut known = None;
    loop {
        let count = Some(pulse.count());
        if known != count {
            known = count;
            if let Err(error) = manager.alive() {
                tracing::warn!(%error, "cannot notify the service manager that the agent is alive");
            }
        }
        tokio::time::sleep(interval / TIMES).await;
    }
}
