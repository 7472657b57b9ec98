//! The cores place: which CPU does which part of a packet's work, on the whole host.
//!
//! ```text
//!  sysfs, proc, cgroups ─▶ machine, discover, load, conflicts ─▶ Found: stages, links, conflicts
//! ```
//!
//! - [`roots`]: the folders that discovery reads
//! - [`machine`]: the host's CPUs
//! - [`discover`]: stages, and frames between them
//! - [`load`]: what stages cost
//! - [`conflicts`]: other software that places the same work

pub mod conflicts;
pub mod discover;
pub mod load;
pub mod machine;
pub mod roots;
