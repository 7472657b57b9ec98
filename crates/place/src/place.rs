//! The trait of places.

use crate::host::Claim;
use crate::{Action, Observed, PlaceError, Refusal, Wanted};
use std::os::fd::OwnedFd;
use tidegate_contract::{Attach, Vnic};

/// One place. Each of the three places needs every method: a method that most places would leave empty does not belong here.
pub trait Place: Send + 'static {
    /// The changes that it can make.
    type Action: Action;
    /// Facts that [`Self::observe`] finds, and that only [`Self::plan`] reads.
    type Facts: Default + Send + 'static;

    /// Its name in logs and messages, such as `switch`.
    fn name(&self) -> &'static str;

    /// The systemd unit of the process that keeps its contracts, such as `tidegate-switch`; [`AGENT`](crate::AGENT) if the
    /// agent itself does.
    fn unit(&self) -> &'static str;

    /// The promises that it can keep for an attachment; `None` if the attachment is another place's.
    fn capabilities(&self, attach: &Attach) -> Option<Capabilities>;

    /// Remarks on one contract for a reader of a plan, such as how its limits are enforced.
    fn notes(&self, vnic: &Vnic) -> Vec<String>;

    /// The actions that turn `observed` into `wanted`. Pure: the same question gets the same answer.
    ///
    /// # Errors
    /// Every reason for which this place cannot enforce `wanted`.
    fn plan(
        &self,
        wanted: &Wanted<'_>,
        observed: &Observed,
        facts: &Self::Facts,
    ) -> Result<Plan<Self::Action>, Vec<Refusal>>;

    /// Writes the facts to disk that a successor needs if this process dies during `actions`. Called before the first action.
    ///
    /// # Errors
    /// It cannot be written; nothing was touched.
    fn prepare(&mut self, actions: &[&Self::Action]) -> Result<(), PlaceError>;

    /// Does one action, wholly or not at all.
    ///
    /// # Errors
    /// It was not done.
    fn apply(&mut self, action: &Self::Action) -> Result<(), PlaceError>;

    /// Ends the change: these contracts are in force, and the agent saved them. Data for undoing it can go.
    fn accept(&mut self, contracts: &[Vnic]);

    /// The state in force, the evidence, and obstacles to the vNICs that are `coming`.
    ///
    /// # Errors
    /// The place does not answer.
    fn observe(&mut self, coming: &[Vnic]) -> Result<(Observed, Self::Facts), PlaceError>;

    /// The contracts in its own record, from which the agent recovers them if its own file is lost.
    fn recorded(&self) -> Vec<Vnic>;
}

/// The promises that a place can keep for one attachment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Deadlines.
    pub deadline: bool,
    /// Guaranteed rates.
    pub min: bool,
    /// Promises towards the uplink.
    pub uplink: bool,
    /// Facts that a reader of a plan should know of each contract with such an attachment.
    pub notes: Vec<String>,
}

/// A way from the observed state to the wanted one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan<A> {
    /// In their order; empty if the wanted state is in force.
    pub actions: Vec<A>,
    /// The host resources that the wanted state takes.
    pub claims: Vec<Claim>,
}

impl<A> From<Vec<A>> for Plan<A> {
    /// A plan that takes no host resources.
    fn from(actions: Vec<A>) -> Self {
        Self { actions, claims: vec![] }
    }
}

/// Copies the frames of one vNIC.
pub trait Capture: Send + Sync {
    /// Starts writing pcapng into `into`, at most `snaplen` bytes of each frame, until the other end of `into` closes.
    ///
    /// # Errors
    /// The place does not answer, or has no such vNIC.
    fn capture(&self, vnic: &str, snaplen: u32, into: OwnedFd) -> Result<(), PlaceError>;
}
