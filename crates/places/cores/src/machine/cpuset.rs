//! The CPUs that cgroups allow: cpusets of cgroups(7), versions 1 and 2.

use crate::roots::{Roots, list, names, text};
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

/// Returns the CPUs of a cgroup's cpuset; `None` if it has none. A cgroup of version 2 without the controller has those of the
/// nearest one above that has it.
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

/// Returns the cgroups below `cgroup` that have a cpuset of their own, with its CPUs: four levels deep, `most` at most.
pub fn below(roots: &Roots, cgroup: &str, most: usize) -> Vec<(String, Cpus)> {
    let Some(inner) = inside(cgroup) else { return vec![] };
    let cgroups = roots.sys.join("fs/cgroup");
    let roots = [cgroups.join("cpuset"), cgroups.clone(), cgroups.join("unified")];
    let Some(root) = roots.into_iter().find(|root| root.join(&inner).is_dir()) else { return vec![] };
    let mut found = vec![];
    let mut open = vec![(inner, 0)];
    while let Some((folder, depth)) = open.pop() {
        let path = root.join(&folder);
        for name in names(&path).into_iter().filter(|name| path.join(name).is_dir()) {
            let below = folder.join(name);
            // `cpuset.cpus` is empty where the cgroup has what its parent has.
            let own = list(root.join(&below).join("cpuset.cpus")).filter(|cpus| !cpus.is_empty());
            found.extend(own.map(|cpus| (format!("/{}", below.display()), cpus)));
            if depth < 3 && found.len() < most {
                open.push((below, depth + 1));
            }
        }
    }
    found.sort();
    found.truncate(most);
    found
}

/// Returns a cgroup's path as one below a root; `None` if it leads out of it.
fn inside(cgroup: &str) -> Option<PathBuf> {
    let inner = PathBuf::from(cgroup.trim_start_matches('/'));
    let plain = inner.components().all(|part| matches!(part, std::path::Component::Normal(_)));
    plain.then_some(inner)
}
