//! The answers of the API. The command line reads the same types.
//!
//! ```text
//!  reconciler ──▶ views ──▶ board ──▶ JSON ──▶ tidegate vnic show, status, why, top
//! ```
//!
//! - `host`: the host, its places, and its promises
//! - `vnic`: one vNIC
//! - `uplink`: one uplink
//! - `why`: why its frames were late, throttled or dropped
//! - `clock`: other hosts' clocks
//! - `plan`: the changes that a set of contracts makes
//! - `status`: what needs a person
//! - `window`: the time that figures are of
//! - `event`: something that happened
//! - `error`: the body of every error

mod clock;
mod error;
mod event;
mod host;
mod plan;
mod status;
mod uplink;
mod vnic;
mod why;
mod window;

pub use clock::ClockView;
pub use error::ErrorBody;
pub use event::{EventKind, EventView};
pub use host::{
    AdmissionView, BeyondView, Derivation, EgressView, FileView, HostView, PlaceView, Promise, RefusedBy,
};
pub use plan::{Adopt, ApplyQuery, ChangeAction, KeyChange, NotInForce, PlanView, TableChange, VnicChange};
pub use status::{
    Attention, AttentionKind, DeadlineCounts, FileCounts, HostLatency, PlacedCounts, Repaired, StatusView,
    VnicCounts,
};
pub use uplink::{UplinkStats, UplinkView};
pub use vnic::{CaptureQuery, Limits, RdmaWay, SetBody, State, VnicQueuePair, VnicRdma, VnicView};
pub use why::{OwnWait, WhyView};
pub use window::{Began, Last, LastQuery, WindowView};
