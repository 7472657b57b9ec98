//! The agent with one place, without threads, to fuzz how it handles the answers and counters of a place.
//!
//! ```text
//!  place ─▶ reconciler: observe, repair, publish ─▶ board ─▶ JSON, metrics, why
//! ```

use crate::api::metrics;
use crate::board::why;
use crate::commands::Command;
use crate::reconciler::Reconciler;
use crate::store::Owner;
use crate::views::Last;
use tidegate_paths::Paths;
use tidegate_place::{Adopt, Installed};

/// An agent without threads.
pub struct Scene(Reconciler);

impl Scene {
    /// Makes an agent with `place`, and applies `contracts` (TOML).
    ///
    /// # Panics
    /// The contracts are not admissible, or there is no temporary folder.
    pub fn new(place: Box<dyn Installed>, contracts: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("tidegate-fuzz-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder for the state");
        let guests = Paths::new(&["/run".into()], &[]).expect("/run exists").guests;
        let mut reconciler = Reconciler::new(&folder, &folder, guests, vec![place]).expect("no state yet");
        reconciler.start();
        let (reply, mut applied) = tokio::sync::oneshot::channel();
        reconciler.carry_out(Command::Apply {
            text: contracts.into(),
            origin: "fuzz".into(),
            owner: Owner::Api,
            prune: false,
            adopt: Adopt::No,
            dry_run: false,
            reply,
        });
        applied.try_recv().expect("an answer").expect("they are admissible");
        let _ = std::fs::remove_dir_all(&folder);
        Self(reconciler)
    }

    /// Looks at the place, plans, and shows the state.
    ///
    /// # Panics
    /// If the agent would panic.
    pub fn look(&mut self) {
        self.0.carry_out(Command::Repair);
        let published = self.0.board().read();
        serde_json::to_string(&(&published.host, &published.vnics)).expect("any state can be written");
        let windows = self.0.windows();
        for view in published.vnics.values() {
            for view in [view.clone(), windows.view(view.clone(), Last::TenSeconds)] {
                let why = why::why(&published, &view);
                serde_json::to_string(&(&view, why)).expect("any state can be written");
            }
        }
        metrics::encode(published).expect("any numbers can be written");
    }
}
