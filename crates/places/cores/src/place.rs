//! The place, as the agent knows it.

use crate::action::CoresAction;
use crate::keep_off::KeepOff;
use crate::kept::Kept;
use crate::plan::{self, Facts};
use crate::planner::Planner;
use crate::question::Considered;
use crate::sight::Sights;
use crate::watched::Watched;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use tidegate_contract::{Attach, Vnic};
use tidegate_cores::problem::Problem;
use tidegate_durable::DurableError;
use tidegate_paths::Roots;
use tidegate_place::{
    Capabilities, Installation, Observed, Place, PlaceError, Plan, Refusal, Site, Wanted,
};

/// The CPUs of the host, and the work on them.
pub struct CoresPlace {
    off: Option<KeepOff>,
    kept: Kept,
    sights: Sights,
    watched: Arc<Watched>,
    planner: Planner,
    considered: Option<(Arc<Problem>, Instant)>,
}

/// How the place works.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Work that is kept off the CPUs of real-time workers without a plan; `None` leaves their settings alone.
    pub own_cpus: Option<KeepOff>,
}

impl CoresPlace {
    /// Makes the place; its record is in the folder `state`. Contracts name namespaces below `namespaces`. `wake` is called when a
    /// plan is ready. The second value describes damage.
    ///
    /// # Errors
    /// The record cannot be read, or a newer release wrote it.
    pub fn new(
        options: &Options,
        state: &Path,
        namespaces: Roots,
        wake: Arc<dyn Fn() + Send + Sync>,
    ) -> Result<(Self, Option<String>), DurableError> {
        let off = options.own_cpus;
        let (kept, damage) = Kept::new(state, off, namespaces)?;
        // The agent before this one died while frames flowed.
        let sights = Sights::new(kept.keeps_awake().then(Instant::now));
        let planner = Planner::new(solve, wake);
        let place = Self { off, kept, sights, watched: Arc::default(), planner, considered: None };
        Ok((place, damage))
    }
}

/// Installs the place.
///
/// # Errors
/// As [`CoresPlace::new`].
pub fn install(site: &Site<'_>, options: &Options) -> Result<Installation, DurableError> {
    let namespaces = site.paths.namespaces.clone();
    let (place, damage) = CoresPlace::new(options, site.state, namespaces, site.wake.clone())?;
    Ok(Installation::new(place, "state of CPUs", damage))
}

impl Place for CoresPlace {
    type Action = CoresAction;
    type Facts = Facts;

    fn name(&self) -> &'static str {
        "cores"
    }

    fn unit(&self) -> &'static str {
        tidegate_place::AGENT
    }

    /// None: no vNIC is attached here.
    fn capabilities(&self, _: &Attach) -> Option<Capabilities> {
        None
    }

    fn notes(&self, _: &Vnic) -> Vec<String> {
        vec![]
    }

    fn plan(&self, wanted: &Wanted<'_>, _: &Observed, facts: &Facts) -> Result<Plan<CoresAction>, Vec<Refusal>> {
        Ok(plan::plan(wanted, facts))
    }

    /// Does nothing: each setting is on record before it is touched.
    fn prepare(&mut self, _: &[&CoresAction]) -> Result<(), PlaceError> {
        Ok(())
    }

    fn apply(&mut self, action: &CoresAction) -> Result<(), PlaceError> {
        match action {
            CoresAction::See(sight) => self.sights.see(Instant::now(), *sight),
            CoresAction::Watch(watched) => self.watched = Arc::clone(watched),
            CoresAction::Consider(problem) => {
                self.considered = Some((Arc::clone(problem), Instant::now()));
                self.planner.ask(Arc::clone(problem));
            }
            // A setting that fails is reported, and tried again later: it undoes no change.
            CoresAction::Keep(target) => self.kept.apply(target),
        }
        Ok(())
    }

    fn accept(&mut self, _: &[Vnic]) {}

    fn observe(&mut self, _: &[Vnic]) -> Result<(Observed, Facts), PlaceError> {
        let now = Instant::now();
        let considered = self.considered.as_ref().map(|(problem, at)| Considered {
            problem: Arc::clone(problem),
            ago: now.saturating_duration_since(*at),
            open: self.planner.is_busy(),
        });
        let facts = Facts {
            off: self.off,
            machine: machine(),
            seen: self.sights.last(),
            flows: self.sights.flows(now),
            silent: self.sights.silent(now),
            settled: self.kept.settled(now),
            watched: Arc::clone(&self.watched),
            considered,
            planned: self.planner.last(),
            ..Facts::default()
        };
        let observed = Observed {
            own_cpus: self.kept.view().clone(),
            directions: self.kept.target().directions.clone(),
            ..Observed::nothing("the host's CPUs")
        };
        Ok((observed, facts))
    }

    fn recorded(&self) -> Vec<Vnic> {
        vec![]
    }
}

fn solve(_: &Problem) -> tidegate_cores::problem::Plan {
    tidegate_cores::problem::Plan::default()
}

fn machine() -> tidegate_cores::machine::Machine {
    use tidegate_cores::{cpus, machine};
    let list = |name: &str| {
        let text = std::fs::read_to_string(Path::new("/sys/devices/system/cpu").join(name));
        text.ok().and_then(|text| cpus::from_list(&text)).unwrap_or_default()
    };
    let isolated: cpus::Cpus = list("isolated").union(&list("nohz_full")).copied().collect();
    let cpu = |number: usize| {
        let core = u32::try_from(number).unwrap_or(u32::MAX);
        (number, machine::Cpu { core, isolated: isolated.contains(&number), ..Default::default() })
    };
    machine::Machine { cpus: list("online").into_iter().map(cpu).collect(), ..Default::default() }
}
