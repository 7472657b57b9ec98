//! A place whose actions and facts only it knows: the agent holds several places of different types.
//!
//! ```text
//!  agent ── Wanted, Look ──▶ Installed ── Wanted, Observed, Place::Facts ──▶ Place
//!        ◀── Plan<Step> ────           ◀── Plan<Place::Action> ───────────
//! ```

use crate::{Action, Capabilities, Effect, Observed, Place, PlaceError, Plan, Refusal, Wanted};
use std::any::Any;
use std::fmt::Debug;
use tidegate_contract::{Attach, Vnic};

/// One observation: the part that the agent reads, and the part that only the place's `plan` reads.
#[derive(Debug)]
pub struct Look {
    /// For the agent.
    pub observed: Observed,
    facts: Facts,
}

#[derive(Debug)]
struct Facts(Box<dyn Any + Send>);

/// An action of an installed place.
#[derive(Debug)]
pub struct Step(Box<dyn AnyAction>);

trait AnyAction: Debug + Send {
    fn vnic(&self) -> Option<&str>;
    fn effect(&self) -> Effect;
    fn label(&self) -> &'static str;
    fn inverse(&self) -> Option<Step>;
    fn copy(&self) -> Step;
    fn as_any(&self) -> &dyn Any;
}

impl<A: Action> AnyAction for A {
    fn vnic(&self) -> Option<&str> {
        Action::vnic(self)
    }

    fn effect(&self) -> Effect {
        Action::effect(self)
    }

    fn label(&self) -> &'static str {
        Action::label(self)
    }

    fn inverse(&self) -> Option<Step> {
        Action::inverse(self).map(|action| Step(Box::new(action)))
    }

    fn copy(&self) -> Step {
        Step(Box::new(self.clone()))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Clone for Step {
    fn clone(&self) -> Self {
        self.0.copy()
    }
}

impl Action for Step {
    fn vnic(&self) -> Option<&str> {
        self.0.vnic()
    }

    fn effect(&self) -> Effect {
        self.0.effect()
    }

    fn label(&self) -> &'static str {
        self.0.label()
    }

    fn inverse(&self) -> Option<Self> {
        self.0.inverse()
    }
}

impl Step {
    /// The action, if it is one of the place with this type of action.
    pub fn of<A: Action>(&self) -> Option<&A> {
        self.0.as_any().downcast_ref()
    }
}

/// [`Place`], without its types. Every place is one.
#[allow(missing_docs, reason = "as in Place")]
#[allow(clippy::missing_errors_doc, reason = "as in Place")]
pub trait Installed: Send {
    fn name(&self) -> &'static str;
    fn unit(&self) -> &'static str;
    fn capabilities(&self, attach: &Attach) -> Option<Capabilities>;
    fn notes(&self, vnic: &Vnic) -> Vec<String>;
    fn plan(&self, wanted: &Wanted<'_>, look: &Look) -> Result<Plan<Step>, Vec<Refusal>>;
    fn prepare(&mut self, steps: &[&Step]) -> Result<(), PlaceError>;
    fn apply(&mut self, step: &Step) -> Result<(), PlaceError>;
    fn accept(&mut self, contracts: &[Vnic]);
    fn observe(&mut self, coming: &[Vnic]) -> Result<Look, PlaceError>;
    fn recorded(&self) -> Vec<Vnic>;
}

impl<P: Place> Installed for P {
    fn name(&self) -> &'static str {
        Place::name(self)
    }

    fn unit(&self) -> &'static str {
        Place::unit(self)
    }

    fn capabilities(&self, attach: &Attach) -> Option<Capabilities> {
        Place::capabilities(self, attach)
    }

    fn notes(&self, vnic: &Vnic) -> Vec<String> {
        Place::notes(self, vnic)
    }

    fn plan(&self, wanted: &Wanted<'_>, look: &Look) -> Result<Plan<Step>, Vec<Refusal>> {
        let none = P::Facts::default();
        let facts = look.facts.0.downcast_ref().unwrap_or(&none);
        let Plan { actions, claims } = Place::plan(self, wanted, &look.observed, facts)?;
        Ok(Plan { actions: actions.into_iter().map(|action| Step(Box::new(action))).collect(), claims })
    }

    fn prepare(&mut self, steps: &[&Step]) -> Result<(), PlaceError> {
        let own: Result<Vec<&P::Action>, PlaceError> = steps.iter().map(|step| self.own(step)).collect();
        Place::prepare(self, &own?)
    }

    fn apply(&mut self, step: &Step) -> Result<(), PlaceError> {
        let own = self.own(step)?;
        Place::apply(self, own)
    }

    fn accept(&mut self, contracts: &[Vnic]) {
        Place::accept(self, contracts);
    }

    fn observe(&mut self, coming: &[Vnic]) -> Result<Look, PlaceError> {
        let (observed, facts) = Place::observe(self, coming)?;
        Ok(Look { observed, facts: Facts(Box::new(facts)) })
    }

    fn recorded(&self) -> Vec<Vnic> {
        Place::recorded(self)
    }
}

/// The step as an action of this place.
trait Own: Place {
    fn own<'a>(&self, step: &'a Step) -> Result<&'a Self::Action, PlaceError> {
        let stranger = || {
            let name = Place::name(self);
            PlaceError::Failed(format!("{step:?} is no action of place {name}: this is a bug of the agent"))
        };
        step.of().ok_or_else(stranger)
    }
}

impl<P: Place> Own for P {}
