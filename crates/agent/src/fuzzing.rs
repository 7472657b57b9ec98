//! The agent with a place that says what it is told to: for fuzzing what it does with a switch's words and numbers.
//!
//! ```text
//!  ports, statistics ─▶ Said ─▶ reconciler: observe, repair, publish ─▶ board ─▶ JSON, metrics, why
//! ```

use crate::api::metrics;
use crate::api::types::{Adopt, Last};
use crate::paths::Paths;
use crate::place::{Action, Capabilities, Observed, ObservedVnic, Place, PlaceError, Refusal, Wanted};
use crate::reconciler::{Command, Reconciler, read, why};
use crate::store::Owner;
use crate::switch_place::{check_left, evidence, plan};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use tidegate_contract::Attach;
use tidegate_switch::control::PortStatus;
use tidegate_switch::control::told::Told;
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

/// A place that is as it is said to be, and does as it is asked.
struct Said(Arc<Mutex<Observed>>);

impl Place for Said {
    fn name(&self) -> &'static str {
        "switch"
    }

    fn capabilities(&self, _attach: &Attach) -> Option<Capabilities> {
        Some(Capabilities { deadline: true, min: true, uplink: false, notes: vec![] })
    }

    fn plan(&self, wanted: &Wanted<'_>, observed: &Observed) -> Result<Vec<Action>, Vec<Refusal>> {
        plan(wanted, observed)
    }

    fn apply(&mut self, _action: &Action) -> Result<(), PlaceError> {
        Ok(())
    }

    fn observe(&mut self, _coming: &[tidegate_contract::Vnic]) -> Result<Observed, PlaceError> {
        Ok(lock(&self.0).clone())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Scene {
    reconciler: Reconciler,
    said: Arc<Mutex<Observed>>,
}

static SCENE: LazyLock<Mutex<Scene>> = LazyLock::new(|| {
    let folder = std::env::temp_dir().join(format!("tidegate-fuzz-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for the state");
    let said = Arc::new(Mutex::new(Observed::nothing("fuzz")));
    let places: Vec<Box<dyn Place>> = vec![Box::new(Said(Arc::clone(&said)))];
    let guests = Paths::new(&["/run".into()], &[]).expect("/run is there").guests;
    let mut reconciler = Reconciler::new(&folder, &folder, guests, places).expect("no state yet");
    reconciler.start();
    let (reply, mut applied) = tokio::sync::oneshot::channel();
    reconciler.obey(Command::Apply {
        text: CONTRACTS.into(),
        origin: "fuzz".into(),
        owner: Owner::Api,
        prune: false,
        adopt: Adopt::No,
        dry_run: false,
        reply,
    });
    applied.try_recv().expect("it was answered").expect("they are admissible");
    let _ = std::fs::remove_dir_all(&folder);
    Mutex::new(Scene { reconciler, said })
});

/// Looks at ports and counters as they are said to be, plans with them, and shows them.
///
/// # Panics
/// Where the agent would.
pub fn see(ports: &[PortStatus], reader: &Reader) {
    let scene = &mut *lock(&SCENE);
    let mut observed = Observed { evidence: evidence(reader), ..Observed::nothing("fuzz") };
    for port in ports {
        let there = ObservedVnic {
            last_error: port.last_error.clone(),
            thrown_out: port.thrown_out.clone(),
            held: port.held.clone(),
            ..ObservedVnic::of(&port.vnic, port.connection)
        };
        observed.vnics.insert(port.vnic.name.clone(), there);
    }
    *lock(&scene.said) = observed;
    scene.reconciler.obey(Command::Repair);
    let board = scene.reconciler.board();
    let published = read(&board);
    serde_json::to_string(&(&published.host, &published.vnics)).expect("whatever it is, it is written");
    let windows = scene.reconciler.windows();
    for view in published.vnics.values() {
        for view in [view.clone(), windows.view(view.clone(), Last::TenSeconds)] {
            let why = why::why(&published, &view);
            serde_json::to_string(&(&view, why)).expect("whatever it is, it is written");
        }
    }
    metrics::encode(published).expect("whatever the numbers are, they are written");
}

/// Checks what was told as it is checked before another switch goes on with it.
///
/// # Panics
/// Where the agent would.
pub fn go_on(told: Told) {
    check_left(told);
}
