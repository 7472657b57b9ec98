//! An agent whose switch place observes made-up ports and counters, and changes nothing.

use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use tidegate_agent::fuzzing::Scene;
use tidegate_contract::{Attach, Vnic};
use tidegate_evidence::FrontEnds;
use tidegate_place::{Capabilities, Observed, ObservedVnic, Place, PlaceError, Plan, Refusal, Wanted};
use tidegate_place_switch::{Facts, SwitchAction, evidence, plan};
use tidegate_switch::control::PortStatus;
use tidegate_switch::stats::Reader;

/// Contracts of the vNICs that the statistics begin with.
const CONTRACTS: &str = r#"
[vnic.a]
attach   = { vhost-user = "/run/a.sock" }
mac      = "52:54:00:00:00:01"
segment  = 1
tx       = { max = "100mbit", burst = "4kB" }
deadline = "1ms"
to       = ["b"]

[vnic.b]
attach   = { vhost-user = "/run/b.sock" }
mac      = "52:54:00:00:00:02"
segment  = 1
rx       = { max = "1gbit" }
"#;

struct SaidPlace(Arc<Mutex<Observed>>);

impl Place for SaidPlace {
    type Action = SwitchAction;
    type Facts = Facts;

    fn name(&self) -> &'static str {
        "switch"
    }

    fn unit(&self) -> &'static str {
        "tidegate-switch"
    }

    fn capabilities(&self, _: &Attach) -> Option<Capabilities> {
        Some(Capabilities { deadline: true, min: true, uplink: true, notes: vec![] })
    }

    fn notes(&self, _: &Vnic) -> Vec<String> {
        vec![]
    }

    fn plan(
        &self,
        wanted: &Wanted<'_>,
        observed: &Observed,
        facts: &Facts,
    ) -> Result<Plan<SwitchAction>, Vec<Refusal>> {
        plan(wanted, observed, facts)
    }

    fn prepare(&mut self, _: &[&SwitchAction]) -> Result<(), PlaceError> {
        Ok(())
    }

    fn apply(&mut self, _: &SwitchAction) -> Result<(), PlaceError> {
        Ok(())
    }

    fn accept(&mut self, _: &[Vnic]) {}

    fn observe(&mut self, _: &[Vnic]) -> Result<(Observed, Facts), PlaceError> {
        Ok((lock(&self.0).clone(), Facts::default()))
    }

    fn recorded(&self) -> Vec<Vnic> {
        vec![]
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

static SCENE: LazyLock<Mutex<(Scene, Arc<Mutex<Observed>>)>> = LazyLock::new(|| {
    let said = Arc::new(Mutex::new(Observed::nothing("fuzz")));
    Mutex::new((Scene::new(Box::new(SaidPlace(Arc::clone(&said))), CONTRACTS), said))
});

/// Looks at these ports and counters, plans with them, and shows them.
///
/// # Panics
/// Where the agent would.
pub fn see(ports: &[PortStatus], reader: &Reader) {
    let (scene, said) = &mut *lock(&SCENE);
    let mut observed = Observed { evidence: evidence(reader), ..Observed::nothing("fuzz") };
    for port in ports {
        let front_ends = FrontEnds {
            last_error: port.last_error.clone(),
            thrown_out: port.thrown_out.clone(),
            held: port.held.clone(),
            ..FrontEnds::default()
        };
        let there = ObservedVnic { front_ends, ..ObservedVnic::of(&port.vnic, port.connection) };
        observed.vnics.insert(port.vnic.name.clone(), there);
    }
    *lock(said) = observed;
    scene.look();
}
