//! The API of the network's controller, as its hosts and operators see it.
//!
//! ```text
//!  agent:    Registration, PathRequest, Misses ─▶ controller ─▶ View (peers, remotes, paths), SegmentKeys
//!  operator: PathRequest                       ─▶            ─▶ Paths, Topology, Decisions
//!                                                 refusals   ─▶ Problem
//! ```
//!
//! `controller/openapi.json` is the definition; a test reads all of its examples into these types. Rates are bit/s, sizes
//! bytes, spans of time ns, points in time Unix seconds. A field that this version does not know is ignored in answers: the
//! controller may be newer.
//!
//! - `host`, `path`, `network`, `problem`: the types
//! - [`client`]: asking a controller (feature `client`)

#[cfg(feature = "client")]
pub mod client;
mod host;
mod network;
mod path;
mod problem;

pub use host::{
    Announced, Arrival, Enrolled, Enrolment, Misses, PathMisses, Peer, RefusedItem, Registration, Remote,
    SegmentKey, SegmentKeys, Uplink, View,
};
pub use network::{Decision, Decisions, Health, Host, Hosts, LevelUse, LinkUse, Switch, Topology, Verdict};
pub use path::{EthernetKey, Key, Path, PathRequest, PathState, Paths, UdpKey};
pub use problem::{Problem, ProblemCode};

#[cfg(test)]
mod tests;
