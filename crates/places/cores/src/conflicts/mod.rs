//! Other software that places the same work, and settings that contradict a plan: each with what a person can do.
//!
//! ```text
//!  processes by name, their files ─▶ programs ─┐
//!  sysctls, boot, cgroups ─────────▶ settings ─┼─▶ conflicts
//!  stages that are pinned ─────────▶ pins ─────┘
//! ```
//!
//! - [`programs`]: programs that move threads and interrupts
//! - [`settings`]: settings of the kernel and of cgroups
//! - [`pins`]: stages for which another program chose CPUs

pub mod pins;
pub mod programs;
pub mod settings;

use crate::machine::Seen;
use crate::roots::Roots;
use std::collections::BTreeMap;
use tidegate_contract::Host;
use tidegate_cores::stage::Stage;
use tidegate_evidence::ConflictReport;

/// What is known when conflicts are looked for.
#[derive(Clone, Copy, Debug)]
pub struct Known<'a> {
    /// The machine.
    pub seen: &'a Seen,
    /// Processes by name: those of [`programs::NAMES`].
    pub named: &'a BTreeMap<String, Vec<u32>>,
    /// All stages.
    pub stages: &'a [Stage],
    /// The `[host]` table.
    pub host: &'a Host,
}

/// Returns what contradicts a plan.
pub fn find(roots: &Roots, known: &Known<'_>) -> Vec<ConflictReport> {
    let mut found = programs::find(roots, known);
    found.extend(settings::find(roots, known));
    found.extend(pins::find(known));
    found
}

/// A conflict in words.
fn conflict(with: impl Into<String>, what: impl Into<String>, remedy: impl Into<String>) -> ConflictReport {
    ConflictReport { with: with.into(), what: what.into(), remedy: remedy.into() }
}

/// CPUs as the kernel lists them.
fn listed(cpus: &tidegate_cores::cpus::Cpus) -> String {
    let mut parts: Vec<(usize, usize)> = vec![];
    for cpu in cpus {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == *cpu => *last = *cpu,
            _ => parts.push((*cpu, *cpu)),
        }
    }
    let part = |(first, last): &(usize, usize)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    parts.iter().map(part).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus() {
        assert_eq!(listed(&[0, 1, 2, 5, 7, 8].into()), "0-2,5,7-8");
        assert_eq!(listed(&[].into()), "");
    }
}
