//! Hosts with VMs, from files of `/proc` and `/sys`.

mod tree;

use proptest::prelude::*;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tidegate_contract::{Attach, Host, Nanos, SocketMode, SocketOwner, Vnic};
use tidegate_cores::stage::{Handle, Kind, Queue, Stage, Thread, ThreadKind};
use tidegate_evidence::{Evidence, VnicStats};
use tidegate_place::Network;
use tidegate_place_cores::conflicts::pins;
use tidegate_place_cores::discover::descriptor::{Device, SocketFile};
use tidegate_place_cores::discover::peers::UnixSocket;
use tidegate_place_cores::discover::{Discovery, Found, Kernel, LookInput};
use tidegate_testkit::contract::vnic;
use tree::Tree;

/// `PF_KTHREAD`, `PF_USER_WORKER`.
const KERNEL: u32 = 0x0020_0000;
const USER_WORKER: u32 = 0x0000_4000;

fn netdev(name: &str, number: u8, device: &str) -> Vnic {
    Vnic { attach: Attach::Netdev { name: device.into() }, ..vnic(name, number) }
}

fn vhost_user(name: &str, number: u8, path: &str, mode: SocketMode) -> Vnic {
    Vnic {
        attach: Attach::VhostUser { path: path.into(), mode, owner: SocketOwner::default() },
        ..vnic(name, number)
    }
}

/// A host, and all that is asked of it.
struct Lab {
    tree: Tree,
    contracts: Vec<Vnic>,
    network: Network,
    host: Host,
    reported: Vec<Stage>,
    evidence: Evidence,
    now: Instant,
    discovery: Discovery,
}

impl Lab {
    fn new(machine: &str, contracts: Vec<Vnic>, sockets: Vec<UnixSocket>) -> Self {
        let tree = Tree::of(machine);
        let proc = tree.path("/proc");
        let kernel = Kernel {
            sockets: Box::new(move || Ok(sockets.clone())),
            addresses: Box::new(|| {
                vec![("192.0.2.1".parse().unwrap(), 4), ("192.0.2.2".parse().unwrap(), 5)]
            }),
            device: Box::new(device),
            tap: Box::new(move |process, fd| tap_of(&proc.join(process.to_string()), fd)),
            file: Box::new(|path| file_at(path.to_str()?)),
        };
        let discovery = Discovery::with_kernel(tree.roots(), kernel);
        Self {
            tree,
            contracts,
            network: Network::default(),
            host: Host::default(),
            reported: vec![],
            evidence: Evidence::empty("a test"),
            now: Instant::now(),
            discovery,
        }
    }

    /// A look, ten seconds after the last one.
    fn look(&mut self) -> Found {
        self.now += Duration::from_secs(10);
        self.discovery.look(&LookInput {
            now: self.now,
            contracts: &self.contracts.iter().collect::<Vec<_>>(),
            host: &self.host,
            network: &self.network,
            reported: &self.reported.iter().collect::<Vec<_>>(),
            evidence: &[&self.evidence],
        })
    }

    fn frames(&mut self, vnic: &str, sent: u64, received: u64) {
        let mut stats = VnicStats::default();
        (stats.tx.frames, stats.rx.frames) = (sent, received);
        self.evidence.vnics.insert(vnic.into(), stats);
    }
}

/// The device of a descriptor, by its path: `/dev/tap7` is 240:7. Those that `fdinfo` calls fake are files.
fn device(path: &Path) -> Option<Device> {
    let info = path.parent()?.with_file_name("fdinfo").join(path.file_name()?);
    let link = std::fs::read_link(path).ok()?;
    let number = |prefix: &str| link.to_str()?.strip_prefix(prefix)?.parse().ok();
    let device = match link.to_str()? {
        "/dev/net/tun" => Device::TUN,
        _ => match (number("/dev/tap"), number("/dev/vfio/")) {
            (Some(minor), _) => Device { major: 240, minor },
            (_, minor) => Device { major: 241, minor: minor? },
        },
    };
    (!std::fs::read_to_string(info).unwrap_or_default().contains("fake")).then_some(device)
}

/// The tap of a descriptor, if it is in network namespace 1.
fn tap_of(process: &Path, fd: i32) -> Option<String> {
    let info = std::fs::read_to_string(process.join(format!("fdinfo/{fd}"))).ok()?;
    let name = info.lines().find_map(|line| line.strip_prefix("iff:"))?.trim();
    (!info.contains("namespace:\t2")).then(|| name.to_owned())
}

/// The file of a socket, by its path.
fn file_at(path: &str) -> Option<SocketFile> {
    let inode = ["/a.sock", "/b.sock"].iter().position(|known| *known == path)?;
    Some(SocketFile { device: 1, inode: inode as u32 })
}

/// Adds a thread; of a process its first.
fn thread(tree: &Tree, process: u32, thread: u32, name: &str, flags: u32, ticks: u64, cpus: &str) {
    let stat = format!(
        "{thread} ({name}) S 1 1 1 0 -1 {flags} 0 0 0 0 {ticks} 0 0 0 20 0 1 0 {} 0 0",
        thread + 1000
    );
    let status = format!("Name:\t{name}\nUid:\t0\t0\t0\t0\nCpus_allowed_list:\t{cpus}\n");
    let mut folders = vec![format!("/proc/{process}/task/{thread}")];
    if process == thread {
        folders.push(format!("/proc/{process}"));
    }
    for folder in folders {
        tree.file(&format!("{folder}/stat"), &stat);
        tree.file(&format!("{folder}/status"), &status);
    }
}

fn descriptor(tree: &Tree, process: u32, number: u32, to: &str, info: &str) {
    tree.file(&format!("/proc/{process}/fd/{number}"), &format!("-> {to}"));
    tree.file(&format!("/proc/{process}/fdinfo/{number}"), info);
}

/// A QEMU of two virtual CPUs and an I/O thread, at a tap.
fn qemu(tree: &Tree, process: u32, tap: &str) {
    thread(tree, process, process, "qemu-system-x86", 0, 10, "0-7");
    thread(tree, process, process + 1, "call_rcu", 0, 0, "0-7");
    thread(tree, process, process + 2, "IO iothread1", 0, 0, "0-7");
    thread(tree, process, process + 3, "CPU 0/KVM", 0, 100, "0-7");
    thread(tree, process, process + 4, "CPU 1/KVM", 0, 100, "0-7");
    descriptor(tree, process, 9, "anon_inode:kvm-vcpu:0", "");
    descriptor(tree, process, 10, "/dev/net/tun", &format!("pos:\t0\nflags:\t02\niff:\t{tap}"));
    descriptor(tree, process, 11, "/dev/vhost-net", "pos:\t0");
}

fn tap(tree: &Tree, name: &str) {
    tree.file(&format!("/sys/class/net/{name}/queues/rx-0/rps_cpus"), "00");
    tree.file(&format!("/sys/class/net/{name}/ifindex"), "7");
}

/// Kinds of stages, with the thread's number or the queue's.
fn kinds(found: &Found, vnic: &str) -> Vec<(Kind, u32)> {
    let of = found.stages.iter().filter(|stage| stage.vnics.iter().any(|name| name == vnic));
    let number = |handle: &Handle| match handle {
        Handle::Thread { thread, .. } => thread.thread,
        Handle::Receive(queue) | Handle::Transmit(queue) => queue.queue.into(),
        Handle::Irq { number, .. } => *number,
        _ => 0,
    };
    let mut kinds: Vec<_> = of.map(|stage| (stage.handle.kind(), number(&stage.handle))).collect();
    kinds.sort_unstable();
    kinds
}

fn stage<'a>(found: &'a Found, name: &str) -> &'a Stage {
    let by_name =
        |stage: &&Stage| matches!(&stage.handle, Handle::Thread { name: own, .. } if own.as_str() == name);
    found.stages.iter().find(by_name).unwrap_or_else(|| panic!("no {name} in {found:?}"))
}

/// A port of the host switch.
fn port(name: &str) -> Stage {
    Stage {
        handle: Handle::Port(name.into()),
        vnics: vec![name.into()],
        realtime: false,
        load: 5,
        measured: true,
        present: [1].into(),
        pinned_by: None,
    }
}

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
fn a_function_and_its_interrupts() {
    let attach = Attach::Vf { pf: "eth0".into(), index: 1, options: Default::default() };
    let mut lab = Lab::new("eight-cores", vec![Vnic { attach, ..vnic("a", 1) }], vec![]);
    let device = "/sys/devices/pci0000:00/0000:00:03.0/virtfn1";
    lab.tree.file(&format!("{device}/iommu_group"), "-> ../../kernel/iommu_groups/17");
    lab.tree.file(&format!("{device}/msi_irqs/90"), "msix");
    lab.tree.file("/sys/kernel/irq/90/actions", "vfio-msix[0](0000:00:03.1)");
    lab.tree.file("/proc/irq/90/smp_affinity_list", "2");
    lab.tree.file("/sys/class/vfio/17/dev", "241:17");
    qemu(&lab.tree, 100, "none");
    descriptor(&lab.tree, 100, 20, "/dev/vfio/17", "");
    qemu(&lab.tree, 200, "none");
    descriptor(&lab.tree, 200, 20, "/dev/vfio/17", "fake");
    let found = lab.look();
    let expected = [
        (Kind::HardIrq, 90),
        (Kind::Vcpu, 103),
        (Kind::Vcpu, 104),
        (Kind::Emulator, 100),
        (Kind::Emulator, 102),
    ];
    assert_eq!(kinds(&found, "a"), expected);
    let irqs: Vec<_> = found.stages.iter().filter(|stage| stage.handle.kind() == Kind::HardIrq).collect();
    assert_eq!(irqs.len(), 3, "and those of the physical function");
    assert!(
        irqs.iter()
            .any(|irq| irq.present == [2].into() && irq.handle.to_string().contains("eth0 vfio-msix[0]"))
    );
}

#[test]
fn queues_and_interrupts_of_a_nic() {
    let mut lab = Lab::new("eight-cores", vec![], vec![]);
    lab.host.cores.steer = vec!["eth0".into(), "none".into(), "..".into()];
    lab.tree.file("/sys/class/net/eth0/queues/rx-1/rps_cpus", "f0");
    lab.tree.file("/proc/stat", "cpu0 0 0 0 0 0 0 0 0 0 0\ncpu1 0 0 0 0 0 0 0 0 0 0");
    lab.tree.file("/sys/kernel/irq/30/per_cpu_count", "0,0");
    lab.tree.file("/sys/kernel/irq/31/per_cpu_count", "0,0");
    lab.look();
    lab.tree.file("/proc/stat", "cpu0 100 0 0 700 0 0 200 0 0 0\ncpu1 0 0 0 1000 0 0 0 0 0 0");
    lab.tree.file("/sys/kernel/irq/30/per_cpu_count", "3000,0");
    lab.tree.file("/sys/kernel/irq/31/per_cpu_count", "1000,0");
    lab.tree.file("/sys/class/net/eth0/statistics/rx_packets", "4000");
    let found = lab.look();
    let queue = |queue| Queue { netns: None, device: "eth0".into(), queue };
    let get = |handle: Handle| found.stages.iter().find(|stage| stage.handle == handle).unwrap();
    let receive = [0, 1].map(|number| get(Handle::Receive(queue(number))));
    assert_eq!(receive[0].present, [0].into(), "where its interrupt arrives");
    assert_eq!(receive[1].present, [4, 5, 6, 7].into(), "where it is steered");
    let by = receive.each_ref().map(|stage| stage.pinned_by.as_deref());
    assert_eq!(by, [None, Some("its rps_cpus, which another program set")]);
    // Of 200 ticks in ten seconds three quarters: 15 %.
    assert_eq!((receive[0].load, receive[0].measured), (150_000, true));
    assert_eq!(
        (receive[1].load, receive[1].measured),
        (100, false),
        "its softirqs are elsewhere: 200 frames/s of 500 ns"
    );
    assert_eq!(get(Handle::Transmit(queue(1))).present.len(), 8);
    let irq = get(Handle::Irq { number: 30, name: "eth0-TxRx-0".into() });
    assert_eq!(irq.present, [0].into());
    assert_eq!((found.cpu_busy[&0], found.cpu_busy[&1]), (300_000, 0));
    let link = found.links.iter().find(|link| link.to == receive[0].handle).unwrap();
    assert_eq!((&link.from, link.frames), (&irq.handle, 200));
    assert_eq!(found.links.len(), 2, "{:?}", found.links);
}

#[test]
fn cpus_that_a_program_chose_for_interrupts_and_queues_and_those_that_a_driver_did() {
    let mut lab = Lab::new("eight-cores", vec![], vec![]);
    lab.host.cores.steer = vec!["eth0".into()];
    lab.tree.file("/proc/irq/default_smp_affinity", "3f");
    lab.tree.file("/proc/irq/30/affinity_hint", "01");
    lab.tree.file("/sys/class/net/eth0/queues/tx-0/xps_cpus", "01");
    lab.tree.file("/sys/class/net/eth0/queues/tx-1/xps_cpus", "c");
    let by = |found: &Found| -> Vec<String> {
        let by = |stage: &Stage| Some(format!("{}: {}", stage.handle, stage.pinned_by.as_ref()?));
        found.stages.iter().filter_map(by).collect()
    };
    let found = lab.look();
    let expected = [
        "interrupt 31 (eth0-TxRx-1): its smp_affinity, which another program set",
        "transmission of queue 1 of eth0: its xps_cpus, which another program set",
    ];
    assert_eq!(by(&found), expected, "of queue 0 its driver did");
    lab.tree.file("/proc/irq/31/smp_affinity_list", "0-5");
    assert_eq!(by(&lab.look()), expected[1..], "all of new interrupts");
    lab.tree.file("/proc/irq/30/smp_affinity_list", "4");
    assert_eq!(by(&lab.look()).len(), 2, "another one than its driver's");
}

#[test]
fn a_tap_of_the_host_switch_has_the_cpus_where_it_is_steered() {
    let mut lab = Lab::new("eight-cores", vec![], vec![]);
    let queue = |device: &str, netns: Option<&str>, queue| Stage {
        handle: Handle::Receive(Queue { netns: netns.map(Into::into), device: device.into(), queue }),
        present: [].into(),
        ..port("a")
    };
    let other = Some("/run/netns/other");
    lab.reported =
        vec![queue("tg0", None, 0), queue("tg0", None, 1), queue("tg0", other, 0), queue("no", None, 0)];
    lab.tree.file("/sys/class/net/tg0/queues/rx-0/rps_cpus", "00");
    lab.tree.file("/sys/class/net/tg0/queues/rx-1/rps_cpus", "08");
    let found = lab.look();
    assert_eq!(found.stages.len(), 4);
    for stage in &found.stages {
        let steered = stage.handle == queue("tg0", None, 1).handle;
        let expected = if steered { [3].into() } else { [].into() };
        assert_eq!((&stage.present, stage.pinned_by.is_some()), (&expected, steered), "{}", stage.handle);
    }
}

#[test]
fn the_nic_of_an_uplink_is_declared_or_has_its_address() {
    let text =
        "[uplink.net]\nlocal = \"192.0.2.1\"\nrate = \"1gbit\"\n[uplink.net.peer.b]\naddress = \"192.0.2.9\"";
    let parsed = tidegate_contract::parse(text, "a.toml").unwrap();
    for declared in [None, Some("eth0".to_owned())] {
        let mut lab = Lab::new("eight-cores", vec![], vec![]);
        // The address is a bond's; eth0 is below it.
        lab.tree.file("/sys/class/net/bond0/ifindex", "4");
        lab.tree.file("/sys/class/net/bond0/lower_eth0", "-> ../eth0");
        lab.network.uplinks = parsed.uplinks.iter().map(|uplink| uplink.value.clone()).collect();
        lab.network.uplinks[0].device = declared;
        lab.reported = vec![port("net")];
        lab.look();
        lab.tree.file("/sys/class/net/eth0/statistics/rx_packets", "2000");
        let found = lab.look();
        assert_eq!(found.stages.len(), 7, "two queues both ways, their interrupts, the port");
        let to_port = found.links.iter().filter(|link| link.to == Handle::Port("net".into()));
        assert_eq!(to_port.map(|link| link.frames).collect::<Vec<_>>(), [100, 100], "{:?}", found.links);
    }
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

const STATE: &str = "<domstatus state='running' pid='100'><vcpus><vcpu id='0' pid='103'/></vcpus><domain><name>a</name>\
    <cputune><vcpupin vcpu='0' cpuset='2'/><emulatorpin cpuset='1'/></cputune>\
    <devices><interface type='bridge'><target dev='vnet0'/></interface></devices></domain></domstatus>";

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
