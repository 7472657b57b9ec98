//! Two hosts for a test: this network namespace, and one of another thread; a tunnel over a veth between them.

use std::net::UdpSocket;
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use tidegate_testkit::{Kind, own_network};

pub const NETWORK: Kind<'_> = Kind {
    what: "network namespace with a veth",
    unshare: &["--net"],
    probe: &["ip", "link", "add", "type", "veth"],
    user: false,
};

/// Runs ip(8) in the namespace of this thread.
pub fn ip(arguments: &str) {
    run_here("ip", arguments);
}

/// Runs a program in the namespace of this thread; `''` is an empty word.
pub fn run_here(program: &str, arguments: &str) {
    let done = Command::new(program)
        .args(arguments.split(' ').map(|word| word.trim_matches('\'')))
        .output()
        .expect("a program of scripts/setup");
    assert!(done.status.success(), "{program} {arguments}: {}", String::from_utf8_lossy(&done.stderr));
}

/// Keeps this thread on a CPU.
pub fn pinned(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).unwrap();
}

type Work = Box<dyn FnOnce() + Send>;

/// What is between the hosts' addresses 10.0.0.1 and 10.0.0.2.
#[derive(Clone, Copy, Debug)]
pub enum Between {
    /// A device of this type with these options, over IPv4 or IPv6.
    Tunnel(&'static str, bool),
    /// ESP, without a device.
    #[cfg_attr(not(feature = "guest-tests"), expect(dead_code, reason = "needs Debian's kernel"))]
    Esp,
}

pub const VXLAN: Between = Between::Tunnel("vxlan id 42 dstport 4789", false);

/// Of the veth, by host: this one and the other.
const IPV4: [&str; 2] = ["192.0.2.1", "192.0.2.2"];
const IPV6: [&str; 2] = ["2001:db8::1", "2001:db8::2"];

impl Between {
    /// Gives a host its addresses, and its end; `host` is 0 for this one, 1 for the other.
    fn make(self, host: usize) {
        let (device, other) = (["near", "far"][host], 1 - host);
        ip("link set lo up");
        ip(&format!("link set {device} up"));
        ip(&format!("addr add {}/24 dev {device}", IPV4[host]));
        ip(&format!("addr add {}/64 dev {device} nodad", IPV6[host]));
        match self {
            Self::Tunnel(kind, ipv6) => {
                let addresses = if ipv6 { IPV6 } else { IPV4 };
                let ends = format!("local {} remote {}", addresses[host], addresses[other]);
                // Geneve has no address of its own.
                let ends =
                    if kind.starts_with("geneve") { format!("remote {}", addresses[other]) } else { ends };
                let over = if kind.starts_with("geneve") { String::new() } else { format!(" dev {device}") };
                ip(&format!("link add tunnel type {kind} {ends}{over}"));
                run_here("ethtool", "-K tunnel tx off gso off");
                ip(&format!("addr add 10.0.0.{}/24 dev tunnel", host + 1));
                ip("link set tunnel up");
            }
            Self::Esp => {
                ip(&format!("addr add 10.0.0.{}/24 dev {device}", host + 1));
                let selector = "src 10.0.0.2 dst 10.0.0.1";
                // Without a cipher (RFC 2410): that would need random numbers, which a guest has late.
                let how =
                    format!("enc ecb(cipher_null) '' auth-trunc hmac(sha256) 0x{} 128", "07".repeat(32));
                ip(&format!("xfrm state add {selector} proto esp spi 42 reqid 1 mode transport {how}"));
                let direction = ["in", "out"][host];
                let template = format!("{selector} proto esp reqid 1 mode transport");
                ip(&format!("xfrm policy add {selector} dir {direction} tmpl {template}"));
            }
        }
    }
}

/// The other host, a thread.
pub struct Far(Sender<Work>);

/// This host.
pub struct Near(Between);

/// What came of frames.
#[derive(Debug, Default)]
pub struct Received {
    /// Frames that did not come within a second.
    pub lost: usize,
    /// The CPU that ran the stack for each.
    pub cpus: Vec<u32>,
}

impl Near {
    /// Makes the devices of both, with VXLAN.
    pub fn new() -> Self {
        Self::with(VXLAN)
    }

    /// Makes the devices of both.
    pub fn with(between: Between) -> Self {
        ip("link add near numrxqueues 4 numtxqueues 4 type veth peer name far numrxqueues 4 numtxqueues 4");
        // The tags of frames, and their checksums, are in the frames, as on a wire.
        run_here("ethtool", "-K near rxvlan off");
        run_here("ethtool", "-K far tx off txvlan off gso off tso off");
        between.make(0);
        Self(between)
    }

    /// Sends frames from there to a port here, at most 32 at a time that have not come.
    pub fn receive(&self, port: u16, far: &Far, frames: usize) -> Received {
        let socket = UdpSocket::bind(("10.0.0.1", port)).unwrap();
        // The kernel notes the CPU of connected sockets alone.
        socket.connect(("10.0.0.2", port)).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        let (mut received, mut next) = (Received::default(), 0);
        while next < frames {
            let burst = (frames - next).min(32);
            self.send(port, far, burst);
            for _ in 0..burst {
                match socket.recv(&mut [0; 200]) {
                    Ok(_) => received.cpus.push(rustix::net::sockopt::socket_incoming_cpu(&socket).unwrap()),
                    Err(_) => received.lost += 1,
                }
            }
            next += burst;
        }
        received
    }

    /// Sends frames from there to a port here.
    pub fn send(&self, port: u16, far: &Far, frames: usize) {
        far.run(move || {
            let socket = UdpSocket::bind(("10.0.0.2", port)).unwrap();
            for _ in 0..frames {
                socket.send_to(&[7; 100], ("10.0.0.1", port)).unwrap();
            }
        });
    }
}

impl Far {
    /// Starts it, and moves its device there.
    pub fn new(near: &Near) -> Self {
        let (work, works): (Sender<Work>, Receiver<Work>) = channel();
        let (made, there) = channel();
        std::thread::spawn(move || {
            own_network().unwrap();
            made.send(rustix::thread::gettid()).unwrap();
            works.into_iter().for_each(|work| work());
        });
        let thread = there.recv().unwrap().as_raw_nonzero();
        ip(&format!("link set far netns /proc/{}/task/{thread}/ns/net", std::process::id()));
        let (far, between) = (Self(work), near.0);
        far.run(move || {
            between.make(1);
            // Both know each other's address from now on. Answers do not come through ESP: that is made for one direction.
            let done =
                Command::new("ping").args(["-c", "1", "-W", "5", "10.0.0.1"]).output().expect("iputils-ping");
            let esp = matches!(between, Between::Esp);
            assert!(done.status.success() || esp, "{}", String::from_utf8_lossy(&done.stdout));
        });
        far
    }

    /// Runs this there, and waits for its end.
    ///
    /// # Panics
    /// It panicked.
    pub fn run(&self, work: impl FnOnce() + Send + 'static) {
        let (done, end) = channel();
        let work = move || {
            work();
            let _ = done.send(());
        };
        self.0.send(Box::new(work)).unwrap();
        end.recv().expect("it did not panic");
    }
}
