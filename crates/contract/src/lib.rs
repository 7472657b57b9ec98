//! The contract of a virtual NIC: what it may send and receive, what it is
//! guaranteed, and by when its frames arrive.
//!
//! ```text
//!  /etc/tidegate/*.toml ──▶ parse ──▶ Vnic, Host ──▶ admission ──▶ Admission (delay bounds)
//!  API body (TOML)            │          (checked types)    │
//!                             └─▶ errors with file:line     └─▶ Refusal: egress and numbers
//! ```
//!
//! Pure: no I/O, no clock, no global state. Everything else in the workspace
//! depends on this crate; it depends on none of them.
//!
//! - [`units`]: rates, sizes and durations with their units
//! - [`address`]: MAC addresses, IP prefixes, segments
//! - [`vnic`]: the contract itself
//! - [`host`]: what the host declares about itself
//! - [`parse`]: TOML to contracts, with errors that point at the line
//! - [`admission`]: whether all promises fit together, exactly

pub mod address;
pub mod admission;
pub mod host;
pub mod parse;
pub mod units;
pub mod vnic;

pub use address::{Mac, Prefix, Segment};
pub use host::Host;
pub use units::{Bytes, Nanos, Rate};
pub use vnic::{Allowed, Attach, Discipline, Rx, SocketMode, SocketOwner, Tx, Vnic};
