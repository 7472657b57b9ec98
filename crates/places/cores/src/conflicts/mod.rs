//! Other software that places the same work, and settings that contradict a plan: each with what a person can do.
//!
//! ```text
//!  processes by name, their files ─▶ programs ─┐
//!  sysctls, boot, cgroups ─────────▶ settings ─┼─▶ conflicts
//!  stages that are pinned ─────────▶ pins ─────┘ with the record of settings, for the report
//! ```
//!
//! - [`known`]: what is known when conflicts are looked for
//! - [`programs`]: programs that move threads and interrupts
//! - [`settings`]: settings of the kernel and of cgroups
//! - [`pins`]: stages for which another program chose CPUs

pub mod known;
pub mod pins;
pub mod programs;
pub mod settings;

use crate::roots::Roots;
use known::Known;
use tidegate_evidence::ConflictReport;

/// Returns the programs and settings that contradict a plan.
pub fn find(roots: &Roots, known: &Known<'_>) -> Vec<ConflictReport> {
    let mut found = programs::find(roots, known);
    found.extend(settings::find(roots, known));
    found
}
