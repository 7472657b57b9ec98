//! The host, its places, and its promises.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tidegate_contract::{Host, Remote, Uplink};
use tidegate_evidence::{LogStats, WorkerStats};
use utoipa::ToSchema;

/// The host and its places.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HostView {
    /// Release of the agent.
    pub version: String,
    /// Whatever is wrong on the host as a whole; empty where nothing is.
    pub problems: Vec<String>,
    /// The `[host]` table in force.
    #[schema(value_type = Object)]
    pub host: Host,
    /// The `[uplink.NAME]` tables in force.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<Object>)]
    pub uplinks: Vec<Uplink>,
    /// The `[remote.NAME]` tables in force.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<Object>)]
    pub remotes: Vec<Remote>,
    /// The places where contracts are kept.
    pub places: Vec<PlaceView>,
    /// The files of contracts.
    pub files: Vec<FileView>,
    /// What is promised, and what can still be.
    pub admission: AdmissionView,
    /// The switch's workers.
    #[schema(value_type = Vec<Object>)]
    pub workers: Vec<WorkerStats>,
    /// System calls denied to the switch since it was started: none, unless there is a bug or an intruder.
    pub denied_calls: u64,
    /// What the logs of `agent` and `switch` do not tell, since each was started.
    #[serde(default)]
    #[schema(value_type = Object)]
    pub logs: BTreeMap<String, LogStats>,
    /// Attempts to bring a contract into force that failed, since the agent started.
    pub reconcile_errors: u64,
    /// Differences between contract and place that the agent found and set right, since it started.
    pub drift_repaired: u64,
}

/// One place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PlaceView {
    /// Such as `switch`.
    pub name: String,
    /// Whether it answers.
    pub reachable: bool,
    /// Why not, where it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Release of the program that keeps the promises there.
    pub version: String,
    /// Its process id; 0 where unknown.
    pub pid: u32,
    /// Its start, nanoseconds since the epoch; 0 where unknown.
    pub started: u64,
    /// vNICs there.
    pub vnics: usize,
}

/// One file of contracts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileView {
    /// Its path.
    pub path: String,
    /// The vNICs it owns, as last accepted.
    pub vnics: Vec<String>,
    /// Why the agent refuses its present contents, if it does: the earlier contracts stay in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The line that `error` is about, from 1; absent where it is about no line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<usize>,
    /// The vNICs that its refused contents name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<String>,
}

/// A file that names a vNIC and is refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RefusedBy {
    /// Its path.
    pub file: String,
    /// The line where its present contents name the vNIC, from 1; absent where they do not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<usize>,
    /// Why it is refused: the file as a whole, which may be for another vNIC's sake.
    pub reason: String,
}

impl std::fmt::Display for RefusedBy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { file, line, reason } = self;
        f.write_str(file)?;
        if let Some(line) = line {
            write!(f, ":{line}")?;
        }
        // An error in the file begins with its place; the file is named already.
        match reason.strip_prefix(file.as_str()).and_then(|rest| rest.strip_prefix(':')) {
            Some(rest) => write!(f, " is refused, at line {rest}"),
            None => write!(f, " is refused: {reason}"),
        }
    }
}

/// A delay bound, how it came about, and what was seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Promise {
    /// The sender: a vNIC, or a remote.
    pub vnic: String,
    /// Where its frames go: a vNIC, or an uplink.
    pub egress: String,
    /// Td, as promised, ns; between hosts this host's part of it.
    pub deadline_ns: u64,
    /// The computed bound, ns; at most the deadline.
    pub bound_ns: u64,
    /// `deadline_ns - bound_ns`.
    pub margin_ns: u64,
    /// Why none of this is promised right now; absent where it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspended: Option<String>,
    /// The worst Tr - Ts seen of a real-time frame under this deadline, to whatever egress, ns; absent where none
    /// was delivered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worst_seen_ns: Option<u64>,
    /// At an uplink, the rest of the way; absent elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beyond: Option<BeyondView>,
    /// How the bound came about.
    pub derivation: Derivation,
    /// Under which conditions the bound holds, and how often they did not.
    pub holds_if: String,
    /// Worker loops longer than the host budget.
    pub host_latency_violations: u64,
}

/// What a frame may take after it has left this host, by declaration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BeyondView {
    /// The other host; of several the one with the longest way.
    pub peer: String,
    /// The latency of the network, ns.
    pub latency_ns: u64,
    /// The time from arrival at the peer to delivery, ns.
    pub arrival_budget_ns: u64,
}

/// bound = deadline - (t - H - (demand + L) / C) at the tightest interval t.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Derivation {
    /// t, ns.
    pub critical_t_ns: u64,
    /// Real-time traffic that can be due within t, bytes.
    pub demand_bytes: u64,
    /// L, the largest frame that may be under way, bytes.
    pub blocking_bytes: u64,
    /// C, bit/s.
    pub capacity_bps: u64,
    /// H, ns.
    pub host_latency_ns: u64,
    /// The same in words.
    pub text: String,
}

/// What is promised on the host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AdmissionView {
    /// By egress.
    pub egresses: Vec<EgressView>,
    /// By real-time vNIC and egress.
    pub bounds: Vec<Promise>,
}

/// What an egress has promised.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EgressView {
    /// A vNIC or an uplink.
    pub egress: String,
    /// C, bit/s.
    pub capacity_bps: u64,
    /// To real-time vNICs, bit/s.
    pub realtime_bps: u64,
    /// To others, by `tx.min`, bit/s.
    pub guaranteed_bps: u64,
    /// Not promised, bit/s.
    pub remaining_bps: u64,
    /// To whom.
    pub vnics: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_file_is_named_once() {
        let by = |line, reason: &str| {
            RefusedBy { file: "/etc/a.toml".into(), line, reason: reason.into() }.to_string()
        };
        let error = "/etc/a.toml:6:14: vnic.b.tx.max: rate \"5\" has no unit";
        let expected = "/etc/a.toml:2 is refused, at line 6:14: vnic.b.tx.max: rate \"5\" has no unit";
        assert_eq!(by(Some(2), error), expected);
        assert_eq!(by(None, "others need it"), "/etc/a.toml is refused: others need it");
        assert_eq!(by(None, "/etc/a.toml2:1: x"), "/etc/a.toml is refused: /etc/a.toml2:1: x");
    }
}
