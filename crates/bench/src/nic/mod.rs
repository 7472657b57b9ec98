//! The traffic-engineering loop of `tidegate-place-nic`, without a NIC.
//!
//! - [`original`]: the figure of the project's first source, simulated
//! - [`govern`]: the loop on a switch's ports; the switch replaces the NIC's own
//! - [`api`]: the part of the agent's HTTP API that the loop needs
//! - [`lending`]: lent and reserved minima, simulated
//! - [`cost`]: CPU time of a step

mod api;
pub mod cost;
pub mod govern;
pub mod lending;
pub mod original;
