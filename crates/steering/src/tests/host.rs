//! Two hosts for a test: this network namespace, and one of another thread; VXLAN over a veth between them.

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

/// Runs a program in the namespace of this thread.
pub fn run_here(program: &str, arguments: &str) {
    let done = Command::new(program).args(arguments.split(' ')).output().expect("a program of scripts/setup");
    assert!(done.status.success(), "{program} {arguments}: {}", String::from_utf8_lossy(&done.stderr));
}

/// Keeps this thread on a CPU.
pub fn pinned(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).unwrap();
}

type Work = Box<dyn FnOnce() + Send>;

/// The other host, a thread.
pub struct Far(Sender<Work>);

/// This host.
pub struct Near;

/// What came of frames.
#[derive(Debug, Default)]
pub struct Received {
    /// Frames that did not come within a second.
    pub lost: usize,
    /// The CPU that ran the stack for each.
    pub cpus: Vec<u32>,
}

impl Near {
    /// Makes the devices of both.
    pub fn new() -> Self {
        ip("link set lo up");
        ip("link add near numrxqueues 4 numtxqueues 4 type veth peer name far numrxqueues 4 numtxqueues 4");
        // The tags of frames, and their checksums, are in the frames, as on a wire.
        run_here("ethtool", "-K near rxvlan off");
        run_here("ethtool", "-K far tx off txvlan off gso off tso off");
        ip("addr add 192.0.2.1/24 dev near");
        ip("link add tunnel type vxlan id 42 remote 192.0.2.2 local 192.0.2.1 dstport 4789 dev near");
        ip("addr add 10.0.0.1/24 dev tunnel");
        ip("link set near up");
        ip("link set tunnel up");
        Self
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
    /// Starts it, and moves its devices there; after [`Near::new`].
    pub fn new() -> Self {
        let (work, works): (Sender<Work>, Receiver<Work>) = channel();
        let (made, there) = channel();
        std::thread::spawn(move || {
            own_network().unwrap();
            made.send(rustix::thread::gettid()).unwrap();
            works.into_iter().for_each(|work| work());
        });
        let thread = there.recv().unwrap().as_raw_nonzero();
        ip(&format!("link set far netns /proc/self/task/{thread}/ns/net")
            .replace("self", &std::process::id().to_string()));
        let far = Self(work);
        far.run(|| {
            ip("link set lo up");
            run_here("ethtool", "-K far tx off txvlan off gso off tso off");
            ip("addr add 192.0.2.2/24 dev far");
            ip("link add tunnel type vxlan id 42 remote 192.0.2.1 local 192.0.2.2 dstport 4789 dev far");
            run_here("ethtool", "-K tunnel tx off gso off");
            ip("addr add 10.0.0.2/24 dev tunnel");
            ip("link set far up");
            ip("link set tunnel up");
        });
        // Both know each other's address from now on.
        far.run(|| run_here("ping", "-c 1 -W 5 10.0.0.1"));
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
