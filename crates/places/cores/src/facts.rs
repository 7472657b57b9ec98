//! The facts of one look.

use crate::keep_off::KeepOff;
use crate::planner::Planned;
use crate::settings::setting::Setting;
use crate::settings::step::SavedSetting;
use crate::settled::Settled;
use crate::sight::Sight;
use crate::watched::{Scope, Surveyed};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tidegate_cores::costs::Costs;
use tidegate_cores::machine::Machine;
use tidegate_cores::problem::Problem;
use tidegate_cores::stage::Handle;

/// What a plan is made from, besides the wanted state.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The time since the agent's start.
    pub age: Duration,
    /// The work to keep off workers' CPUs without a plan; `None` leaves them alone.
    pub off: Option<KeepOff>,
    /// The CPUs.
    pub machine: Machine,
    /// The cost model's numbers.
    pub costs: Costs,
    /// The last look at the switch.
    pub seen: Option<Sight>,
    /// Whether real-time frames flow.
    pub flows: bool,
    /// How long the switch has not answered.
    pub silent: Option<Duration>,
    /// The last settling.
    pub settled: Settled,
    /// The settings on record: set by this agent or an earlier one.
    pub held: BTreeMap<Setting, SavedSetting>,
    /// CPUs of flows on record, of this agent or an earlier one.
    pub steered: BTreeMap<Handle, usize>,
    /// Stages that could not be moved, and the reasons.
    pub immovable: BTreeMap<Handle, String>,
    /// The last question to discovery.
    pub looked: Option<Asked<Scope>>,
    /// Its last answer.
    pub surveyed: Option<Arc<Surveyed>>,
    /// The last question to the planner.
    pub considered: Option<Asked<Problem>>,
    /// Its last answer.
    pub planned: Option<Arc<Planned>>,
}

/// A question that is answered in the background.
#[derive(Clone, Debug)]
pub struct Asked<Q> {
    /// The question.
    pub question: Arc<Q>,
    /// The time since.
    pub ago: Duration,
    /// Whether its answer is still to come.
    pub open: bool,
}

impl Default for Facts {
    fn default() -> Self {
        Self {
            age: Duration::ZERO,
            off: None,
            machine: Machine::default(),
            costs: Costs::priors(),
            seen: None,
            flows: false,
            silent: None,
            settled: Settled::default(),
            held: BTreeMap::new(),
            steered: BTreeMap::new(),
            immovable: BTreeMap::new(),
            looked: None,
            surveyed: None,
            considered: None,
            planned: None,
        }
    }
}
