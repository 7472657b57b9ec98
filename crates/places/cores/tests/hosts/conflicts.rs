//! Choices of other programs, and settings that contradict a plan.

use crate::lab::*;
use tidegate_place_cores::conflicts::pins;
use tidegate_place_cores::discover::Found;

#[test]
fn what_chose_a_threads_cpus() {
    let mut lab = Lab::new("eight-cores", vec![netdev("a", 1, "vnet0")], vec![]);
    qemu(&lab.tree, 100, "vnet0");
    thread(&lab.tree, 1, 1, "systemd", 0, 0, "0-7");
    thread(&lab.tree, 200, 200, "vhost-100", KERNEL, 0, "0-5");
    lab.tree.file("/run/libvirt/qemu/a.xml", STATE);
    thread(&lab.tree, 100, 104, "CPU 1/KVM", 0, 0, "3");
    thread(&lab.tree, 100, 102, "IO iothread1", 0, 0, "4-5");
    lab.tree.file("/proc/100/task/102/cgroup", "0::/machine.slice/a.scope");
    lab.tree.file("/sys/fs/cgroup/machine.slice/a.scope/cpuset.cpus.effective", "4-5");
    let by = |found: &Found, name: &str| stage(found, name).pinned_by.clone().unwrap_or_default();
    let found = lab.look();
    assert_eq!(by(&found, "CPU 0/KVM"), "libvirt's <vcpupin>");
    assert_eq!(by(&found, "qemu-system-x86"), "libvirt's <emulatorpin>");
    assert_eq!(by(&found, "vhost-100"), "libvirt's <emulatorpin>");
    assert_eq!(by(&found, "CPU 1/KVM"), "its CPU affinity, which another program set");
    assert_eq!(by(&found, "IO iothread1"), "the cpuset of its cgroup /machine.slice/a.scope");
    let chosen: Vec<_> =
        found.of_libvirt.iter().map(|(thread, cpus)| (thread.thread, cpus.clone())).collect();
    assert_eq!(chosen, [(100, [1].into()), (103, [2].into()), (200, [1].into())]);
    let conflicts = pins::find(&found.stages, false);
    let of: Vec<_> =
        conflicts.iter().map(|conflict| (conflict.with.as_str(), conflict.what.as_str())).collect();
    let libvirt = "2 stages of a have their CPUs by libvirt's <emulatorpin>: they stay there, whatever the plan would choose";
    assert!(of.contains(&("libvirt's <emulatorpin>", libvirt)), "{of:?}");
    // All services have fewer CPUs.
    thread(&lab.tree, 1, 1, "systemd", 0, 0, "3");
    assert_eq!(by(&lab.look(), "CPU 1/KVM"), "CPUAffinity= of systemd");
    // A container with CPUs of its own.
    let state = r#"{"policyName":"static","defaultCpuSet":"0-2,4-7","entries":{"u":{"c":"3"}},"checksum":1}"#;
    lab.tree.file("/var/lib/kubelet/cpu_manager_state", state);
    lab.tree.file("/proc/100/task/104/cgroup", "0::/kubepods.slice/pod/c");
    let found = lab.look();
    assert_eq!(by(&found, "CPU 1/KVM"), "Kubernetes' CPU manager");
    assert!(!found.usable.contains(&3) && found.usable.contains(&2));
}

#[test]
fn programs_and_settings_that_contradict_a_plan() {
    let mut lab = Lab::new("two-sockets", vec![], vec![]);
    assert_eq!(lab.look().conflicts, []);
    thread(&lab.tree, 10, 10, "irqbalance", 0, 0, "0-127");
    thread(&lab.tree, 11, 11, "tuned", 0, 0, "0-127");
    thread(&lab.tree, 12, 12, "numad", 0, 0, "0-127");
    lab.tree.file("/proc/12/status", "Uid:\t1000\t1000\t1000\t1000");
    lab.tree.file("/etc/default/irqbalance", "# x\nIRQBALANCE_BANNED_CPULIST=2-3");
    lab.tree.file("/etc/tuned/active_profile", "my");
    lab.tree.file("/etc/tuned/my/tuned.conf", "[main]\ninclude=realtime");
    lab.tree.file("/proc/sys/kernel/numa_balancing", "1");
    lab.tree.file("/proc/irq/default_smp_affinity", "00000000,00000000,00000000,00000003");
    lab.tree.file("/sys/devices/system/cpu/isolated", "4-7");
    lab.tree.file("/sys/fs/cgroup/machine.slice/cpuset.cpus.effective", "8-31");
    lab.host.cores.cpus = Some([8, 500].into());
    let conflicts = lab.look().conflicts;
    let with: Vec<&str> = conflicts.iter().map(|conflict| conflict.with.as_str()).collect();
    let expected = [
        "irqbalance",
        "tuned, profile my",
        "kernel.numa_balancing",
        "isolcpus= or nohz_full=",
        "/proc/irq/default_smp_affinity",
        "the cpuset of /machine.slice",
        "[host.cores]",
    ];
    assert_eq!(with, expected, "numad is not root's");
    assert!(conflicts[0].what.contains("IRQBALANCE_BANNED_CPULIST=2-3"));
    assert!(conflicts[4].what.contains("CPUs 0-1 alone"), "{:?}", conflicts[4]);
    lab.tree.file("/etc/tuned/active_profile", "virtual-host");
    assert_eq!(lab.look().conflicts.len(), expected.len() - 1);
}
