//! Costs of stages that share a CPU, and of frames that go from CPU to CPU.
//!
//! ```text
//!  priors: the original's findings ─┐
//!                                   ├─▶ Costs ─▶ planner
//!  `tidegate cores calibrate`      ─┘
//! ```

mod file;
mod priors;

use crate::machine::Distance;
use crate::stage::Kind;
use serde::{Deserialize, Serialize};

/// The cost model's numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Costs {
    /// Costs of pairs of kinds; of a pair that is missing, nothing is known: it costs nothing beyond its load.
    pub pairs: Vec<PairCost>,
    /// What a busy SMT sibling takes of a CPU, thousandths of its capacity.
    pub sibling: u32,
    /// Where the numbers are from.
    pub source: Source,
}

/// Costs of two kinds of stages; the order of the two does not matter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairCost {
    /// One.
    pub one: Kind,
    /// The other, or the same.
    pub other: Kind,
    /// What both lose if they share a CPU, thousandths of the smaller load, beside the competition for time.
    pub sharing: u32,
    /// What a frame costs that goes from one to the other, ns of CPU time, by [`Distance::ALL`].
    pub handover: [u32; Distance::ALL.len()],
}

/// Where costs are from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// The findings of the paper on VSE's CPU allocation model; relations, not this machine's times.
    Priors,
    /// Measured on this machine. Pairs that the measurement could not tell apart keep their priors.
    Measured {
        /// The machine: its processor's name and number of CPUs.
        machine: String,
        /// The kernel's release.
        kernel: String,
        /// When, seconds since the epoch.
        at: u64,
    },
}

impl Costs {
    /// Returns the costs of a pair of kinds.
    pub fn pair(&self, one: Kind, other: Kind) -> Option<&PairCost> {
        self.pairs.iter().find(|pair| pair.is_of(one, other))
    }
}

impl PairCost {
    /// Returns whether it is the cost of these two kinds, in either order.
    pub fn is_of(&self, one: Kind, other: Kind) -> bool {
        (self.one, self.other) == (one, other) || (self.other, self.one) == (one, other)
    }
}
