//! The NIC place: contracts for VMs that own an SR-IOV virtual function (VF).
//!
//! ```text
//!  contracts ──▶ place ── functions ──▶ device ── rtnetlink, devlink ──▶ NIC
//!                  │ ▲                                                    │
//!                  │ └── evidence ◀── counters ◀── registers, statistics ─┤
//!                  └───▶ control: a loop per NIC ─ limits ───────────────▶┘
//! ```
//!
//! A VF bypasses the host: the NIC alone enforces its limits, also while the agent is away. A minimum or a share that the NIC
//! cannot enforce is enforced by a control loop while the agent runs.
//!
//! - `place`: the place, as the agent knows it
//! - [`device`]: NICs and their VFs
//! - [`counters`]: from registers that wrap to totals
//! - [`probe()`]: what a NIC can do, found by asking
//! - [`control`]: the traffic-engineering loop, pure

pub mod control;
pub mod counters;
pub mod device;
mod place;
mod probe;

pub use place::{NicPlace, install};
pub use probe::probe;
