//! The objective: deadlines first, then CPU time.
//!
//! An assignment's score is compared in this order; each number is a sum of terms that never become smaller if one more stage is placed.
//!
//! 1. *Not alone*: real-time stages without a CPU for themselves. A real-time stage has its CPU for itself if it is one of those that may,
//!    for which half of the usable CPUs are enough, no other stage that the plan places is there, whatever its load, no stage that is left
//!    alone and has a load may run there, and it is not a housekeeping CPU. Of a stage that is left alone on several CPUs only 1 % of each
//!    is a load. A worker and its ports are one stage here; a worker is real-time if it has a real-time port.
//! 2. *Not apart*: best-effort ports on workers that have real-time ports.
//! 3. *Beside*: real-time stages with another stage on an SMT sibling of their CPU; only of those for which whole cores in half of the
//!    usable CPUs are enough.
//! 4. *Cost*, ns of CPU time lost a second, with loads in millionths of a CPU:
//!
//! ```text
//!   core     Σ CPUs      sibling × min(load, load of the busiest sibling)
//!                        + 4 × max(0, load + that loss − capacity)
//! + sharing  Σ pairs of stages on one CPU, but for two stages of one worker:  sharing(kinds) × min(loads)
//! + handover Σ links     frames a second × handover(kinds, distance)
//! + locality Σ stages of a NIC (interrupt, receive, transmit, flow) on a CPU of another node:  200 ‰ × load
//! + common   1 for each real-time stage that may be alone on a CPU that is not set apart, if other usable ones are
//! ```
//!
//! The capacity is one CPU; of a housekeeping CPU, half of one. Overload counts four times: it loses frames. Two workers on one CPU
//! hand frames over as siblings do: the frames cross from worker to worker.
//!
//! 5. *Moves*: stages that are not on their CPU in force.

use std::ops::{Add, AddAssign, Sub, SubAssign};

/// From which load on each of several CPUs a stage that is left alone is in the way of real-time stages, millionths.
pub const INTRUDES: i64 = 10_000;
/// What each ns of overload counts.
pub const OVERLOAD: i64 = 4;
/// What a stage of a NIC loses on another node than the NIC's, thousandths of its load.
pub const AWAY: i64 = 200;
/// The capacity of a CPU, millionths.
pub const WHOLE: i64 = 1_000_000;
/// The capacity of a housekeeping CPU, millionths.
pub const HOUSEKEEPING: i64 = 500_000;
/// The largest load that counts, millionths: more is a wrong measurement. Keeps sums within 64 bits.
pub const MOST_LOAD: u32 = 4_000_000;
/// The largest cost of a link that counts, ns a second. Keeps sums within 64 bits.
pub const MOST_LINK: i64 = 10_000_000_000_000;

/// The score of an assignment, or a difference of two. Less is better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Score {
    /// Real-time stages that are not alone; best-effort ports that are not apart; real-time stages beside a busy sibling.
    pub deadlines: [i64; 3],
    /// ns a second.
    pub cost: i64,
    /// Stages that are not where they are in force.
    pub moves: i64,
}

impl Score {
    /// Worse than any assignment.
    #[cfg(test)]
    pub const WORST: Self = Self { deadlines: [i64::MAX; 3], cost: i64::MAX, moves: i64::MAX };
}

impl Add for Score {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        let [a, b, c] = self.deadlines;
        let [x, y, z] = other.deadlines;
        Self {
            deadlines: [a + x, b + y, c + z],
            cost: self.cost + other.cost,
            moves: self.moves + other.moves,
        }
    }
}

impl Sub for Score {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        let [a, b, c] = self.deadlines;
        let [x, y, z] = other.deadlines;
        Self {
            deadlines: [a - x, b - y, c - z],
            cost: self.cost - other.cost,
            moves: self.moves - other.moves,
        }
    }
}

impl AddAssign for Score {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl SubAssign for Score {
    fn sub_assign(&mut self, other: Self) {
        *self = *self - other;
    }
}
