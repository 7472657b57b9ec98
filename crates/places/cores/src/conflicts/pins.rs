//! Stages for which another program, or a setting, chose the CPUs. Pure.

use super::known::conflict;
use std::collections::BTreeMap;
use tidegate_cores::stage::Stage;
use tidegate_evidence::ConflictReport;

/// Returns a conflict for each program or setting that chose CPUs.
pub fn find(stages: &[Stage], adopt: bool) -> Vec<ConflictReport> {
    let mut by = BTreeMap::<&str, Vec<&str>>::new();
    let mut count = BTreeMap::<&str, usize>::new();
    for stage in stages {
        if let Some(pinned_by) = &stage.pinned_by {
            *count.entry(pinned_by).or_default() += 1;
            by.entry(pinned_by).or_default().extend(stage.vnics.iter().map(String::as_str));
        }
    }
    let report = |(with, mut vnics): (&str, Vec<&str>)| {
        vnics.sort_unstable();
        vnics.dedup();
        let stages = count[with];
        let one = stages == 1;
        let of = match vnics.as_slice() {
            [] => String::new(),
            few if few.len() <= 4 => format!(" of {}", few.join(", ")),
            [first, second, rest @ ..] => format!(" of {first}, {second} and {} other vNICs", rest.len()),
            [_] => String::new(),
        };
        let work = if one { "1 stage" } else { &format!("{stages} stages") };
        let (has, stay) = if one { ("has its", "it stays") } else { ("have their", "they stay") };
        let moves = adopt && movable(with);
        let then = if moves {
            "the plan moves them, and what set them may set them again".to_owned()
        } else {
            format!("{stay} there, whatever the plan would choose")
        };
        conflict(with, format!("{work}{of} {has} CPUs by {with}: {then}"), remedy(with))
    };
    by.into_iter().map(report).collect()
}

/// Whether a stage can be moved at all against this setting.
pub fn movable(with: &str) -> bool {
    !with.starts_with("the kernel") && !with.starts_with("the cpuset") && !with.starts_with("Kubernetes")
}

/// Whether the choice is known to be this one's, whatever the CPUs that the stage has now.
pub fn is_certain(with: &str) -> bool {
    with.starts_with("libvirt") || !movable(with)
}

fn remedy(with: &str) -> &'static str {
    match with {
        _ if with.starts_with("libvirt") => {
            "remove it from the domain (virsh edit), or let the plan move its threads: [host.cores] adopt = true"
        }
        _ if with.starts_with("Kubernetes") => {
            "leave these CPUs to Kubernetes, or run the VM without CPUs of its own (dedicatedCpuPlacement: false)"
        }
        _ if with.starts_with("the kernel") => {
            "none while the driver runs: plan around it, or load the driver with fewer queues"
        }
        _ if with.starts_with("the cpuset") => {
            "widen the cpuset of the cgroup (systemctl set-property UNIT AllowedCPUs=LIST), or plan within it"
        }
        _ if with.starts_with("CPUAffinity") => {
            "remove CPUAffinity= from /etc/systemd/system.conf or from the unit, or let the plan move the threads: \
                [host.cores] adopt = true"
        }
        _ => "end what set it (taskset, a script), or let the plan move it: [host.cores] adopt = true",
    }
}
