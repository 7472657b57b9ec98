//! Settings of the kernel that the agent makes for CPUs: set, kept, put back.
//!
//! ```text
//!  values wanted ─▶ Keeper: step by step ─▶ Files ─▶ sysfs of each namespace, /proc/irq, threads
//!                         │  ▲
//!            Record, on disk  └─ the value now: drift
//! ```
//!
//! - [`setting`]: what can be set
//! - [`step`]: from what is wanted, on record and found to what is done (pure)
//! - [`record`]: our settings, and the values before them
//! - [`keeper`]: does the steps
//! - [`files`]: where settings are read and written
//! - `sysfs`, `irq`, `thread`: by the kind of setting

pub mod files;
mod irq;
pub mod keeper;
pub mod record;
pub mod setting;
pub mod step;
pub(crate) mod sysfs;
mod thread;
