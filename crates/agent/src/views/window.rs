//! The time that figures are of.

use serde::{Deserialize, Serialize};
use std::time::Duration;
use utoipa::ToSchema;

/// A window of time, up to now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub enum Last {
    /// 10 s.
    #[serde(rename = "10s")]
    TenSeconds,
    /// A minute.
    #[serde(rename = "1m")]
    Minute,
    /// An hour.
    #[serde(rename = "1h")]
    Hour,
}

impl Last {
    /// All windows.
    pub const ALL: [Self; 3] = [Self::TenSeconds, Self::Minute, Self::Hour];

    /// Returns the name, such as `10s`.
    pub const fn label(self) -> &'static str {
        match self {
            Self::TenSeconds => "10s",
            Self::Minute => "1m",
            Self::Hour => "1h",
        }
    }

    /// Returns the length.
    pub const fn duration(self) -> Duration {
        match self {
            Self::TenSeconds => Duration::from_secs(10),
            Self::Minute => Duration::from_secs(60),
            Self::Hour => Duration::from_secs(3600),
        }
    }
}

impl std::str::FromStr for Last {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|last| last.label() == text);
        found
            .ok_or_else(|| format!("there are figures of the last {}", Self::ALL.map(Self::label).join(", ")))
    }
}

/// Query of what has figures of a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct LastQuery {
    /// Figures of the last 10 s, minute or hour in place of those since the port was made: `10s`, `1m` or `1h`.
    #[serde(default)]
    #[param(inline)]
    pub last: Option<Last>,
}

/// Why a window is shorter than asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Began {
    /// The agent was started then, or reached the place for the first time.
    Agent,
    /// The contract in force became another one then.
    Contract,
    /// The port was made then, or its counters began anew.
    Counters,
}

/// The window that figures are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WindowView {
    /// How long it was to be, ns.
    pub asked_ns: u64,
    /// How long it is, ns: up to one step of its kind longer than asked for (1 s, 6 s, 5 min), or shorter.
    pub covers_ns: u64,
    /// Why it is shorter than asked for; absent where it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub began: Option<Began>,
}
