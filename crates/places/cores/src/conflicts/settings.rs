//! Settings of the kernel and of cgroups that contradict a plan.

use super::known::{Known, conflict, listed};
use crate::machine::cpuset;
use crate::roots::{Roots, mask, number};
use std::collections::BTreeSet;
use tidegate_cores::cpus::Cpus;
use tidegate_evidence::ConflictReport;

/// Returns conflicts with settings.
pub fn find(roots: &Roots, known: &Known<'_>) -> Vec<ConflictReport> {
    let machine = &known.seen.machine;
    let (online, isolated) = (machine.online(), machine.isolated());
    let nodes: BTreeSet<u32> = machine.cpus.values().map(|cpu| cpu.node).collect();
    let mut found = vec![];
    if nodes.len() > 1
        && number::<u32>(roots.proc.join("sys/kernel/numa_balancing")).is_some_and(|value| value > 0)
    {
        found.push(conflict(
            "kernel.numa_balancing",
            "the kernel unmaps VMs' memory again and again to see who uses it: virtual CPUs stop for it, and their memory moves",
            "sysctl kernel.numa_balancing=0, and in /etc/sysctl.d",
        ));
    }
    if !isolated.is_empty() {
        found.push(conflict(
            "isolcpus= or nohz_full=",
            format!(
                "the kernel does not balance threads on CPUs {}: those that the plan does not use stay idle, and a thread with \
                several of them stays on one",
                listed(&isolated)
            ),
            "leave them to the plan ([host.cores] cpus), or boot without these words",
        ));
    }
    found.extend(default_interrupts(roots, &online, &isolated));
    found.extend(cpusets(roots, known, &online));
    found.extend(declared(known, &online));
    found
}

/// Returns the conflict with the CPUs of new interrupts.
fn default_interrupts(roots: &Roots, online: &Cpus, isolated: &Cpus) -> Option<ConflictReport> {
    let default = mask(roots.proc.join("irq/default_smp_affinity"))?;
    let free: Cpus = online.difference(isolated).copied().collect();
    // Fewer than all are a choice, and a NIC whose link comes up takes its interrupts there.
    (!free.is_subset(&default)).then(|| {
        let present: Cpus = default.intersection(online).copied().collect();
        conflict(
            "/proc/irq/default_smp_affinity",
            format!(
                "new interrupts, such as those of a NIC whose driver starts anew, arrive on CPUs {} alone",
                listed(&present)
            ),
            "make these the housekeeping CPUs ([host.cores] housekeeping), or write the mask of all CPUs",
        )
    })
}

/// Returns conflicts with cpusets in which VMs are.
fn cpusets(roots: &Roots, known: &Known<'_>, online: &Cpus) -> Vec<ConflictReport> {
    let mut found = vec![];
    let mut add = |cgroup: &str, cpus: &Cpus| {
        found.push(conflict(
            format!("the cpuset of {cgroup}"),
            format!("threads in it may run on CPUs {} alone: the plan cannot give them others", listed(cpus)),
            "name CPUs of this set in [host.cores] cpus, or widen it: systemctl set-property SLICE AllowedCPUs=LIST",
        ));
    };
    let machines = &known.seen.machines;
    if machines != online {
        add("/machine.slice", machines);
    }
    for slice in ["/kubepods.slice", "/kubepods", "/system.slice"] {
        let cpus = cpuset::cpus(roots, slice).filter(|cpus| !cpus.is_empty() && !online.is_subset(cpus));
        // Without a cpuset of its own, it has that of a cgroup above, which is all.
        if let Some(cpus) = cpus.filter(|_| cpuset::exists(roots, slice)) {
            add(slice, &cpus);
        }
    }
    found
}

/// Returns the conflict of CPUs in `[host.cores]` that are not online, or that VMs may not use.
fn declared(known: &Known<'_>, online: &Cpus) -> Option<ConflictReport> {
    let cores = &known.host.cores;
    let declared: Cpus = cores.cpus.iter().chain(&cores.housekeeping).flatten().copied().collect();
    let missing: Cpus = declared.difference(online).copied().collect();
    (!missing.is_empty()).then(|| {
        conflict(
            "[host.cores]",
            format!("CPUs {} are declared, and are not online: the plan does without them", listed(&missing)),
            "bring them online (/sys/devices/system/cpu/cpuN/online), or change cpus and housekeeping",
        )
    })
}
