//! The CPUs that cgroups allow: cpusets of cgroups(7), versions 1 and 2.

use crate::roots::{Roots, list, text};
use std::path::PathBuf;
use tidegate_cores::cpus::Cpus;

/// Returns the cgroup of a process or a thread whose cpuset counts, such as `/machine.slice`; `proc` is its folder below `/proc`.
pub fn of_process(roots: &Roots, proc: &str) -> Option<String> {
    let text = text(roots.proc.join(proc).join("cgroup"))?;
    // HIERARCHY:CONTROLLERS:PATH; version 2 has no controllers, and version 1 wins where both are mounted.
    let mut second = None;
    for line in text.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        if controllers.split(',').any(|name| name == "cpuset") {
            return Some(path.to_owned());
        }
        if controllers.is_empty() {
            second = Some(path.to_owned());
        }
    }
    second
}

/// Returns the CPUs of a cgroup's cpuset; `None` if it has none. Without the controller, a cgroup of version 2 is in the cpuset of the
/// nearest one above with it.
pub fn cpus(roots: &Roots, cgroup: &str) -> Option<Cpus> {
    let cgroups = roots.sys.join("fs/cgroup");
    let inner = inside(cgroup)?;
    let first = ["cpuset.effective_cpus", "cpuset.cpus"];
    let of_first = cgroups.join("cpuset").join(&inner);
    let versions = || first.iter().find_map(|name| list(of_first.join(name))).filter(|cpus| !cpus.is_empty());
    let second = || {
        let mounted = [cgroups.clone(), cgroups.join("unified")];
        mounted.iter().find_map(|root| {
            let folders = inner.ancestors().map(|inner| root.join(inner));
            folders.map(|folder| folder.join("cpuset.cpus.effective")).find_map(list)
        })
    };
    versions().or_else(second)
}

/// Whether a cgroup is there.
pub fn exists(roots: &Roots, cgroup: &str) -> bool {
    let cgroups = roots.sys.join("fs/cgroup");
    let mounted = [cgroups.join("cpuset"), cgroups.clone(), cgroups.join("unified")];
    inside(cgroup).is_some_and(|inner| mounted.iter().any(|root| root.join(&inner).is_dir()))
}

/// Returns a cgroup's path as one below a root; `None` if it leads out of it.
fn inside(cgroup: &str) -> Option<PathBuf> {
    let inner = PathBuf::from(cgroup.trim_start_matches('/'));
    let plain = inner.components().all(|part| matches!(part, std::path::Component::Normal(_)));
    plain.then_some(inner)
}
