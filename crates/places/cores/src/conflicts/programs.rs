//! Programs that move threads and interrupts.

use super::known::{Known, conflict};
use crate::roots::{Roots, text};
use tidegate_evidence::ConflictReport;

/// Their names, as `/proc` has them.
pub const NAMES: [&str; 3] = ["irqbalance", "tuned", "numad"];

/// Returns conflicts with programs that run.
pub fn find(roots: &Roots, known: &Known<'_>) -> Vec<ConflictReport> {
    let runs =
        |name: &str| known.named.get(name).is_some_and(|pids| pids.iter().any(|pid| is_root(roots, *pid)));
    let mut found = vec![];
    if runs("irqbalance") {
        found.push(irqbalance(roots));
    }
    if let Some(profile) = text(roots.etc.join("tuned/active_profile")).filter(|_| runs("tuned")) {
        found.extend(tuned(roots, &profile));
    }
    if runs("numad") {
        found.push(conflict(
            "numad",
            "it moves VMs between NUMA nodes, and sets the CPUs of their threads anew: they leave their planned CPUs",
            "systemctl disable --now numad",
        ));
    }
    found
}

fn irqbalance(roots: &Roots) -> ConflictReport {
    // Debian's, Fedora's, and that of its own unit.
    let files = ["default/irqbalance", "sysconfig/irqbalance", "irqbalance.env"];
    let lines: Vec<String> = files.iter().filter_map(|file| text(roots.etc.join(file))).collect();
    let settings = lines.iter().flat_map(|text| text.lines()).map(str::trim);
    let keys = ["IRQBALANCE_BANNED_CPU", "IRQBALANCE_BANNED_INTERRUPTS", "IRQBALANCE_ARGS", "OPTIONS"];
    let set: Vec<&str> = settings.filter(|line| keys.iter().any(|key| line.starts_with(key))).collect();
    let own = if set.is_empty() { String::new() } else { format!(" (its settings: {})", set.join("; ")) };
    conflict(
        "irqbalance",
        format!(
            "it places interrupts anew each 10 s: the plan leaves them there, and those that it moves do not stay{own}"
        ),
        "systemctl disable --now irqbalance, after which interrupts stay where they are until adopt = true; or exclude NICs' interrupts with --banirq=NUMBER in IRQBALANCE_ARGS",
    )
}

/// Returns the conflict with a profile of tuned, if it places threads or interrupts.
fn tuned(roots: &Roots, profile: &str) -> Option<ConflictReport> {
    // Several may be merged: `throughput-performance my-profile`.
    let places = |name: &str| {
        let known = name.starts_with("cpu-partitioning") || name.starts_with("realtime");
        let own = !name.contains('/') && !name.starts_with('.');
        let files = [format!("tuned/{name}/tuned.conf"), format!("tuned/profiles/{name}/tuned.conf")];
        let file =
            files.iter().filter(|_| own).find_map(|file| text(roots.etc.join(file))).unwrap_or_default();
        let words =
            ["isolated_cores", "include=cpu-partitioning", "include=realtime", "default_irq_smp_affinity"];
        known || words.iter().any(|word| file.contains(word))
    };
    let name = profile.split_whitespace().find(|name| places(name))?;
    Some(conflict(
        format!("tuned, profile {name}"),
        "it keeps threads and interrupts off its isolated cores, and moves back those that the plan puts there",
        "give [host.cores] cpus and housekeeping the same CPUs as tuned's isolated_cores leaves; or choose another profile, \
            such as throughput-performance: tuned-adm profile throughput-performance",
    ))
}

/// Whether a process is root's: any user can give a process these names.
fn is_root(roots: &Roots, pid: u32) -> bool {
    let status = text(roots.proc.join(format!("{pid}/status"))).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    line.and_then(|line| line.split_whitespace().nth(1)) == Some("0")
}
