//! The controller of the network: the `[controller]` table, and what a contract says about a path that is not granted.
//!
//! ```text
//!  [controller] ─▶ urls, identity ─▶ HTTP
//!       └── uplinks ─▶ deadlines over these ask for paths ─┬▶ refused: on-refused
//!                                                          └▶ no answer: on-unreachable
//! ```

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The `[controller]` table; it may stand in one file only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Controller {
    /// Base URLs, 1 to 8, of one scheme: the first controller that leads is used.
    pub urls: Vec<String>,
    /// This host's name at the controller.
    pub host: String,
    /// Who this host is.
    pub identity: Identity,
    /// Uplinks whose network it controls, 1 to 16.
    pub uplinks: Vec<String>,
}

/// How a host shows the controller who it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Identity {
    /// By mutual TLS (RFC 8446); PEM files, absolute.
    Certificate {
        /// Certificates that sign the controller's.
        ca: PathBuf,
        /// The host's.
        certificate: PathBuf,
        /// Its private key.
        key: PathBuf,
    },
    /// By a bearer token (RFC 6750) on plain HTTP.
    Token {
        /// File of the token, absolute.
        file: PathBuf,
    },
}

/// What becomes of a change whose path the controller refuses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnRefused {
    /// It is refused.
    #[default]
    Fail,
    /// It comes into force, and its deadline over the network is not promised; the agent asks again.
    BestEffort,
}

/// What becomes of a change while the controller does not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnUnreachable {
    /// As [`OnRefused::BestEffort`].
    #[default]
    BestEffort,
    /// It is refused until the controller answers.
    Wait,
}

impl OnRefused {
    /// All values, with their names in contracts.
    pub const ALL: [(&'static str, Self); 2] = [("fail", Self::Fail), ("best-effort", Self::BestEffort)];
}

impl OnUnreachable {
    /// All values, with their names in contracts.
    pub const ALL: [(&'static str, Self); 2] = [("best-effort", Self::BestEffort), ("wait", Self::Wait)];
}

impl Controller {
    /// Returns whether it controls the network of an uplink.
    pub fn serves(&self, uplink: &str) -> bool {
        self.uplinks.iter().any(|name| name == uplink)
    }
}
