//! Network namespaces for one test: the host's, and one behind a veth for a guest.

#![allow(dead_code, reason = "not every test uses all of it")]
#![allow(clippy::missing_panics_doc, clippy::unwrap_used, reason = "tests")]

pub mod load;
pub mod super_frames;
pub mod tap;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tidegate_contract::{Bytes, Rate, Tx};
use tidegate_place_kernel::tc::{Kernel, Limit, Network, Shaping};
use tidegate_testkit::{Kind, is_inside, unless_skipped};

const NETWORK: Kind<'_> = Kind {
    what: "network namespace with a veth",
    unshare: &["--net"],
    probe: &["ip", "link", "add", "type", "veth"],
    // There are no eBPF programs in a user namespace, also for its root.
    user: false,
};

/// Runs `body` in a process with a network namespace of its own: this test once more, by its name. Skipped with
/// the reason where that is forbidden, which is a failure in CI.
#[track_caller]
pub fn in_namespace(name: &str, body: impl FnOnce()) {
    if !is_inside() && unless_skipped(tidegate_place_kernel::ebpf::Classifier::for_ifb()).is_none() {
        return;
    }
    tidegate_testkit::in_namespace(name, NETWORK, || {
        ip("link set lo up");
        body();
    });
}

/// Runs a program of iproute2 with these words; what it printed.
#[track_caller]
pub fn run(program: &str, words: &str) -> String {
    try_run(program, words).unwrap()
}

/// As [`run`]; the error is what it printed, too.
pub fn try_run(program: &str, words: &str) -> Result<String, String> {
    let output = Command::new(program).args(words.split_whitespace()).output().expect("iproute2");
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(format!("{program} {words}: {}", String::from_utf8_lossy(&output.stderr)))
    }
}

#[track_caller]
pub fn ip(words: &str) {
    run("ip", words);
}

#[track_caller]
pub fn tc(words: &str) {
    run("tc", words);
}

/// A limit with a contract's default burst.
pub fn limit(rate: &str) -> Limit {
    let rate: Rate = rate.parse().unwrap();
    Limit::new(rate, Tx::default().burst_or_default(rate), None, 1518).unwrap()
}

/// A limit that stops a tap short of one frame: for tests without traffic.
pub fn small() -> Limit {
    Limit::new("10mbit".parse().unwrap(), Bytes::new(65_536), None, 1518).unwrap()
}

/// `-` is no limit.
pub fn shaping(netdev: &str, tx: &str, rx: &str) -> Shaping {
    let side = |rate: &str| (rate != "-").then(|| limit(rate));
    Shaping { netdev: netdev.into(), tx: side(tx), rx: side(rx), ..Shaping::default() }
}

/// Makes it so; a second look finds nothing to do.
#[track_caller]
pub fn settle(wanted: &[Shaping]) -> Network {
    let mut kernel = Kernel::open().unwrap();
    let made = kernel.settle(wanted).unwrap();
    assert_eq!(made.refusals, []);
    let again = kernel.settle(wanted).unwrap();
    assert_eq!(again.steps, [], "a second plan is empty");
    kernel.observe().unwrap()
}

pub fn observe() -> Network {
    Kernel::open().unwrap().observe().unwrap()
}

/// A guest in a namespace of its own, behind the veth `NAME`: 10.9.N.1 is the host, 10.9.N.2 the guest.
pub struct Guest {
    holder: Child,
    number: u8,
}

impl Guest {
    #[track_caller]
    pub fn new(name: &str, number: u8) -> Self {
        let holder = Command::new("unshare")
            .args(["--net", "sh", "-c", "echo ready; read wait"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut holder = holder.expect("unshare (util-linux)");
        let mut line = [0; 6];
        std::io::Read::read_exact(holder.stdout.as_mut().unwrap(), &mut line).unwrap();
        let guest = Self { number, holder };
        ip(&format!("link add {name} type veth peer name eth0 netns {}", guest.holder.id()));
        ip(&format!("addr add {} dev {name}", guest.address(1) + "/24"));
        ip(&format!("link set {name} up"));
        guest.within(|address| {
            ip(&format!("addr add {address}/24 dev eth0"));
            ip("link set eth0 up");
        });
        guest
    }

    /// 1 is the host, 2 the guest.
    pub fn address(&self, end: u8) -> String {
        format!("10.9.{}.{end}", self.number)
    }

    /// Runs `work` in the guest's namespace, on a thread of its own; it gets the guest's address.
    pub fn within<T: Send>(&self, work: impl FnOnce(String) -> T + Send) -> T {
        let path = format!("/proc/{}/ns/net", self.holder.id());
        let address = self.address(2);
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                let namespace = File::open(path).unwrap();
                move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
                work(address)
            });
            thread.join().unwrap()
        })
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // Its namespace goes with it.
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// Waits until `true`, at most five seconds.
#[track_caller]
pub fn eventually(what: &str, mut check: impl FnMut() -> bool) {
    for _ in 0..500 {
        if check() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{what}: not within five seconds");
}

/// Has the kernel send no frames of IPv6 by itself in this namespace.
#[track_caller]
pub fn quiet() {
    for which in ["all", "default"] {
        run("sysctl", &format!("-qw net.ipv6.conf.{which}.disable_ipv6=1"));
    }
}

/// Has the host forward between guests.
#[track_caller]
pub fn route(guests: &[&Guest]) {
    quiet();
    run("sysctl", "-qw net.ipv4.ip_forward=1");
    for guest in guests {
        let host = guest.address(1);
        guest.within(|_| {
            quiet();
            ip(&format!("route add default via {host}"));
        });
    }
}
