//! VMs and their threads.

use crate::lab::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tidegate_contract::{Nanos, SocketMode};
use tidegate_cores::stage::{Handle, Kind, Stage, Thread, ThreadKind};
use tidegate_place_cores::discover::descriptor::SocketFile;
use tidegate_place_cores::discover::peers::UnixSocket;
use tidegate_place_cores::discover::{Discovery, Kernel};

#[test]
fn a_vm_on_a_tap_with_a_process_of_vhost() {
    let mut lab = Lab::new("eight-cores", vec![netdev("a", 1, "vnet0"), netdev("b", 2, "vnet1")], vec![]);
    tap(&lab.tree, "vnet0");
    qemu(&lab.tree, 100, "vnet0");
    thread(&lab.tree, 200, 200, "vhost-100", KERNEL, 0, "0-7");
    // Neither a program that calls itself vhost, nor one with a tap of this name in another network namespace.
    thread(&lab.tree, 300, 300, "vhost-100", 0, 0, "0-7");
    descriptor(&lab.tree, 300, 0, "/dev/null", "");
    qemu(&lab.tree, 400, "vnet0");
    descriptor(&lab.tree, 400, 10, "/dev/net/tun", "iff:\tvnet0\nnamespace:\t2");
    // A file, in a mount namespace of its own.
    qemu(&lab.tree, 500, "none");
    descriptor(&lab.tree, 500, 10, "/dev/net/tun", "iff:\tvnet0\nfake");
    let found = lab.look();
    let expected = [
        (Kind::SoftIrq, 0),
        (Kind::Vhost, 200),
        (Kind::Vcpu, 103),
        (Kind::Vcpu, 104),
        (Kind::Emulator, 100),
        (Kind::Emulator, 102),
    ];
    assert_eq!(kinds(&found, "a"), expected);
    assert_eq!(kinds(&found, "b"), [], "no process holds its tap");
    let vhost = Thread { process: 200, thread: 200, started: 1200 };
    let handle = Handle::Thread { kind: ThreadKind::Vhost, thread: vhost, name: "vhost-100".into() };
    let stage = found.stages.iter().find(|stage| stage.handle == handle).unwrap();
    assert_eq!((stage.present.len(), stage.realtime, &stage.pinned_by), (8, false, &None));
    assert_eq!(found.notes, [] as [&str; 0]);
}

#[test]
fn vhost_as_threads_of_the_emulator() {
    let mut lab = Lab::new("eight-cores", vec![netdev("a", 1, "vnet0")], vec![]);
    lab.contracts[0].deadline = Some(Nanos::new(1_000_000));
    qemu(&lab.tree, 100, "vnet0");
    thread(&lab.tree, 100, 105, "vhost-100", USER_WORKER, 0, "0-7");
    // The guest's operator names a thread so.
    thread(&lab.tree, 100, 106, "vhost-100", 0, 0, "0-7");
    let found = lab.look();
    let vhosts = kinds(&found, "a").into_iter().filter(|(kind, _)| *kind == Kind::Vhost);
    assert_eq!(vhosts.collect::<Vec<_>>(), [(Kind::Vhost, 105)]);
    let realtime: Vec<_> = found.stages.iter().filter(|stage| stage.realtime).collect();
    assert_eq!(realtime.len(), 1, "vhost alone: {realtime:?}");
}

#[test]
fn no_more_threads_of_vhost_are_real_time_than_taps_have_queues() {
    let mut lab = Lab::new("eight-cores", vec![netdev("a", 1, "vnet0"), netdev("b", 2, "vnet1")], vec![]);
    lab.contracts[0].deadline = Some(Nanos::new(1_000_000));
    (lab.contracts[0].queues, lab.contracts[1].queues) = (2, 1);
    qemu(&lab.tree, 100, "vnet0");
    descriptor(&lab.tree, 100, 12, "/dev/net/tun", "iff:\tvnet1");
    for number in 110..120 {
        thread(&lab.tree, 100, number, "vhost-100", USER_WORKER, 0, "0-7");
    }
    // A worker of io_uring; one that names another VM.
    thread(&lab.tree, 100, 105, "vhost-100", USER_WORKER | 0x10, 0, "0-7");
    thread(&lab.tree, 100, 106, "vhost-1", USER_WORKER, 0, "0-7");
    let found = lab.look();
    let thread = |stage: &&Stage| match &stage.handle {
        Handle::Thread { thread, .. } => thread.thread,
        other => panic!("{other}"),
    };
    let realtime = found.stages.iter().filter(|stage| stage.realtime);
    assert_eq!(realtime.map(|stage| thread(&stage)).collect::<Vec<_>>(), [110, 111, 112]);
    let vhosts = found.stages.iter().filter(|stage| stage.handle.kind() == Kind::Vhost);
    assert_eq!(vhosts.count(), 10);
}

#[test]
fn a_vnic_has_one_process_and_a_vm_has_virtual_cpus() {
    let contracts = ["vnet0", "vnet1", "vnet2"].map(|name| netdev(name, 1, name));
    let mut lab = Lab::new("eight-cores", contracts.into(), vec![]);
    qemu(&lab.tree, 100, "vnet0");
    qemu(&lab.tree, 200, "vnet1");
    // A service that keeps descriptors which others send to it: beside the VM, and instead of one.
    thread(&lab.tree, 50, 50, "keeper", 0, 0, "0-7");
    descriptor(&lab.tree, 50, 10, "/dev/net/tun", "iff:\tvnet0");
    descriptor(&lab.tree, 50, 11, "/dev/net/tun", "iff:\tvnet2");
    let found = lab.look();
    assert_eq!(["vnet0", "vnet1", "vnet2"].map(|name| kinds(&found, name).len()), [4, 4, 0]);
    assert_eq!(found.notes.len(), 1, "{:?}", found.notes);
    assert!(found.notes[0].starts_with("the threads of processes 50 are not planned"), "{:?}", found.notes);
    // Another VM has it, too.
    let mut lab = Lab::new("eight-cores", vec![netdev("a", 1, "vnet0")], vec![]);
    qemu(&lab.tree, 100, "vnet0");
    qemu(&lab.tree, 200, "vnet0");
    let found = lab.look();
    assert_eq!(kinds(&found, "a"), []);
    assert!(found.notes[0].starts_with("the threads of a are not planned: several"), "{:?}", found.notes);
    lab.tree.file("/run/libvirt/qemu/a.xml", STATE);
    assert!(kinds(&lab.look(), "a").contains(&(Kind::Vcpu, 103)), "libvirt knows which");
}

#[test]
fn notes_stay_few_however_many_processes() {
    let contracts =
        (0..100_u8).map(|number| netdev(&format!("vm{number}"), number, &format!("vnet{number}")));
    let mut lab = Lab::new("eight-cores", contracts.collect(), vec![]);
    for number in 0..100 {
        let process = 1000 + number;
        thread(&lab.tree, process, process, "keeper", 0, 0, "0-7");
        descriptor(&lab.tree, process, 10, "/dev/net/tun", &format!("iff:\tvnet{number}"));
    }
    let found = lab.look();
    assert_eq!(found.notes.len(), 1);
    assert!(found.notes[0].contains("1003 and 96 more are not planned"), "{:?}", found.notes);
}

#[test]
fn new_sockets_of_a_contract_are_not_worth_a_look_at_all_processes_each() {
    let count = Arc::new(AtomicU64::new(0));
    let (looks, next) = (Arc::clone(&count), Arc::new(AtomicU64::new(100)));
    let mut lab = Lab::new("eight-cores", vec![vhost_user("a", 1, "/a.sock", SocketMode::Server)], vec![]);
    let kernel = Kernel {
        // A user connects again and again, with many sockets.
        sockets: Box::new(move || {
            let first = next.fetch_add(2000, Ordering::Relaxed);
            let pair = |inode| UnixSocket { inode, file: file_at("/a.sock"), peer: Some(inode + 1) };
            Ok((0..1000).map(|number| pair(first + 2 * number)).collect())
        }),
        addresses: Box::new(Vec::new),
        device: Box::new(move |_| {
            looks.fetch_add(1, Ordering::Relaxed);
            None
        }),
        tap: Box::new(|_, _| None),
        file: Box::new(|path| file_at(path.to_str()?)),
    };
    lab.discovery = Discovery::with_kernel(lab.tree.roots(), kernel);
    for process in 600..660 {
        thread(&lab.tree, process, process, "other", 0, 0, "0-7");
        descriptor(&lab.tree, process, 10, "/dev/vfio/1", "");
    }
    lab.look();
    count.store(0, Ordering::Relaxed);
    for _ in 0..12 {
        lab.look();
    }
    // Twelve sixths of 60, and in these 120 s four times all.
    assert!(count.load(Ordering::Relaxed) <= 120 + 4 * 60, "{count:?}");
}

#[test]
fn a_macvtap_is_known_by_its_device() {
    let mut lab = Lab::new("eight-cores", vec![netdev("a", 1, "macvtap0")], vec![]);
    tap(&lab.tree, "macvtap0");
    lab.tree.file("/sys/class/macvtap/tap7/dev", "240:7");
    qemu(&lab.tree, 200, "other");
    descriptor(&lab.tree, 200, 12, "/dev/tap7", "fake");
    lab.tree.file("/sys/class/net/macvtap0/lower_eth0", "-> ../eth0");
    qemu(&lab.tree, 100, "other");
    descriptor(&lab.tree, 100, 12, "/dev/tap7", "");
    let found = lab.look();
    assert!(kinds(&found, "a").contains(&(Kind::Vcpu, 103)));
    let nic = found
        .stages
        .iter()
        .filter(|stage| matches!(&stage.handle, Handle::Receive(queue) if queue.device == "eth0"));
    assert_eq!(nic.count(), 2, "its frames come by eth0");
}

#[test]
fn front_ends_of_sockets_that_we_or_they_listen_at() {
    let socket = |inode, path: Option<&str>, peer| UnixSocket {
        inode,
        file: path.and_then(file_at),
        peer: Some(peer),
    };
    // 1 and 3 are the switch's; 2 and 4 front ends'.
    let sockets = vec![
        socket(1, Some("/a.sock"), 2),
        socket(2, None, 1),
        socket(4, Some("/b.sock"), 3),
        socket(3, None, 4),
        UnixSocket { inode: 5, file: file_at("/a.sock"), peer: None },
        // A pair of another user's, bound to the same path in a mount namespace of his own.
        UnixSocket { inode: 6, file: Some(SocketFile { device: 2, inode: 0 }), peer: Some(7) },
        socket(7, None, 6),
    ];
    let contracts = vec![
        vhost_user("a", 1, "/a.sock", SocketMode::Server),
        vhost_user("b", 2, "/b.sock", SocketMode::Client),
    ];
    let mut lab = Lab::new("eight-cores", contracts, sockets);
    lab.reported = vec![port("a"), port("a"), port("b")];
    thread(&lab.tree, 50, 50, "tidegate", 0, 0, "0-7");
    descriptor(&lab.tree, 50, 3, "socket:[1]", "");
    descriptor(&lab.tree, 50, 4, "socket:[3]", "");
    for (process, inode) in [(100, 2), (200, 4)] {
        qemu(&lab.tree, process, "none");
        descriptor(&lab.tree, process, 20, &format!("socket:[{inode}]"), "");
    }
    qemu(&lab.tree, 300, "none");
    descriptor(&lab.tree, 300, 20, "socket:[7]", "");
    lab.frames("a", 0, 0);
    lab.look();
    lab.frames("a", 1_000_000, 0);
    let found = lab.look();
    for (vnic, process) in [("a", 100), ("b", 200)] {
        let vcpus = [(Kind::Vcpu, process + 3), (Kind::Vcpu, process + 4)];
        let found: Vec<_> = kinds(&found, vnic).into_iter().filter(|(kind, _)| *kind == Kind::Vcpu).collect();
        assert_eq!(found, vcpus, "{vnic}");
    }
    let ports = found.stages.iter().filter(|stage| matches!(stage.handle, Handle::Port(_)));
    assert_eq!(ports.count(), 2, "each once");
    let of_a: Vec<_> = found.links.iter().filter(|link| link.to == Handle::Port("a".into())).collect();
    assert_eq!(
        of_a.iter().map(|link| link.frames).collect::<Vec<_>>(),
        [50_000, 50_000],
        "{:?}",
        found.links
    );
}

#[test]
fn loads_are_measured_by_thread_and_start() {
    let mut contract = netdev("a", 1, "vnet0");
    (contract.tx.max, contract.rx.max) = (tidegate_contract::Rate::from_bits(12_144_000), None);
    let mut lab = Lab::new("eight-cores", vec![contract], vec![]);
    qemu(&lab.tree, 100, "vnet0");
    let found = lab.look();
    let vcpu = stage(&found, "CPU 0/KVM");
    // 1,000 and 82,345 frames a second, half of them 1,250 ns each.
    assert_eq!((vcpu.load, vcpu.measured), (52_090, false), "by contract");
    thread(&lab.tree, 100, 103, "CPU 0/KVM", 0, 600, "0-7");
    thread(&lab.tree, 100, 101, "call_rcu", 0, 30, "0-7");
    let found = lab.look();
    let vcpu = stage(&found, "CPU 0/KVM");
    assert_eq!((vcpu.load, vcpu.measured), (500_000, true), "500 of 1,000 ticks");
    let main = stage(&found, "qemu-system-x86");
    assert_eq!((main.load, main.measured), (30_000, true), "with its busy helper's");
    assert_eq!(kinds(&found, "a").len(), 4, "which is no stage");
    // Its number goes to a new thread, which began with more CPU time than the old one had.
    let stat = "103 (CPU 0/KVM) S 1 1 1 0 -1 0 0 0 0 0 90000 0 0 0 20 0 1 0 777777 0 0";
    lab.tree.file("/proc/100/task/103/stat", stat);
    let found = lab.look();
    let vcpu = stage(&found, "CPU 0/KVM");
    assert!(!vcpu.measured, "{vcpu:?}");
    assert!(matches!(vcpu.handle, Handle::Thread { thread: Thread { started: 777_777, .. }, .. }));
    lab.tree.remove("/proc/100");
    assert_eq!(lab.look().stages, [], "the VM ended");
}

#[test]
fn a_vm_that_starts_or_gets_a_device_later() {
    let mut lab = Lab::new("eight-cores", vec![netdev("a", 1, "vnet0"), netdev("b", 2, "vnet1")], vec![]);
    lab.look();
    qemu(&lab.tree, 100, "vnet0");
    assert_eq!(kinds(&lab.look(), "a").len(), 4, "a new process is seen at once");
    descriptor(&lab.tree, 100, 30, "/dev/net/tun", "iff:\tvnet1");
    let looks = (0..6).take_while(|_| kinds(&lab.look(), "b").is_empty()).count();
    assert!(looks < 6, "a new descriptor within six looks");
    // The number of a process goes to another VM.
    lab.tree.remove("/proc/100");
    thread(&lab.tree, 100, 100, "other", 0, 0, "0-7");
    assert!((0..6).any(|_| kinds(&lab.look(), "a").is_empty()), "within six looks");
}

#[test]
fn where_descriptors_are_hidden_libvirt_tells() {
    let mut lab = Lab::new("eight-cores", vec![netdev("a", 1, "vnet0")], vec![]);
    for (number, name) in [(100, "qemu-system-x86"), (103, "qemu-system-x86"), (104, "qemu-system-x86")] {
        thread(&lab.tree, 100, number, name, 0, 0, "0-7");
    }
    let found = lab.look();
    assert_eq!(found.stages, []);
    assert!(found.notes[0].starts_with("the threads of a are not planned: "), "{:?}", found.notes);
    lab.tree.file("/run/libvirt/qemu/a.xml", STATE);
    let found = lab.look();
    assert_eq!(kinds(&found, "a"), [(Kind::Vcpu, 103), (Kind::Emulator, 100)]);
    lab.tree.file("/run/libvirt/qemu/a.xml", "<domstatus");
    let later = std::time::SystemTime::now() + Duration::from_secs(5);
    std::fs::File::open(lab.tree.path("/run/libvirt/qemu/a.xml")).unwrap().set_modified(later).unwrap();
    assert_eq!(lab.look().stages, []);
}
