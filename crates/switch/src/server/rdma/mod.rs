//! RDMA: devices that the switch was told to use.
//!
//! ```text
//!  --rdma NAME ─▶ Devices ─▶ facts ─▶ Hello
//! ```
//!
//! - [`devices`]: opens devices, and tells their state

pub mod devices;

pub use devices::{Devices, Loaded};
