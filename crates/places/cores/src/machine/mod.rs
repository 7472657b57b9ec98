//! The host's CPUs, from sysfs and cgroups.
//!
//! ```text
//!  /sys/devices/system/cpu ──▶ topology ─┐
//!  /sys/devices/system/node ─────────────┼─▶ Seen: the machine, and who may use which CPUs
//!  /sys/class/net/X/device/numa_node ────┤
//!  cgroups' cpusets ─────────▶ cpuset ───┘
//! ```
//!
//! - [`topology`]: CPUs, cores, caches, nodes, NICs
//! - [`cpuset`]: the CPUs that cgroups allow

pub mod cpuset;
pub mod topology;

use crate::roots::Roots;
use tidegate_cores::cpus::Cpus;
use tidegate_cores::machine::Machine;

/// The machine, and the CPUs that its owner allows for VMs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// The machine.
    pub machine: Machine,
    /// CPUs of the agent's own cgroup; all online ones if its cgroup says nothing.
    pub own: Cpus,
    /// CPUs of `machine.slice`, where systemd and libvirt put VMs; all online ones without that slice.
    pub machines: Cpus,
}

/// Reads the machine.
pub fn read(roots: &Roots) -> Seen {
    let machine = topology::read(roots);
    let online = machine.online();
    let allowed = |cgroup: Option<String>| {
        let cpus = cgroup.and_then(|cgroup| cpuset::cpus(roots, &cgroup));
        cpus.map(|cpus| cpus.intersection(&online).copied().collect::<Cpus>())
            .filter(|cpus| !cpus.is_empty())
            .unwrap_or_else(|| online.clone())
    };
    let own = allowed(cpuset::of_process(roots, "self"));
    let machines = allowed(Some("/machine.slice".into()));
    Seen { machine, own, machines }
}
