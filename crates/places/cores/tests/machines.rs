//! Machines from their files, captured and written (`tests/machines/make.py`), also with files missing or spoilt.

mod tree;

use proptest::prelude::*;
use std::collections::BTreeSet;
use tidegate_cores::cpus::Cpus;
use tidegate_cores::machine::{Distance, Machine};
use tidegate_place_cores::machine::{self, Seen};
use tree::Tree;

fn machine(name: &str) -> Machine {
    machine::read(&Tree::of(name).roots()).machine
}

fn groups(machine: &Machine, of: impl Fn(usize) -> u32) -> usize {
    machine.cpus.keys().map(|cpu| of(*cpu)).collect::<BTreeSet<_>>().len()
}

/// CPUs, cores, caches, nodes.
fn counts(machine: &Machine) -> [usize; 4] {
    let of = |cpu: usize| &machine.cpus[&cpu];
    let groups = |field: fn(&tidegate_cores::machine::Cpu) -> u32| groups(machine, |cpu| field(of(cpu)));
    [machine.cpus.len(), groups(|cpu| cpu.core), groups(|cpu| cpu.cache), groups(|cpu| cpu.node)]
}

#[test]
fn a_server_of_two_sockets() {
    let machine = machine("two-sockets");
    assert_eq!(counts(&machine), [128, 64, 2, 2]);
    let distances = [(5, 5), (5, 69), (5, 6), (5, 37)].map(|(one, other)| machine.distance(one, other));
    assert_eq!(distances, [Distance::Same, Distance::Sibling, Distance::Cache, Distance::Remote]);
    assert_eq!((machine.nics["ens1"], machine.nics["ens2"]), (0, 1));
}

#[test]
fn groups_of_cores_with_a_cache_each_and_a_node_without_cpus() {
    let machine = machine("cache-groups");
    assert_eq!(counts(&machine), [32, 16, 4, 1]);
    let distances = [(0, 16), (0, 3), (0, 4)].map(|(one, other)| machine.distance(one, other));
    assert_eq!(distances, [Distance::Sibling, Distance::Cache, Distance::Node]);
    assert!(machine.nics.is_empty(), "firmware does not know the node");
}

#[test]
fn cores_without_threads_cores_of_two_kinds_and_one_cpu() {
    let eight = machine("eight-cores");
    assert_eq!(counts(&eight), [8, 8, 1, 1]);
    assert_eq!(eight.isolated(), [6, 7].into());
    let hybrid = machine("hybrid");
    assert_eq!(counts(&hybrid), [12, 8, 1, 1]);
    assert_eq!([hybrid.distance(0, 1), hybrid.distance(8, 9)], [Distance::Sibling, Distance::Cache]);
    assert_eq!(counts(&machine("one-cpu")), [1, 1, 1, 1]);
}

#[test]
fn a_captured_virtual_machine() {
    assert_eq!(counts(&machine("virtual-two")), [2, 2, 1, 1]);
}

#[test]
fn a_captured_machine_of_two_sockets_with_a_nic_of_many_queues() {
    let machine = machine("guest-eight");
    assert_eq!(counts(&machine), [8, 4, 2, 2]);
    let distances = [(4, 5), (4, 6), (4, 0)].map(|(one, other)| machine.distance(one, other));
    assert_eq!(distances, [Distance::Sibling, Distance::Cache, Distance::Remote]);
    assert_eq!(machine.nics, [("eth0".to_owned(), 1)].into());
}

#[test]
fn this_machine() {
    let Seen { machine, own, machines } = machine::read(&Default::default());
    let online = std::thread::available_parallelism().unwrap().get();
    assert!(machine.cpus.len() >= online && own.len() >= online, "{machine:?} {own:?}");
    assert!(!machines.is_empty());
}

#[test]
fn a_cpu_that_goes_offline() {
    let tree = Tree::of("two-sockets");
    tree.file("/sys/devices/system/cpu/online", "0-4,6-127");
    // Its topology goes with it, and the kernel takes it out of the lists of the others.
    tree.remove("/sys/devices/system/cpu/cpu5/topology");
    tree.remove("/sys/devices/system/cpu/cpu5/cache");
    tree.file("/sys/devices/system/cpu/cpu69/topology/core_cpus_list", "69");
    let machine = machine::read(&tree.roots()).machine;
    assert_eq!(counts(&machine), [127, 64, 2, 2]);
    assert!(!machine.cpus.contains_key(&5));
    // Between the two reads: listed, but without files.
    tree.file("/sys/devices/system/cpu/online", "0-127");
    let machine = machine::read(&tree.roots()).machine;
    assert_eq!((machine.cpus[&5].core, machine.distance(5, 4)), (5, Distance::Node), "near to nothing");
}

#[test]
fn cpus_set_apart_on_the_command_line() {
    let tree = Tree::of("eight-cores");
    tree.remove("/sys/devices/system/cpu/isolated");
    for (line, expected) in [
        ("quiet isolcpus=managed_irq,domain,2-3 nohz_full=4 -- isolcpus=1", vec![2, 3, 4]),
        ("isolcpus=1,3", vec![1, 3]),
        ("isolcpus= nohz_full=N-x isolcpus=0-99999999", vec![]),
    ] {
        tree.file("/proc/cmdline", line);
        let isolated = machine::read(&tree.roots()).machine.isolated();
        assert_eq!(isolated, expected.into_iter().collect::<Cpus>(), "{line}");
    }
}

#[test]
fn cpusets_of_both_versions() {
    let tree = Tree::of("eight-cores");
    let seen = || machine::read(&tree.roots());
    let all: Cpus = (0..8).collect();
    assert_eq!((seen().own, seen().machines), (all.clone(), all.clone()), "no cgroups");
    tree.file("/proc/self/cgroup", "0::/system.slice/tidegate-agent.service");
    tree.file("/sys/fs/cgroup/cpuset.cpus.effective", "0-7");
    tree.file("/sys/fs/cgroup/machine.slice/cpuset.cpus.effective", "2-7,60");
    tree.file("/sys/fs/cgroup/system.slice/cpuset.cpus.effective", "0-1");
    assert_eq!((seen().own, seen().machines), ([0, 1].into(), (2..8).collect()), "from the slice above");
    tree.file("/proc/self/cgroup", "0::/\\n9:cpuset:/a/b\\n3:cpu,cpuacct:/x".replace("\\n", "\n").as_str());
    tree.file("/sys/fs/cgroup/cpuset/a/b/cpuset.effective_cpus", "3");
    assert_eq!(seen().own, [3].into());
    tree.file("/proc/self/cgroup", "9:cpuset:/../../../etc");
    assert_eq!(seen().own, all, "a path that leads elsewhere is not followed");
}

/// Contents that a kernel does not write, or writes at an odd time.
fn spoilt() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        Just("-1".into()),
        Just("0-4294967295".into()),
        Just("3-1".into()),
        Just("0-299".into()),
        Just("\u{0}\u{fffd}".into()),
        "[0-9,\\- a-z]{0,12}",
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn no_tree_makes_it_panic(
        name in prop::sample::select(vec!["cache-groups", "eight-cores", "hybrid", "one-cpu", "virtual-two"]),
        changes in prop::collection::vec((any::<prop::sample::Index>(), prop::option::of(spoilt())), 0..40),
    ) {
        let tree = Tree::of(name);
        let files = tree.files();
        for (file, content) in changes {
            tree::replace(file.get(&files).as_path(), content.as_deref());
        }
        let Seen { machine, own, machines } = machine::read(&tree.roots());
        let online = machine.online();
        prop_assert!(own.is_subset(&online) && machines.is_subset(&online));
        for cpu in &online {
            prop_assert_eq!(machine.distance(*cpu, *cpu), Distance::Same);
        }
    }
}
