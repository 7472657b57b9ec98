//! CPUs, cores, caches, nodes and NICs, from sysfs.
//!
//! Files may be missing (a hypervisor without topology, an old kernel), and may contradict each other (a CPU that goes offline between
//! two reads). A CPU without files is a core, and shares no cache: nothing is assumed to be near.

use crate::roots::{Roots, list, names, number, numbered, text};
use std::collections::BTreeMap;
use std::path::Path;
use tidegate_cores::cpus::{self, Cpus};
use tidegate_cores::machine::{Cpu, Machine};

/// Reads the CPUs that are online, and the nodes of NICs.
pub fn read(roots: &Roots) -> Machine {
    let folder = roots.sys.join("devices/system/cpu");
    let isolated = isolated(roots, &folder);
    let nodes = nodes(roots);
    let mut cpus = BTreeMap::new();
    for number in online(roots, &folder) {
        let cpu = folder.join(format!("cpu{number}"));
        let core = siblings(&cpu).and_then(|siblings| siblings.first().copied()).unwrap_or(number);
        let cache = last_level(&cpu).and_then(|shared| shared.first().copied()).unwrap_or(core);
        let node = nodes.get(&number).copied().unwrap_or(0);
        let [core, cache] = [core, cache].map(|first| u32::try_from(first).unwrap_or(u32::MAX));
        cpus.insert(number, Cpu { core, cache, node, isolated: isolated.contains(&number) });
    }
    Machine { cpus, nics: nics(roots) }
}

/// Returns the CPUs that are online: by the list, else those with a folder, else those that `/proc/stat` counts.
fn online(roots: &Roots, folder: &Path) -> Cpus {
    let listed = list(folder.join("online")).filter(|cpus| !cpus.is_empty());
    // CPU 0 of many machines cannot go offline, and has no such file.
    let with_folder = || {
        let found = numbered::<usize>(folder, "cpu").into_iter();
        let runs = |cpu: &usize| number::<u8>(folder.join(format!("cpu{cpu}/online"))) != Some(0);
        Some(found.filter(|cpu| *cpu < 8192).filter(runs).collect::<Cpus>()).filter(|cpus| !cpus.is_empty())
    };
    let counted = || {
        let stat = text(roots.proc.join("stat")).unwrap_or_default();
        let name = |line: &str| line.split_whitespace().next()?.strip_prefix("cpu")?.parse().ok();
        stat.lines().filter_map(name).filter(|cpu| *cpu < 8192).collect()
    };
    listed.or_else(with_folder).unwrap_or_else(counted)
}

/// Returns the CPUs that were set apart at boot: by sysfs, or by the kernel's command line on kernels that list none.
fn isolated(roots: &Roots, folder: &Path) -> Cpus {
    let of = |name: &str| list(folder.join(name)).unwrap_or_default();
    let mut found: Cpus = of("isolated").union(&of("nohz_full")).copied().collect();
    for word in text(roots.proc.join("cmdline")).unwrap_or_default().split_whitespace() {
        // After `--` come the words of init.
        if word == "--" {
            break;
        }
        let value = ["isolcpus=", "nohz_full="].iter().find_map(|key| word.strip_prefix(key));
        found.extend(value.into_iter().flat_map(boot_list));
    }
    found
}

/// Parses the list of `isolcpus=`: flags such as `managed_irq,domain,` come first (kernel-parameters.txt).
fn boot_list(value: &str) -> Cpus {
    let flag = |part: &&str| part.starts_with(|c: char| c.is_ascii_alphabetic());
    let parts: Vec<_> = value.split(',').skip_while(flag).collect();
    cpus::from_list(&parts.join(",")).unwrap_or_default()
}

/// Returns the SMT siblings of a CPU, itself among them; by `core_cpus_list` since Linux 5.3.
fn siblings(cpu: &Path) -> Option<Cpus> {
    let topology = cpu.join("topology");
    let by_list =
        ["core_cpus_list", "thread_siblings_list"].iter().find_map(|name| list(topology.join(name)));
    by_list.filter(|cpus| !cpus.is_empty())
}

/// Returns the CPUs that share the last level of cache with a CPU. Instruction caches do not count.
fn last_level(cpu: &Path) -> Option<Cpus> {
    let folder = cpu.join("cache");
    let levels = names(&folder).into_iter().filter(|name| name.starts_with("index")).filter_map(|name| {
        let index = folder.join(name);
        let data = text(index.join("type")).is_none_or(|kind| kind != "Instruction");
        let shared = list(index.join("shared_cpu_list")).filter(|cpus| !cpus.is_empty())?;
        data.then_some((number::<u32>(index.join("level"))?, shared))
    });
    levels.max_by_key(|(level, _)| *level).map(|(_, shared)| shared)
}

/// Returns the node of each CPU. Nodes without CPUs (memory alone) have none.
fn nodes(roots: &Roots) -> BTreeMap<usize, u32> {
    let folder = roots.sys.join("devices/system/node");
    let mut found = BTreeMap::new();
    for node in numbered::<u32>(&folder, "node") {
        for cpu in list(folder.join(format!("node{node}/cpulist"))).unwrap_or_default() {
            found.entry(cpu).or_insert(node);
        }
    }
    found
}

/// Returns the node of each NIC that has one; firmware without this knowledge says -1.
fn nics(roots: &Roots) -> BTreeMap<String, u32> {
    let folder = roots.sys.join("class/net");
    let node = |name: &str| {
        let device = folder.join(name).join("device");
        number::<u32>(device.join("numa_node")).or_else(|| {
            let real = device.canonicalize().ok()?;
            // Of a virtio device, the PCI device has it.
            number::<u32>(real.parent()?.join("numa_node"))
        })
    };
    names(&folder).into_iter().filter_map(|name| Some((name.clone(), node(&name)?))).collect()
}
