//! The contract of a virtual NIC: what it may send and receive, its guarantees, and the deadline of its frames.
//!
//! ```text
//!  /etc/tidegate/*.toml ──▶ parse ──▶ Vnic, Host, Uplink, Remote ──▶ admit ──▶ Admission (delay bounds)
//!  API body (TOML)            │              (checked types)           │
//!                             └─▶ Errors: file:line:col                └─▶ Refusal: egress and numbers
//! ```
//!
//! Pure: no I/O, no clock, no global state. The rest of the workspace depends on this crate.
//!
//! - [`units`]: rates, sizes and durations with their units
//! - [`address`]: MAC addresses, IP prefixes, segments
//! - [`vnic`]: the contract itself
//! - [`rdma`]: what fits into a datagram of RDMA
//! - [`queueing`]: the order in which frames wait for a rate
//! - [`host`]: the host's declarations
//! - [`cores`]: CPUs for the work of frames, and flows for them
//! - [`uplink`]: the ways to other hosts, and the keys of segments
//! - [`key`]: the keys themselves
//! - [`remote`]: vNICs of other hosts
//! - `reach`: the peers that each segment reaches over an uplink
//! - [`controller`]: the controller of the network
//! - `document`: a contract file, as read
//! - [`given`]: peers that another owner gives to an uplink
//! - [`frame`]: sizes of frames and super-frames
//! - [`error`]: faults of contracts, and their places
//! - [`check`]: the rules of one contract and between contracts
//! - [`mod@parse`]: TOML to contracts, with errors that point at the line
//! - `suggest`: the known word nearest to an unknown one
//! - [`mod@write`]: contracts to TOML, and changes to single keys
//! - [`admission`]: the exact test whether all promises fit together
//! - [`network_paths`]: what a host's deadlines ask from such a network
//! - [`path`]: the same for a path through a network
//! - `testing`: contracts for tests, and whether traffic keeps to one

pub mod address;
pub mod admission;
pub mod check;
pub mod controller;
pub mod cores;
mod document;
pub mod error;
pub mod frame;
pub mod given;
pub mod host;
pub mod key;
pub mod network_paths;
pub mod parse;
pub mod path;
pub mod queueing;
pub mod rdma;
mod reach;
pub mod remote;
mod suggest;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod testing;
pub mod units;
pub mod uplink;
pub mod vnic;
pub mod write;

pub use address::{Mac, Prefix, Segment, SharedAddress};
pub use admission::{Admission, ContractSet, NotAdmissible, admit};

pub use check::{Problem, check_set, merge};
pub use controller::{Controller, OnRefused, OnUnreachable};
pub use cores::{Cores, Flow, Placement, Tunnel};
pub use document::{Document, Table};
pub use error::{Error, Errors, Located};
pub use frame::SUPER_FRAME;
pub use given::{GivenPeer, give};
pub use host::{Aggregate, Control, Host, Nic};
pub use key::{SecretKey, SegmentKey};
pub use parse::parse;
pub use queueing::{FlowQueueing, Queueing};
pub use remote::{Envelope, Remote};
pub use units::{Bytes, Nanos, Rate};
pub use uplink::{Exclusive, Peer, SegmentKeys, Uplink, UplinkKind};
pub use vnic::{
    Allowed, Attach, Discipline, LinkState, Method, Rx, SocketMode, SocketOwner, Transport, Tx, UPLINK,
    VfOptions, Vnic,
};
pub use write::set_key;
