//! The foreign objects that a contract took over with its netdev. Pure.

use crate::tc::object::Object;
use crate::tc::shaping::Ends;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The foreign objects at the ends of a netdev that were taken over.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TakenOver {
    /// Interface index: a later device of the same name had none of these objects.
    pub index: u32,
    /// The root qdisc with all below it, each after its parent.
    pub egress: Vec<Object>,
    /// The ingress qdisc, then its filters.
    pub ingress: Vec<Object>,
    /// The reasons why an end cannot be restored.
    #[serde(default, skip_serializing_if = "Unrestorable::is_empty")]
    pub lost: Unrestorable,
}

/// For each end, the reason why its foreign objects cannot be restored; `None` if they can.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unrestorable {
    /// Of the root qdisc.
    pub egress: Option<String>,
    /// Of the ingress qdisc.
    pub ingress: Option<String>,
}

impl TakenOver {
    /// Whether it holds neither objects nor reasons.
    pub fn is_empty(&self) -> bool {
        self.egress.is_empty() && self.ingress.is_empty() && self.lost.is_empty()
    }

    /// Adds the objects of `other` at `ends`; an end with objects or a reason keeps its own.
    pub fn add(&mut self, other: &Self, ends: Ends) {
        self.index = other.index;
        let (lost_here, lost_there) = (&mut self.lost, &other.lost);
        for (objects, added, lost, lost_too, chosen) in [
            (&mut self.egress, &other.egress, &mut lost_here.egress, &lost_there.egress, ends.egress),
            (&mut self.ingress, &other.ingress, &mut lost_here.ingress, &lost_there.ingress, ends.ingress),
        ] {
            if chosen && objects.is_empty() && lost.is_none() {
                objects.clone_from(added);
                lost.clone_from(lost_too);
            }
        }
    }

    /// Notes that the objects at `ends` cannot be restored, with the reason.
    pub fn mark_unrestorable(&mut self, ends: Ends, why: &str) {
        for (lost, is_one) in [(&mut self.lost.egress, ends.egress), (&mut self.lost.ingress, ends.ingress)] {
            if is_one {
                *lost = Some(why.to_owned());
            }
        }
    }

    /// Forgets the objects and reasons of `ends`.
    pub fn remove(&mut self, ends: Ends) {
        if ends.egress {
            self.egress.clear();
            self.lost.egress = None;
        }
        if ends.ingress {
            self.ingress.clear();
            self.lost.ingress = None;
        }
    }
}

impl Unrestorable {
    /// Whether both ends can be restored.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for Unrestorable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<&str> =
            [&self.egress, &self.ingress].into_iter().flatten().map(String::as_str).collect();
        f.write_str(&all.join("; "))
    }
}
