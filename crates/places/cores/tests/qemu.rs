//! A real QEMU, found by its connection to a socket and by its tap; threads with names, and without.

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tidegate_contract::{Attach, Host, SocketMode, SocketOwner, Vnic};
use tidegate_cores::stage::{Handle, Kind, Stage};
use tidegate_evidence::Evidence;
use tidegate_place::Network;
use tidegate_place_cores::discover::{Discovery, Found, LookInput};
use tidegate_place_cores::roots::Roots;
use tidegate_testkit::contract::vnic;
use tidegate_testkit::{need, own_network_or_skip};

/// A QEMU that ends with the test.
struct Qemu(Child);

impl Qemu {
    fn start(folder: &Path, names: &str, more: &[&str]) -> Self {
        let mut command = Command::new("qemu-system-x86_64");
        let monitor = format!("unix:{},server=on,wait=off", folder.join("qmp").display());
        command.args(["-S", "-M", "q35", "-m", "64M", "-smp", "2", "-nodefaults", "-display", "none"]);
        // KVM where that works.
        command.args(["-accel", "kvm", "-accel", "tcg,thread=multi", "-object", "iothread,id=iothread1"]);
        command.args(["-name", &format!("test,debug-threads={names}"), "-qmp", &monitor]).args(more);
        Self(command.stdin(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn has_qemu() -> bool {
    need(
        "qemu-system-x86_64 missing: run scripts/setup test",
        Command::new("qemu-system-x86_64").arg("-version").output().is_ok(),
    )
}

fn look(discovery: &mut Discovery, contract: &Vnic) -> Found {
    let input = LookInput {
        now: Instant::now(),
        contracts: &[contract],
        host: &Host::default(),
        network: &Network::default(),
        reported: &[],
        evidence: &[&Evidence::empty("a test")],
    };
    discovery.look(&input)
}

/// Looks until two virtual CPUs are found; fails after a minute.
fn found(contract: &Vnic) -> Found {
    let mut discovery = Discovery::new(Roots::default());
    let begin = Instant::now();
    loop {
        let found = look(&mut discovery, contract);
        if found.stages.iter().filter(|stage| stage.handle.kind() == Kind::Vcpu).count() == 2 {
            return found;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "{found:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Kinds and names of the threads of vNIC a.
fn threads(found: &Found) -> Vec<(Kind, String)> {
    let thread = |stage: &'_ Stage| match &stage.handle {
        Handle::Thread { name, .. } if stage.vnics == ["a"] && !stage.present.is_empty() => {
            Some((stage.handle.kind(), name.as_str().to_owned()))
        }
        _ => None,
    };
    let mut threads: Vec<_> = found.stages.iter().filter_map(thread).collect();
    threads.sort_unstable();
    threads
}

fn at_socket(path: &Path, mode: SocketMode) -> Vnic {
    Vnic {
        attach: Attach::VhostUser { path: path.into(), mode, owner: SocketOwner::default() },
        ..vnic("a", 1)
    }
}

#[test]
fn by_the_socket_to_which_it_connected() {
    if !has_qemu() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("vhost-user");
    let listener = UnixListener::bind(&path).unwrap();
    let device = format!("socket,id=front-end,path={}", path.display());
    let qemu = Qemu::start(folder.path(), "on", &["-chardev", &device]);
    let _connection = listener.accept().unwrap();
    let found = found(&at_socket(&path, SocketMode::Server));
    let names = ["CPU 0", "CPU 1", "IO iothread1", "qemu-system-x86"];
    let kind = |name: &str| if name.starts_with("CPU") { Kind::Vcpu } else { Kind::Emulator };
    let of =
        threads(&found).into_iter().map(|(kind, name)| (kind, name.split('/').next().unwrap().to_owned()));
    assert_eq!(of.collect::<Vec<_>>(), names.map(|name| (kind(name), name.to_owned())));
    let processes = found.stages.iter().filter_map(|stage| match &stage.handle {
        Handle::Thread { thread, .. } => Some(thread.process),
        _ => None,
    });
    assert!(processes.into_iter().all(|process| process == qemu.0.id()));
    assert_eq!(found.notes, [] as [&str; 0]);
}

#[test]
fn by_the_socket_at_which_it_listens_and_by_its_monitor() {
    if !has_qemu() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("vhost-user");
    let device = format!("socket,id=front-end,path={},server=on,wait=off", path.display());
    let _qemu = Qemu::start(folder.path(), "off", &["-chardev", &device]);
    let begin = Instant::now();
    let _connection = loop {
        match std::os::unix::net::UnixStream::connect(&path) {
            Ok(connection) => break connection,
            Err(e) => assert!(begin.elapsed() < Duration::from_secs(60), "{e}"),
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    let found = found(&at_socket(&path, SocketMode::Client));
    let kinds: Vec<Kind> = threads(&found).into_iter().map(|(kind, _)| kind).collect();
    assert_eq!(kinds, [Kind::Vcpu, Kind::Vcpu, Kind::Emulator, Kind::Emulator], "{found:?}");
}

#[test]
fn by_its_tap() {
    let may = || Path::new("/dev/net/tun").exists() && rustix::process::geteuid().is_root();
    if !has_qemu() || !need("no taps, or not root", may()) || !own_network_or_skip() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let device = "tap,id=n0,ifname=tap0,script=no,downscript=no";
    let _qemu = Qemu::start(folder.path(), "on", &["-netdev", device, "-device", "virtio-net-pci,netdev=n0"]);
    let contract = Vnic { attach: Attach::Netdev { name: "tap0".into() }, ..vnic("a", 1) };
    let found = found(&contract);
    assert_eq!(threads(&found).len(), 4, "{found:?}");
}
