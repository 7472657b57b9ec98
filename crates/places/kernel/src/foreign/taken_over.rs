//! The foreign objects that a contract took over with its netdev. Pure.

use crate::tc::object::Object;
use crate::tc::shaping::Ends;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What others made at the ends of a netdev that were taken over.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TakenOver {
    /// Interface index: what was on another device of the same name is gone with it.
    pub index: u32,
    /// The root qdisc with all below it, each after what it hangs on.
    pub egress: Vec<Object>,
    /// The ingress qdisc, then its filters.
    pub ingress: Vec<Object>,
    /// What was taken over and is not made again.
    #[serde(default, skip_serializing_if = "Lost::is_empty")]
    pub lost: Lost,
}

/// Why what others made at an end cannot be made again, where it cannot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lost {
    /// At the root.
    pub egress: Option<String>,
    /// At the ingress.
    pub ingress: Option<String>,
}

impl TakenOver {
    /// Whether there is nothing to remember.
    pub fn is_empty(&self) -> bool {
        self.egress.is_empty() && self.ingress.is_empty() && self.lost.is_empty()
    }

    /// What others had at these ends, too, where nothing is remembered of an end yet.
    pub fn add(&mut self, other: &Self, ends: Ends) {
        self.index = other.index;
        let (ours, theirs) = (&mut self.lost, &other.lost);
        for (ours, theirs, lost, lost_too, is_one) in [
            (&mut self.egress, &other.egress, &mut ours.egress, &theirs.egress, ends.egress),
            (&mut self.ingress, &other.ingress, &mut ours.ingress, &theirs.ingress, ends.ingress),
        ] {
            if is_one && ours.is_empty() && lost.is_none() {
                ours.clone_from(theirs);
                lost.clone_from(lost_too);
            }
        }
    }

    /// What others had at these ends is not made again, and why.
    pub fn lose(&mut self, ends: Ends, why: &str) {
        for (lost, is_one) in [(&mut self.lost.egress, ends.egress), (&mut self.lost.ingress, ends.ingress)] {
            if is_one {
                *lost = Some(why.to_owned());
            }
        }
    }

    /// Nothing of these ends any more.
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

impl Lost {
    /// Whether nothing is.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<&str> =
            [&self.egress, &self.ingress].into_iter().flatten().map(String::as_str).collect();
        f.write_str(&all.join("; "))
    }
}
