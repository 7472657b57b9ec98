//! The host switch as a place: contracts for VMs on vhost-user sockets, and for containers and the host on taps.
//!
//! ```text
//!  plan (pure) ──▶ SwitchPlace ── ports: sockets, taps ──▶ Conversation ── descriptors ──▶ control::Client ──▶ switch
//!                    │    ▲                                                                                 │
//!                    │    └──────────────────────── ports, stats::Reader ◀──────────────────────────────────┘
//!                    └─▶ Record: our vNICs, on disk
//! ```
//!
//! This process has a duplicate of every descriptor of the switch: a switch that is started anew goes on where its predecessor ended,
//! and front ends do not notice.
//!
//! From contracts to actions:
//! - `place`: the place, as the agent knows it
//! - `action`, `plan`: from wanted and observed to actions (pure)
//! - `notes`: how a contract is kept, for a reader of a plan (pure)
//! - `observe`: the state in force
//! - `record`: our vNICs
//!
//! The connection of a port:
//! - `ports`: a port and its connection, made, changed, removed
//! - `duplicate`: our duplicates of the descriptors that the switch was given
//! - `tap`: taps
//! - `uplinks`, `mending`, `sockets`: the ways to other hosts, pauses between repairs, and the sockets
//! - `kept_ports`: source ports of pairs, over switches and sockets
//! - `packet`, `xdp`, `device`: those of plain NICs, and the device
//! - `options`: options of sockets
//! - `peers_only`: a filter on the sockets of uplinks
//! - `inherited`: descriptors that the predecessor of the switch or the agent passes on
//! - `verify`: whether such a descriptor is what its sender claims
//!
//! The switch:
//! - `conversation`: questions, answers, and the switch that comes after one that is gone
//! - `culprit`: the work that held a worker up when a deadline was missed
//! - `following`: the tables of NICs follow the workers of vNICs
//! - `directing`: the plan's CPUs and workers, passed to the switch (pure)
//! - `stages`: the work of the switch, for the plan of CPUs (pure)

mod action;
mod conversation;
mod culprit;
mod device;
mod directing;
mod duplicate;
mod following;
mod inherited;
mod kept_ports;
mod mending;
mod notes;
mod observe;
mod options;
mod packet;
mod peers_only;
mod place;
mod plan;
mod ports;
mod record;
mod sockets;
#[cfg(all(test, feature = "measure"))]
mod speed;
#[cfg(all(test, feature = "measure"))]
mod speed_by_worker;
mod stages;
mod tap;
mod uplinks;
mod verify;
mod xdp;

pub use culprit::noise;
pub use place::{Options, SwitchPlace, install};
#[cfg(feature = "fuzzing")]
pub use {
    action::SwitchAction,
    observe::evidence,
    plan::{Facts, plan},
    verify::check_inherited,
};
