//! A host of files, and all that is asked of it.

use crate::tree::Tree;
use std::path::Path;
use std::time::{Duration, Instant};
use tidegate_contract::{Attach, Host, SocketMode, SocketOwner, Vnic};
use tidegate_cores::stage::{Handle, Kind, Stage};
use tidegate_evidence::{Evidence, VnicStats};
use tidegate_place::Network;
use tidegate_place_cores::discover::descriptor::{Device, SocketFile};
use tidegate_place_cores::discover::peers::UnixSocket;
use tidegate_place_cores::discover::{Discovery, Found, Kernel, LookInput};
use tidegate_testkit::contract::vnic;

/// `PF_KTHREAD`, `PF_USER_WORKER`.
pub const KERNEL: u32 = 0x0020_0000;
pub const USER_WORKER: u32 = 0x0000_4000;

pub fn netdev(name: &str, number: u8, device: &str) -> Vnic {
    Vnic { attach: Attach::Netdev { name: device.into() }, ..vnic(name, number) }
}

pub fn vhost_user(name: &str, number: u8, path: &str, mode: SocketMode) -> Vnic {
    Vnic {
        attach: Attach::VhostUser { path: path.into(), mode, owner: SocketOwner::default() },
        ..vnic(name, number)
    }
}

/// A host, and all that is asked of it.
pub struct Lab {
    pub tree: Tree,
    pub contracts: Vec<Vnic>,
    pub network: Network,
    pub host: Host,
    pub reported: Vec<Stage>,
    pub evidence: Evidence,
    pub now: Instant,
    pub discovery: Discovery,
}

impl Lab {
    pub fn new(machine: &str, contracts: Vec<Vnic>, sockets: Vec<UnixSocket>) -> Self {
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
    pub fn look(&mut self) -> Found {
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

    pub fn frames(&mut self, vnic: &str, sent: u64, received: u64) {
        let mut stats = VnicStats::default();
        (stats.tx.frames, stats.rx.frames) = (sent, received);
        self.evidence.vnics.insert(vnic.into(), stats);
    }
}

/// The device of a descriptor, by its path: `/dev/tap7` is 240:7. Those that `fdinfo` calls fake are files.
pub fn device(path: &Path) -> Option<Device> {
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
pub fn tap_of(process: &Path, fd: i32) -> Option<String> {
    let info = std::fs::read_to_string(process.join(format!("fdinfo/{fd}"))).ok()?;
    let name = info.lines().find_map(|line| line.strip_prefix("iff:"))?.trim();
    (!info.contains("namespace:\t2")).then(|| name.to_owned())
}

/// The file of a socket, by its path.
pub fn file_at(path: &str) -> Option<SocketFile> {
    let inode = ["/a.sock", "/b.sock"].iter().position(|known| *known == path)?;
    Some(SocketFile { device: 1, inode: inode as u32 })
}

/// Adds a thread; of a process its first.
pub fn thread(tree: &Tree, process: u32, thread: u32, name: &str, flags: u32, ticks: u64, cpus: &str) {
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

pub fn descriptor(tree: &Tree, process: u32, number: u32, to: &str, info: &str) {
    tree.file(&format!("/proc/{process}/fd/{number}"), &format!("-> {to}"));
    tree.file(&format!("/proc/{process}/fdinfo/{number}"), info);
}

/// A QEMU of two virtual CPUs and an I/O thread, at a tap.
pub fn qemu(tree: &Tree, process: u32, tap: &str) {
    thread(tree, process, process, "qemu-system-x86", 0, 10, "0-7");
    thread(tree, process, process + 1, "call_rcu", 0, 0, "0-7");
    thread(tree, process, process + 2, "IO iothread1", 0, 0, "0-7");
    thread(tree, process, process + 3, "CPU 0/KVM", 0, 100, "0-7");
    thread(tree, process, process + 4, "CPU 1/KVM", 0, 100, "0-7");
    descriptor(tree, process, 9, "anon_inode:kvm-vcpu:0", "");
    descriptor(tree, process, 10, "/dev/net/tun", &format!("pos:\t0\nflags:\t02\niff:\t{tap}"));
    descriptor(tree, process, 11, "/dev/vhost-net", "pos:\t0");
}

pub fn tap(tree: &Tree, name: &str) {
    tree.file(&format!("/sys/class/net/{name}/queues/rx-0/rps_cpus"), "00");
    tree.file(&format!("/sys/class/net/{name}/ifindex"), "7");
}

/// Kinds of stages, with the thread's number or the queue's.
pub fn kinds(found: &Found, vnic: &str) -> Vec<(Kind, u32)> {
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

pub fn stage<'a>(found: &'a Found, name: &str) -> &'a Stage {
    let by_name =
        |stage: &&Stage| matches!(&stage.handle, Handle::Thread { name: own, .. } if own.as_str() == name);
    found.stages.iter().find(by_name).unwrap_or_else(|| panic!("no {name} in {found:?}"))
}

/// A port of the host switch.
pub fn port(name: &str) -> Stage {
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

pub const STATE: &str = "<domstatus state='running' pid='100'><vcpus><vcpu id='0' pid='103'/></vcpus><domain><name>a</name>\
    <cputune><vcpupin vcpu='0' cpuset='2'/><emulatorpin cpuset='1'/></cputune>\
    <devices><interface type='bridge'><target dev='vnet0'/></interface></devices></domain></domstatus>";
