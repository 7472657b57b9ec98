//! The assembly of Tidegate: the one crate that names the places and hands them to the agent. All other
//! modules belong to the binary.
//!
//! ```text
//!  places/switch, places/kernel, places/nic ── places::install ─▶ agent: sees `dyn Installed`, no place by name
//! ```

pub mod places;
