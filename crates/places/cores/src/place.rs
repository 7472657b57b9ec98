//! The place, as the agent knows it.

use crate::action::CoresAction;
use crate::background::Background;
use crate::calibrate::file::{self, Current};
use crate::discover::Discovery;
use crate::facts::{Asked, Facts};
use crate::immovable::Immovable;
use crate::keep_off::KeepOff;
use crate::kept::Kept;
use crate::machine::topology;
use crate::placed;
use crate::plan;
use crate::planner::{self, Planned};
use crate::report::{self, Report};
use crate::roots::{self, Roots as Folders};
use crate::sight::Sights;
use crate::steered::steerer::Steerer;
use crate::watched::{Scope, Surveyed, Watched, survey};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use tidegate_contract::{Attach, Placement, Vnic};
use tidegate_cores::machine::Machine;
use tidegate_cores::problem::Problem;
use tidegate_cores::stage::Handle;
use tidegate_durable::{Damage, DurableError};
use tidegate_paths::Roots;
use tidegate_place::{Capabilities, Installation, Observed, Place, PlaceError, Plan, Refusal, Site, Wanted};

/// The CPUs of the host, and the work on them.
pub struct CoresPlace {
    started: Instant,
    off: Option<KeepOff>,
    kept: Kept,
    steerer: Steerer,
    sights: Sights,
    folders: Folders,
    /// The machine, and the list of CPUs that were online then.
    machine: (String, Machine),
    costs: Current,
    discovery: Background<Watched, Surveyed>,
    looked: Option<(Arc<Scope>, Instant)>,
    immovable: Immovable,
    planner: Background<Arc<Problem>, Planned>,
    considered: Option<(Arc<Problem>, Instant)>,
}

/// How the place works.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Work that is kept off the CPUs of real-time workers without a plan; `None` leaves their settings alone.
    pub own_cpus: Option<KeepOff>,
}

impl CoresPlace {
    /// Makes the place; its record is in the folder `state`. Contracts name namespaces below `namespaces`. A plan that is ready
    /// wakes nothing: the next look finds it, and one more would use up the agent's patience with a switch that answers slowly. The second value describes damaged records, each with the problem's name.
    ///
    /// # Errors
    /// The record cannot be read, or a newer release wrote it.
    pub fn new(
        options: &Options,
        state: &Path,
        namespaces: Roots,
    ) -> Result<(Self, Vec<Damage>), DurableError> {
        let off = options.own_cpus;
        let (kept, damage) = Kept::new(state, off, namespaces)?;
        let (steerer, further) = Steerer::new(state)?;
        let damage = damage.map(|what| ("state of CPUs", what)).into_iter().chain(further).collect();
        // The agent before this one died while frames flowed.
        let sights = Sights::new(kept.keeps_awake().then(Instant::now));
        let folders = Folders::default();
        let mut discovery = Discovery::new(folders.clone());
        let look = move |watched| survey(&mut discovery, watched);
        let place = Self {
            started: Instant::now(),
            off,
            kept,
            steerer,
            sights,
            folders,
            machine: Default::default(),
            costs: Current::new(state.join(file::NAME)),
            discovery: Background::new("look at CPUs", look),
            looked: None,
            immovable: Immovable::default(),
            planner: Background::new("plan of CPUs", planner::plan),
            considered: None,
        };
        Ok((place, damage))
    }

    /// Returns the CPUs and NICs: those of the last look at the host, read again if other CPUs are online since.
    fn machine(&mut self, surveyed: Option<&Surveyed>) -> Machine {
        let online = roots::text(self.folders.sys.join("devices/system/cpu/online")).unwrap_or_default();
        if self.machine.0 != online || online.is_empty() {
            self.machine = (online, topology::read(&self.folders));
        }
        newest(&self.machine.1, surveyed.map(|surveyed| &surveyed.found.machine)).clone()
    }

    /// Returns the stages that are not where the plan put them: their settings failed, or the switch does not follow.
    fn faults(&self, surveyed: &Surveyed) -> BTreeMap<Handle, String> {
        let fault = |handle: &Handle| self.kept.faults().get(&placed::setting(handle)?).cloned();
        let handles = surveyed.found.stages.iter().map(|stage| &stage.handle);
        let failed = handles.filter_map(|handle| Some((handle.clone(), fault(handle)?)));
        failed.chain(surveyed.not_followed.clone()).collect()
    }
}

/// Returns the machine that a look found, which knows of NICs that came since `read`, unless other CPUs are online by now.
fn newest<'a>(read: &'a Machine, found: Option<&'a Machine>) -> &'a Machine {
    found.filter(|found| found.online() == read.online()).unwrap_or(read)
}

/// Returns a question of the past.
fn asked<Q>(last: Option<&(Arc<Q>, Instant)>, now: Instant, open: bool) -> Option<Asked<Q>> {
    let (question, at) = last?;
    Some(Asked { question: Arc::clone(question), ago: now.saturating_duration_since(*at), open })
}

/// Installs the place.
///
/// # Errors
/// As [`CoresPlace::new`].
pub fn install(site: &Site<'_>, options: &Options) -> Result<Installation, DurableError> {
    let namespaces = site.paths.namespaces.clone();
    let (place, damage) = CoresPlace::new(options, site.state, namespaces)?;
    Ok(Installation { place: Box::new(place), capture: None, damage })
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

    fn plan(
        &self,
        wanted: &Wanted<'_>,
        _: &Observed,
        facts: &Facts,
    ) -> Result<Plan<CoresAction>, Vec<Refusal>> {
        Ok(plan::plan(wanted, facts))
    }

    /// Does nothing: each setting is on record before it is touched.
    fn prepare(&mut self, _: &[&CoresAction]) -> Result<(), PlaceError> {
        Ok(())
    }

    fn apply(&mut self, action: &CoresAction) -> Result<(), PlaceError> {
        match action {
            CoresAction::See(sight) => self.sights.see(Instant::now(), *sight),
            CoresAction::Look(watched) => {
                self.looked = Some((Arc::new(watched.scope.clone()), Instant::now()));
                self.discovery.ask((**watched).clone());
            }
            CoresAction::Consider(problem) => {
                self.considered = Some((Arc::clone(problem), Instant::now()));
                self.planner.ask(Arc::clone(problem));
            }
            // A setting that fails is reported, and tried again later: it undoes no change.
            CoresAction::Keep(target) => {
                self.kept.apply(target);
                self.steerer.apply(&target.nics);
            }
        }
        Ok(())
    }

    fn accept(&mut self, _: &[Vnic]) {}

    fn observe(&mut self, _: &[Vnic]) -> Result<(Observed, Facts), PlaceError> {
        let now = Instant::now();
        let (surveyed, planned) = (self.discovery.last(), self.planner.last());
        let machine = self.machine(surveyed.as_deref());
        let mut settled = self.kept.settled(now);
        settled.is_clean &= self.steerer.is_clean();
        let is_kept = |scope: &Scope| scope.host.cores.placement == Placement::Plan;
        let faults = surveyed.as_ref().map(|surveyed| self.faults(surveyed)).unwrap_or_default();
        self.immovable.see(now, self.looked.as_ref().map(|(scope, _)| scope), &faults);
        let immovable = self.immovable.stages();
        let report = report::report(Report {
            kept: self.looked.as_ref().is_some_and(|(scope, _)| is_kept(scope)),
            machine: &machine,
            surveyed: surveyed.as_deref(),
            planned: planned.as_deref(),
            faults: self.kept.faults(),
            held: self.kept.held(),
            immovable: &immovable,
            steering: self.steerer.reports(),
        });
        let observed = Observed {
            own_cpus: self.kept.view().clone(),
            directions: self.kept.directions().cloned(),
            cores: Some(report),
            ..Observed::nothing("the host's CPUs")
        };
        let facts = Facts {
            age: now.saturating_duration_since(self.started),
            off: self.off,
            machine,
            costs: self.costs.look().clone(),
            seen: self.sights.last(),
            flows: self.sights.flows(now),
            silent: self.sights.silent(now),
            settled,
            held: self.kept.held().clone(),
            steered: self.steerer.flows(),
            immovable,
            looked: asked(self.looked.as_ref(), now, self.discovery.is_busy()),
            surveyed,
            considered: asked(self.considered.as_ref(), now, self.planner.is_busy()),
            planned,
        };
        Ok((observed, facts))
    }

    fn recorded(&self) -> Vec<Vnic> {
        vec![]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workers::tests::machine;

    #[test]
    fn a_nic_that_comes_is_known_from_the_next_look_on() {
        let read = machine(4, &[]);
        let found = Machine { nics: [("eth1".to_owned(), 1)].into(), ..read.clone() };
        assert_eq!(newest(&read, Some(&found)), &found);
        assert_eq!(newest(&read, None), &read);
        // A CPU went off after the look.
        let fewer = machine(3, &[]);
        assert_eq!(newest(&fewer, Some(&found)), &fewer);
    }
}
