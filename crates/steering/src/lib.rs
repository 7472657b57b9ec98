//! Received frames of a NIC to CPUs by flow (source: VSE, a virtual switch extension), by XDP.
//!
//! ```text
//!  contracts' flows ─▶ Table ─▶ Steering: maps in the kernel ◀─ counters
//!                                   │
//!  NIC's queue ─▶ interrupt's CPU ─▶ program: flow of the frame ─┬─ entry ─▶ its CPU
//!                                                                ├─ no entry ─▶ a CPU by the flow's hash
//!                                                                └─ no flow ─▶ this CPU, as without the program
//! ```
//!
//! The inner headers of VXLAN, Geneve and GRE count, so that flows of one tunnel have different CPUs. The program stays at the device when
//! the agent ends; the next one finds it by its name, and its table in the kernel.
//!
//! - [`key`]: flows, and which of their fields count
//! - [`table`]: entries, masks, CPUs for all other flows
//! - [`steering`]: a table at a device
//! - [`device`]: which XDP program is at a device
//! - [`counters`]: where frames went
//! - [`measure`]: how long a look-up takes
//! - [`dispatcher`], `libxdp`: beside others' programs, where libxdp loaded those
//! - `program`, `maps`, `settings`, `live`, `drops`, `probe`: the kernel's side
//! - `cpus`, `threads`: CPUs that are online, and whether the threads of their queues are on them

pub mod counters;
mod cpus;
pub mod device;
pub mod dispatcher;
mod drops;
pub mod key;
mod libxdp;
mod live;
mod maps;
pub mod measure;
#[cfg(test)]
mod model;
mod probe;
mod program;
mod settings;
pub mod steering;
pub mod table;
#[cfg(test)]
mod tests;
mod threads;

pub use counters::Counters;
pub use steering::{AttachError, Options, Steering};
pub use table::{Entry, Table, TableError};
