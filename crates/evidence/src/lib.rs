//! Every place's reports about a vNIC and its workers. No I/O; the only system call reads the clock.
//!
//! ```text
//!  places/* ── observe ──▶ Traffic, Delay, Miss, Figure, ... ──▶ agent ──▶ API, metrics ──▶ tidegate why, top
//! ```
//!
//! - [`histogram`]: log-linear buckets, 3 % wide
//! - `reason`, `drops`: reasons for drops and misses
//! - `traffic`, `delay`, `work`, `miss`: counters and events
//! - `vnic`, `worker`, `log`: the counters of a vNIC, of a worker, of a log
//! - `evidence`: all counters of a place at one look
//! - `connection`, `shared`, `front_ends`, `held_up`: a vNIC's connection, and events of its front ends
//! - `socket`: frames of a NIC's queue to a worker
//! - `on_wire`: what an uplink puts on the wire
//! - `cores`: CPUs, the stages of work on them, and the plan for them
//! - `own_cpus`: CPUs of workers, and the work that is kept off them
//! - `figure`: uncounted values, and the source of each figure
//! - `network_path`: paths of such frames through the network
//! - `pair`: frames with a deadline between two hosts' vNICs
//! - `peer`: other hosts' clocks and counters, and frames that were late there
//! - `rdma`: RDMA devices and queue pairs
//! - `time`: moments of CLOCK_MONOTONIC as times of day

mod connection;
mod cores;
mod delay;
mod drops;
mod evidence;
mod figure;
mod front_ends;
mod held_up;
pub mod histogram;
mod log;
mod miss;
mod network_path;
mod on_wire;
mod own_cpus;
mod pair;
mod peer;
mod rdma;
mod reason;
mod shared;
mod socket;
mod time;
mod traffic;
mod vnic;
mod work;
mod worker;

pub use connection::Connection;
pub use cores::{
    ConflictReport, CoresReport, CpuReport, FlowReport, ImpossibleReport, PlanReport, SpreadReport,
    StageReport, SteeringReport,
};
pub use delay::Delay;
pub use drops::{NetdevDrop, NicDrop};
pub use evidence::Evidence;
pub use figure::{Figure, Quantity, Unknown};
pub use front_ends::FrontEnds;
pub use held_up::{HeldUp, Quarantine};
pub use histogram::{Histogram, total};
pub use log::LogStats;
pub use miss::{Culprit, MISSES, Miss};
pub use network_path::NetworkPath;
pub use on_wire::OnWire;
pub use own_cpus::OwnCpus;
pub use pair::{LateCounts, PairStatus};
pub use peer::{FAR_MISSES, FarMiss, PeerClock, PeerCounts, PeerStatus, RoundTrip};
pub use rdma::{
    LandingStatus, MemberStatus, QueuePairStatus, RDMA_ADDRESSES, RDMA_DEVICES, RDMA_MEMBERS, RdmaCounts,
    RdmaDevice, RdmaStatus, ZeroCopyCounts, ZeroCopyStatus,
};
pub use reason::{CulpritKind, DropReason, MissCause, NoticeRefusal};
pub use shared::SharedStatus;
pub use socket::SocketCounts;
pub use time::time_of_day;
pub use traffic::Traffic;
pub use vnic::VnicStats;
pub use work::Work;
pub use worker::WorkerStats;
