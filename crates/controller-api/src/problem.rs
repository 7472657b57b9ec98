//! Why nothing was done.

use serde::{Deserialize, Serialize};
use std::fmt;
use tidegate_visible::Visible;

/// What kind of problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProblemCode {
    /// The request is not as the API says.
    Invalid,
    /// No token or certificate, or a wrong one.
    Unauthorized,
    /// It is another host's.
    Forbidden,
    /// There is no such thing.
    NotFound,
    /// The arithmetic says no.
    Refused,
    /// The far host has not admitted it yet: ask again.
    Waiting,
    /// Too much is asked: ask again later.
    Busy,
    /// Another controller leads.
    Standby,
    /// One that this version does not know.
    #[serde(other)]
    Unknown,
}

/// Why nothing was done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// What kind.
    pub code: ProblemCode,
    /// What was wrong, what was expected, what to do.
    pub message: String,
    /// Of a refusal: one sentence for each route.
    #[serde(default)]
    pub reasons: Vec<String>,
    /// The URL of the controller that leads, if this one does not.
    #[serde(default)]
    pub leader: Option<String>,
}

impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", Visible(&self.message))?;
        self.reasons.iter().try_for_each(|reason| write!(formatter, "\n  {}", Visible(reason)))
    }
}

impl std::error::Error for Problem {}
