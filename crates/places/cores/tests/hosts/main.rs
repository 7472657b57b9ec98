//! Hosts with VMs, from files of `/proc` and `/sys`.
//!
//! - [`lab`]: a host of files
//! - [`vms`], [`nics`], [`conflicts`]: what a look finds
//! - here: large hosts, and any

mod conflicts;
mod lab;
mod nics;
#[path = "../tree/mod.rs"]
mod tree;
mod vms;

use lab::*;
use proptest::prelude::*;
use std::time::Duration;

/// Writes `count` VMs of two virtual CPUs on taps with vhost, and as many other processes.
fn crowd(lab: &mut Lab, count: u32) {
    for number in 0..count {
        let (process, name) = (10_000 + number * 10, format!("vnet{number}"));
        lab.contracts.push(netdev(&format!("vm{number}"), (number % 250) as u8, &name));
        tap(&lab.tree, &name);
        qemu(&lab.tree, process, &name);
        thread(&lab.tree, process, process + 5, &format!("vhost-{process}"), USER_WORKER, 0, "0-127");
        for descriptor_number in 30..80 {
            descriptor(&lab.tree, process, descriptor_number, "anon_inode:[eventfd]", "");
        }
        thread(&lab.tree, process + 7, process + 7, "other", 0, 0, "0-127");
    }
}

#[test]
fn a_look_at_many_vms_costs_less_than_the_first() {
    const VMS: u32 = 500;
    let mut lab = Lab::new("two-sockets", vec![], vec![]);
    crowd(&mut lab, VMS);
    // Processor time: other tests run beside this one.
    let used =
        || Duration::try_from(rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime)).unwrap();
    let mut look = || {
        let began = used();
        let found = lab.look();
        (used() - began, found)
    };
    let (first, found) = look();
    assert_eq!(found.stages.len(), VMS as usize * 6, "vhost, its tap, two virtual CPUs, two of the emulator");
    let mut later: Vec<Duration> = (0..5).map(|_| look().0).collect();
    later.sort_unstable();
    println!(
        "500 VMs, 1,000 processes: the first look used {first:?} of processor time, later ones {:?} (median)",
        later[2]
    );
    assert!(later[0] < first, "{later:?} {first:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn no_host_makes_it_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), "[ -~\n]{0,40}", any::<bool>()), 0..60),
    ) {
        let mut lab = Lab::new("eight-cores", vec![netdev("a", 1, "vnet0"), netdev("b", 2, "macvtap0")], vec![]);
        tap(&lab.tree, "vnet0");
        qemu(&lab.tree, 100, "vnet0");
        thread(&lab.tree, 200, 200, "vhost-100", KERNEL, 0, "0-7");
        lab.tree.file("/run/libvirt/qemu/a.xml", STATE);
        lab.tree.file("/var/lib/kubelet/cpu_manager_state", "{}");
        lab.host.cores.steer = vec!["eth0".into()];
        let files = lab.tree.files();
        for (file, content, gone) in changes {
            tree::replace(file.get(&files).as_path(), (!gone).then_some(content.as_str()));
        }
        for _ in 0..2 {
            let found = lab.look();
            let mut handles: Vec<_> = found.stages.iter().map(|stage| &stage.handle).collect();
            handles.sort_unstable();
            handles.dedup();
            prop_assert_eq!(handles.len(), found.stages.len());
            for link in &found.links {
                prop_assert!(handles.contains(&&link.from) && handles.contains(&&link.to));
            }
            prop_assert!(found.stages.iter().all(|stage| stage.load <= 1_000_000));
        }
    }
}
