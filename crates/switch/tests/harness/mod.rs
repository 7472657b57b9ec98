//! A switch in this process, synthetic guests on it, and their frames.

#![allow(dead_code, reason = "each test file uses its own part")]

use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, listen, socket};
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tidegate_contract::{Host, Vnic};
use tidegate_evidence::Connection;
use tidegate_evidence::VnicStats;
use tidegate_frontend::front_end::{FrontEnd, Options, RING_PACKED};
use tidegate_switch::control::PortStatus;
use tidegate_switch::server::Switch;
use tidegate_switch::server::ports::Connect;
use tidegate_switch::server::session;
use tidegate_switch::stats::Reader;

use rate::Arrivals;

pub mod dirty;
pub mod fabric;
pub mod floods;
pub mod frames;
pub mod handover;
pub mod netns;
pub mod rate;
pub mod report;

/// Longest wait for what should happen at once.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Whether guests have packed rings, as in `packed.rs`.
pub fn packed() -> bool {
    env!("CARGO_CRATE_NAME") == "packed"
}

/// One switch at a time: workers and guests poll, and would disturb each other.
static ALONE: Mutex<()> = Mutex::new(());

pub struct TestSwitch {
    pub switch: Arc<Switch>,
    pub stats: Reader,
    dir: TempDir,
    /// Of several switches of one test, the first has it.
    _alone: Option<MutexGuard<'static, ()>>,
}

impl TestSwitch {
    /// Serves the control socket; returns its path.
    pub fn control(&self) -> PathBuf {
        let path = self.socket("control");
        let listener = UnixListener::bind(&path).unwrap();
        self.switch.control.set(listener.try_clone().unwrap().into()).unwrap();
        let switch = self.switch.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                session::spawn(switch.clone(), stream);
            }
        });
        path
    }

    pub fn new(workers: usize) -> Self {
        Self::start(workers, &[], None)
    }

    pub fn on(workers: usize, cpus: &[usize]) -> Self {
        Self::start(workers, cpus, None)
    }

    /// Starts workers under SCHED_FIFO at this priority, if granted.
    pub fn with_priority(workers: usize, priority: Option<u8>) -> Self {
        Self::start(workers, &[], priority)
    }

    fn start(workers: usize, cpus: &[usize], priority: Option<u8>) -> Self {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        Self::of(Switch::start(workers, cpus, priority).unwrap(), Some(alone))
    }

    fn of(switch: Arc<Switch>, alone: Option<MutexGuard<'static, ()>>) -> Self {
        switch.set_host(Host::default()).unwrap();
        let stats = Reader::open(switch.region.file()).unwrap();
        Self { switch, stats, dir: tempfile::tempdir().unwrap(), _alone: alone }
    }

    pub fn socket(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Makes a port with a listening socket.
    pub fn add(&self, vnic: &Vnic) {
        self.switch.set_port(vnic.clone(), Connect::Listener(self.listener(&vnic.name))).unwrap();
    }

    pub fn listener(&self, name: &str) -> OwnedFd {
        let path = self.socket(name);
        let _ = std::fs::remove_file(&path);
        let fd = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        bind(&fd, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        listen(&fd, 8).unwrap();
        fd
    }

    pub fn guest(&self, toml: &str) -> Guest {
        self.guest_with(toml, Options::default())
    }

    pub fn guest_with(&self, toml: &str, options: Options) -> Guest {
        let vnic = contract(toml);
        self.add(&vnic);
        self.connect(vnic, options)
    }

    pub fn connect(&self, vnic: Vnic, mut options: Options) -> Guest {
        if packed() {
            options.features |= RING_PACKED;
        }
        let front = FrontEnd::connect(self.socket(&vnic.name), options).unwrap();
        assert_eq!(front.features() & RING_PACKED != 0, packed());
        self.until(|| self.port(&vnic.name).connection == Connection::Up);
        Guest { vnic, front }
    }

    pub fn change(&self, toml: &str) {
        self.switch.set_port(contract(toml), Connect::Unchanged).unwrap();
    }

    pub fn port(&self, name: &str) -> PortStatus {
        self.switch.ports().into_iter().find(|port| port.vnic.name == name).unwrap()
    }

    pub fn stats(&self, name: &str) -> VnicStats {
        self.stats.vnic(name).unwrap()
    }

    /// Waits until `done`, at most [`PATIENCE`].
    #[track_caller]
    pub fn until(&self, mut done: impl FnMut() -> bool) {
        let start = Instant::now();
        while !done() {
            assert!(
                start.elapsed() < PATIENCE,
                "waited too long: {:#?} {:#?}",
                self.stats.vnics(),
                self.switch.ports()
            );
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

pub struct Guest {
    pub vnic: Vnic,
    pub front: FrontEnd,
}

impl Guest {
    /// Sends a frame with an empty virtio header.
    #[track_caller]
    pub fn send(&mut self, frame: &[u8]) {
        let bytes = with_header(self.front.header_len(), [0; 12], frame);
        assert!(self.front.send(0, &bytes), "transmit ring is full");
    }

    pub fn send_or_drop(&mut self, frame: &[u8]) {
        let bytes = with_header(self.front.header_len(), [0; 12], frame);
        self.front.send(0, &bytes);
    }

    #[track_caller]
    pub fn send_with(&mut self, header: [u8; 12], frame: &[u8]) {
        let bytes = with_header(self.front.header_len(), header, frame);
        assert!(self.front.send(0, &bytes), "transmit ring is full");
    }

    #[track_caller]
    pub fn receive(&mut self) -> Vec<u8> {
        self.receive_with_header().1
    }

    #[track_caller]
    pub fn receive_with_header(&mut self) -> (Vec<u8>, Vec<u8>) {
        let start = Instant::now();
        loop {
            if let Some(bytes) = self.try_receive() {
                let frame = bytes[self.front.header_len()..].to_vec();
                return (bytes, frame);
            }
            assert!(start.elapsed() < PATIENCE, "{} received nothing", self.vnic.name);
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    pub fn try_receive(&mut self) -> Option<Vec<u8>> {
        (0..usize::from(self.vnic.queues)).find_map(|pair| self.front.receive(pair))
    }

    /// Receives all waiting frames. Returns their number.
    pub fn drain(&mut self) -> usize {
        std::iter::from_fn(|| self.try_receive()).count()
    }

    /// Receives all waiting frames. Returns their bytes.
    pub fn drain_bytes(&mut self) -> u64 {
        let mut bytes = 0;
        self.each(|frame| bytes += frame.len() as u64);
        bytes
    }

    /// Calls `visit` with each waiting frame, without its virtio header. Returns their number.
    pub fn each(&mut self, mut visit: impl FnMut(&[u8])) -> usize {
        let (header, mut count, mut bytes) = (self.front.header_len(), 0, Vec::new());
        for pair in 0..usize::from(self.vnic.queues) {
            while self.front.receive_into(pair, &mut bytes) {
                visit(&bytes[header..]);
                count += 1;
            }
        }
        count
    }

    /// Fills the transmit ring with copies of `frame`. Returns how many fitted.
    pub fn fill(&mut self, frame: &[u8]) -> usize {
        self.fill_with([0; 12], || frame.to_vec())
    }

    /// As [`fill`](Self::fill), with new frames behind `header`.
    pub fn fill_with(&mut self, header: [u8; 12], mut frame: impl FnMut() -> Vec<u8>) -> usize {
        let len = self.front.header_len();
        let room = self.ring_size() - self.front.in_flight(0);
        for _ in 0..room {
            assert!(self.front.push(0, &with_header(len, header, &frame())));
        }
        self.front.flush(0);
        room
    }

    pub fn ring_size(&mut self) -> usize {
        usize::from(self.front.ring(1).size())
    }

    pub fn mac(&self) -> [u8; 6] {
        self.vnic.mac.0
    }
}

pub fn with_header(len: usize, header: [u8; 12], frame: &[u8]) -> Vec<u8> {
    [&header[..len], frame].concat()
}

pub fn contract(toml: &str) -> Vnic {
    let document = tidegate_contract::parse(toml, "test").unwrap();
    document.vnics.into_iter().next().unwrap().value
}

/// Returns a vhost-user contract in segment 7 with the n-th MAC and further lines.
pub fn vnic(name: &str, n: u8, lines: &str) -> String {
    format!(
        "[vnic.{name}]\nattach = {{ vhost-user = \"/tmp/unused-{name}.sock\" }}\n\
         mac = \"52:54:00:00:00:{n:02x}\"\nsegment = 7\n{lines}\n"
    )
}

pub fn ring(queue_size: u16) -> Options {
    Options { queue_size, ..Options::default() }
}

/// Runs greedy senders with copies of their frames for `time`. Returns the bytes received from each, and
/// the actual time.
pub fn pump(
    time: Duration,
    senders: &mut [(&mut Guest, Vec<u8>)],
    receiver: &mut Guest,
) -> (Vec<u64>, Duration) {
    pump_seen(time, senders, receiver, &mut Arrivals::new(0))
}

/// As [`pump`], and reports each look to `arrivals`.
pub fn pump_seen(
    time: Duration,
    senders: &mut [(&mut Guest, Vec<u8>)],
    receiver: &mut Guest,
    arrivals: &mut Arrivals,
) -> (Vec<u64>, Duration) {
    let start = Instant::now();
    let mut received = vec![0; senders.len()];
    while start.elapsed() < time {
        for (sender, frame) in senders.iter_mut() {
            sender.fill(frame);
        }
        let macs: Vec<_> = senders.iter().map(|(sender, _)| sender.mac()).collect();
        arrivals.look(|| {
            let mut bytes = 0;
            receiver.each(|frame| {
                let source = macs.iter().position(|mac| *mac == frame[6..12]).expect("one of the senders");
                received[source] += frame.len() as u64;
                bytes += frame.len() as u64;
            });
            bytes
        });
        // Leaves the CPU to the worker.
        std::thread::sleep(Duration::from_micros(500));
    }
    (received, start.elapsed())
}

/// Numbered frames, none of which may be lost: fewer are on the way than the receiver has buffers.
pub struct Stream {
    to: [u8; 6],
    from: [u8; 6],
    sent: u32,
    pub received: u32,
}

impl Stream {
    const ON_THE_WAY: u32 = 250;

    pub fn new(from: &Guest, to: &Guest) -> Self {
        Self { to: to.mac(), from: from.mac(), sent: 0, received: 0 }
    }

    pub fn send(&mut self, sender: &mut Guest) {
        let room = sender.ring_size() - sender.front.in_flight(0);
        for _ in 0..room.min((Self::ON_THE_WAY + self.received - self.sent) as usize) {
            let frame = udp(self.to, self.from, &[&self.sent.to_be_bytes()[..], &[0; 496]].concat());
            assert!(sender.front.push(0, &with_header(sender.front.header_len(), [0; 12], &frame)));
            self.sent += 1;
        }
        sender.front.flush(0);
    }

    #[track_caller]
    pub fn check(&mut self, frame: &[u8]) {
        if frame[6..12] == self.from {
            assert_eq!(frame[42..46], self.received.to_be_bytes(), "lost or out of order");
            self.received += 1;
        }
    }

    pub fn is_complete(&self) -> bool {
        self.sent == self.received
    }
}

/// Measures until the value is in `range`, at most ten times. A host that takes a worker's CPU for longer
/// than a burst spoils a share for a while; a wrong share is always wrong. So bursts are 20 ms and more,
/// and ranges wide. Limits always hold: [`rate::keeps_rate`].
#[track_caller]
pub fn measured(what: &str, range: RangeInclusive<f64>, mut measure: impl FnMut() -> f64) {
    let mut seen = Vec::new();
    while seen.len() < 10 {
        let value = measure();
        if range.contains(&value) {
            return;
        }
        seen.push(value);
    }
    panic!("{what}: {seen:?}, expected {range:?}");
}

pub fn bytes_in(bits_per_second: u64, time: Duration) -> f64 {
    bits_per_second as f64 / 8.0 * time.as_secs_f64()
}

/// Connects a receiver `c` and fills its buffers with frames of `filler`.
pub fn without_buffers(host: &TestSwitch, filler: &mut Guest) -> Guest {
    let c = host.guest_with(&vnic("c", 9, ""), ring(16));
    for n in 1..=16 {
        filler.send(&udp(c.mac(), filler.mac(), b"fills a buffer"));
        host.until(|| host.stats("c").rx.frames == n);
    }
    c
}

pub const BROADCAST: [u8; 6] = [0xff; 6];

/// Returns an IPv4 UDP frame without a UDP checksum (0).
pub fn udp(dst: [u8; 6], src: [u8; 6], payload: &[u8]) -> Vec<u8> {
    udp_dscp(dst, src, payload, 0)
}

pub fn udp_dscp(dst: [u8; 6], src: [u8; 6], payload: &[u8], dscp: u8) -> Vec<u8> {
    let mut frame = [&dst[..], &src[..], &[0x08, 0x00]].concat();
    let total = (20 + 8 + payload.len()) as u16;
    let mut ip = vec![0x45, dscp << 2, 0, 0, 0, 1, 0, 0, 64, 17, 0, 0, 10, 0, 0, src[5], 10, 0, 0, dst[5]];
    ip[2..4].copy_from_slice(&total.to_be_bytes());
    let sum = checksum(&ip);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    frame.extend(ip);
    frame.extend([0x10, 0x00, 0x20, 0x00]);
    frame.extend((8 + payload.len() as u16).to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(payload);
    frame
}

/// Returns the Internet checksum (RFC 1071).
pub fn checksum(bytes: &[u8]) -> u16 {
    let mut sum = 0u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}
