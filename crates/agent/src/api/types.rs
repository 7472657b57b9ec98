//! What the API answers. The command line reads the same types.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;
use tidegate_contract::{Host, Rate, Vnic};
use tidegate_evidence::{
    Connection, Delay, Figure, HeldUp, LogStats, Miss, SharedStatus, Unknown, VnicStats, WorkerStats,
};
use utoipa::ToSchema;

/// Any refusal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// What was wrong and what to do.
    pub error: String,
    /// One entry per problem, where there are several.
    pub details: Vec<String>,
}

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
    /// Why its present contents are refused, where they are: what it said before is still in force.
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
        // An error in the file begins with where it is; the file is told already.
        match reason.strip_prefix(file.as_str()).and_then(|rest| rest.strip_prefix(':')) {
            Some(rest) => write!(f, " is refused, at line {rest}"),
            None => write!(f, " is refused: {reason}"),
        }
    }
}

/// Whether a contract is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub enum State {
    /// Its place says so.
    #[serde(rename = "in force")]
    InForce,
    /// Its place cannot be reached, or has not got to it.
    #[serde(rename = "pending")]
    Pending,
    /// It was tried and did not work; the agent tries again.
    #[serde(rename = "failed")]
    Failed,
    /// There is none: the file that names the vNIC is refused, and nothing else does.
    #[serde(rename = "refused")]
    Refused,
}

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
    /// All of them.
    pub const ALL: [Self; 3] = [Self::TenSeconds, Self::Minute, Self::Hour];

    /// As it is written.
    pub const fn label(self) -> &'static str {
        match self {
            Self::TenSeconds => "10s",
            Self::Minute => "1m",
            Self::Hour => "1h",
        }
    }

    /// How long it is.
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

/// One vNIC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VnicView {
    /// Its name.
    pub name: String,
    /// The contract; of one that is refused what its file says, absent where that cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub contract: Option<Vnic>,
    /// `file:PATH`, `api`, or a program such as `libvirt:web1`.
    pub owner: String,
    /// The place that keeps it.
    pub place: String,
    /// Whether it is kept.
    pub state: State,
    /// Why it is not, or what else a person should know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The refused file that names it, or owns it, where there is one: all else is as it was before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<RefusedBy>,
    /// Why its deadline is not promised right now; absent where it is, and where it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_suspended: Option<String>,
    /// How it is connected; absent where that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub connection: Option<Connection>,
    /// Why the last front end was disconnected, where one was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// The worker of the switch that carries its traffic; absent at other places.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<usize>,
    /// The addresses that it shares with other vNICs of its segment, who has each, how often it went from one to another
    /// (`moves`), and how often it did not because that was too often (`refused`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<Object>)]
    pub shared: Vec<SharedStatus>,
    /// Front ends turned away because one was connected already, and another one waited.
    #[serde(default)]
    pub refused_connections: u64,
    /// A front end waits for the one that is connected to leave.
    #[serde(default)]
    pub heir: bool,
    /// Front ends disconnected for what they did, by reason; those that happened.
    #[serde(default)]
    pub thrown_out: BTreeMap<String, u64>,
    /// How often its front ends' objects held a thread of the switch up, its quarantines for that, and the one that
    /// lasts.
    #[serde(default)]
    #[schema(value_type = Object)]
    pub held: HeldUp,
    /// The window that `stats` are of; absent where they are since the port was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<WindowView>,
    /// What was counted; absent where nothing is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub stats: Option<VnicStats>,
    /// What held the worker up when frames missed their deadlines for it: how often, by kind, since the agent was started.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub culprits: BTreeMap<String, u64>,
    /// Parts of `stats` that its place does not count, each with the reason: their values mean nothing.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = BTreeMap<String, String>)]
    pub unknown: Unknown,
    /// Each figure with where it was read; also those that are not counted.
    #[serde(default)]
    pub figures: Vec<Figure>,
    /// What the VM sent over the last second, bit/s on the wire; absent where that is not counted, or not yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tx_rate_bps: Option<u64>,
    /// What the VM received over the last second, bit/s on the wire; absent as above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rx_rate_bps: Option<u64>,
    /// The limits in effect.
    pub limits: Limits,
    /// The limit that the guest itself has set on what the VM sends, such as `400mbit`; absent where it has set none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub soft: Option<Rate>,
    /// The limit on what the VM sends that its place keeps right now; absent where there is none, or no vNIC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub tx_in_force: Option<Rate>,
    /// For a real-time vNIC: what is promised at each egress.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub promises: Vec<Promise>,
}

/// The limits in effect; absent means unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Limits {
    /// What the VM may send, bit/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tx_bps: Option<u64>,
    /// Its token bucket, bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tx_burst_bytes: Option<u64>,
    /// What the VM is promised to be able to send, bit/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tx_min_bps: Option<u64>,
    /// What the VM may receive, bit/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rx_bps: Option<u64>,
}

/// A delay bound, how it came about, and what was seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Promise {
    /// The sender.
    pub vnic: String,
    /// Where its frames go.
    pub egress: String,
    /// Td, as promised, ns.
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
    /// How the bound came about.
    pub derivation: Derivation,
    /// Under which conditions the bound holds, and how often they did not.
    pub holds_if: String,
    /// Worker loops longer than the host budget.
    pub host_latency_violations: u64,
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
    /// A vNIC or `uplink`.
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

/// Query of `plan` and `apply`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub struct ApplyQuery {
    /// File name of the text, for messages.
    #[serde(default)]
    pub origin: Option<String>,
    /// Whose contracts these are: of a program that speaks for somebody, such as `libvirt:web1`; the API's where
    /// absent. Only their owner changes or removes them.
    #[serde(default)]
    pub owner: Option<String>,
    /// Remove the owner's vNICs that the text does not name.
    #[serde(default)]
    pub prune: bool,
    /// Take over what others made in the way, such as a root qdisc.
    #[serde(default)]
    pub adopt: Adopt,
}

/// Whether what others made in the way of a contract is taken over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub enum Adopt {
    /// It refuses the contract.
    #[default]
    #[serde(rename = "false")]
    No,
    /// Where it can be put back as it was when the contract goes.
    #[serde(rename = "true")]
    Exactly,
    /// Also where it cannot; the vNIC says what is lost.
    #[serde(rename = "anyway")]
    Anyway,
}

/// What a text would change, or has changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PlanView {
    /// Whether it was applied.
    pub applied: bool,
    /// Whether it can be.
    pub admissible: bool,
    /// Why not, where it cannot.
    pub refusals: Vec<String>,
    /// By vNIC: those of the text, and those that go.
    pub vnics: Vec<VnicChange>,
    /// Of the `[host]` table.
    pub host: Vec<KeyChange>,
    /// What would be promised; empty where it is not admissible.
    pub admission: AdmissionView,
    /// What the places say about the attachments concerned.
    pub notes: Vec<String>,
}

/// What happens to one vNIC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VnicChange {
    /// The vNIC.
    pub vnic: String,
    /// What happens.
    pub action: ChangeAction,
    /// By key, where it changes.
    pub changes: Vec<KeyChange>,
    /// Why its contract is not in force, where it is not; absent where it is, where it is only planned, and of one that goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_in_force: Option<NotInForce>,
}

/// Why an accepted contract is not in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NotInForce {
    /// `pending` or `failed`.
    pub state: State,
    /// Why.
    pub reason: String,
    /// Whether its place, such as the switch, cannot be reached.
    pub place_away: bool,
}

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ChangeAction {
    /// It is new.
    Create,
    /// Its contract changes.
    Change,
    /// It goes.
    Remove,
    /// Nothing.
    None,
}

/// One key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KeyChange {
    /// Such as `tx.max`.
    pub key: String,
    /// Its value so far; absent where it was not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Its value then; absent where it is not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
}

/// Body of a change of single keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetBody {
    /// Keys as in the file, such as `tx.max`, with their values; `none` removes a key.
    pub set: BTreeMap<String, String>,
}

/// Query of `capture`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub struct CaptureQuery {
    /// Bytes kept of each frame: 64 to 65535, 65535 unless said otherwise.
    #[serde(default)]
    pub snaplen: Option<u32>,
}

/// Why frames of a vNIC were late, throttled or dropped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WhyView {
    /// The vNIC.
    pub vnic: String,
    /// In plain words, most important first.
    pub findings: Vec<String>,
    /// The window that all this is of, but for what says otherwise; absent where it is since the port was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<WindowView>,
    /// How frames that the VM sent waited for its own limit; absent where it has none, or nothing was sent under it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tx_wait: Option<OwnWait>,
    /// How frames to the VM waited for its own limit; absent as above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rx_wait: Option<OwnWait>,
    /// Certain deadline misses by cause.
    pub misses: BTreeMap<String, u64>,
    /// Possible misses: in time by the least that the delay can have been, late by the most.
    #[serde(default)]
    pub misses_possible: u64,
    /// Frames that were late only if the worker's wake-up took that long, which it cannot measure.
    #[serde(default)]
    pub misses_asleep: u64,
    /// The latest of all these, oldest first; of the last kind only the longest of a second.
    #[schema(value_type = Vec<Object>)]
    pub latest_misses: Vec<Miss>,
    /// What held the worker up: how often, by kind, since the agent was started. Not with a window.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub culprits: BTreeMap<String, u64>,
    /// Why what keeps the worker from its CPU is not observed, where it is not, and a frame was late for the worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unobserved: Option<String>,
    /// Dropped of what the VM sent, by reason.
    pub tx_dropped: BTreeMap<String, u64>,
    /// Dropped of what the VM should have received, by reason.
    pub rx_dropped: BTreeMap<String, u64>,
    /// Time with frames waiting for tokens, ns.
    pub throttled_ns: u64,
}

/// How frames waited for a limit of their vNIC's own contract.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OwnWait {
    /// The limit, such as `tx.max = 20mbit`.
    pub limit: String,
    /// How long frames waited for it, ns; those that did not wait count as 0.
    #[schema(value_type = Object)]
    pub waited: Delay,
    /// The same of frames that waited by flow and found none of their flow before them, such as a ping beside uploads, until
    /// their first part left; absent where there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub sparse: Option<Delay>,
    /// Frames marked "congestion experienced" (ECN) in place of being dropped.
    pub marked: u64,
    /// Flows of which frames wait now; absent where frames never waited by flow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flows_now: Option<u64>,
    /// The most flows that waited at a time, since the port was made; absent as above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flows_most: Option<u64>,
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
