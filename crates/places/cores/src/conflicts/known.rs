//! What is known when conflicts are looked for, and conflicts in words.

use crate::machine::Seen;
use std::collections::BTreeMap;
use tidegate_contract::Host;
use tidegate_cores::cpus::Cpus;
use tidegate_evidence::ConflictReport;

/// What is known when conflicts are looked for.
#[derive(Clone, Copy, Debug)]
pub struct Known<'a> {
    /// The machine.
    pub seen: &'a Seen,
    /// Processes by name, of those that may contradict a plan.
    pub named: &'a BTreeMap<String, Vec<u32>>,
    /// The `[host]` table.
    pub host: &'a Host,
}

/// A conflict in words.
pub fn conflict(
    with: impl Into<String>,
    what: impl Into<String>,
    remedy: impl Into<String>,
) -> ConflictReport {
    ConflictReport { with: with.into(), what: what.into(), remedy: remedy.into() }
}

/// CPUs as the kernel lists them.
pub fn listed(cpus: &Cpus) -> String {
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
