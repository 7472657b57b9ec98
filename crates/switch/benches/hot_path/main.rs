//! The hot path on one thread, with fixed input: what a frame costs where no other core touches
//! the rings. The worker's loop is the only thing measured.
//!
//! ```text
//!  driver (not counted): fills tx ring, gives rx buffers ─▶ Worker::turn ─▶ driver takes all back
//! ```
//!
//! `cargo bench -p tidegate-switch` prints nanoseconds a frame. With `--frames N --case NAME` it
//! carries N frames and prints nothing: for instruction counts.

use std::hint::black_box;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_contract::{Host, Vnic};
use tidegate_frontend::driver::{Buffer, DriverFeatures, DriverQueue};
use tidegate_frontend::memory::SharedMemory;
use tidegate_switch::fdb::{Fdb, SegmentIndex};
use tidegate_switch::port::vhost::VhostPort;
use tidegate_switch::port::{Link, Port, PortContract, PortInfo, PortSet};
use tidegate_switch::stats::Region;
use tidegate_switch::vhost_user::VringSetup;
use tidegate_switch::virtio::GuestMemory;
use tidegate_switch::virtio::memory::RegionSpec;
use tidegate_switch::worker::{Worker, mailbox};

/// VIRTIO_F_VERSION_1, VIRTIO_NET_F_MRG_RXBUF, VIRTIO_NET_F_GUEST_CSUM.
const FEATURES: u64 = 1 << 32 | 1 << 15 | 1 << 1;
const RING: u16 = 1024;
const BUFFER: u32 = 2048;
/// Frames given to the worker at a time.
const BATCH: u16 = 256;
const HEADER: usize = 12;

/// What a case sends, under which contract.
struct Case {
    name: &'static str,
    len: usize,
    /// Of the sender and the receiver, as in a contract file.
    contracts: [&'static str; 2],
}

const CASES: [Case; 5] = [
    Case { name: "64B-open", len: 64, contracts: ["", ""] },
    Case { name: "64B", len: 64, contracts: ["tx = { max = \"100gbit\" }", "rx = { max = \"100gbit\" }"] },
    Case {
        name: "64B-deadline",
        len: 64,
        contracts: [
            "tx = { max = \"100gbit\", burst = \"64kB\" }\ndeadline = \"1ms\"\nto = [\"v1\"]",
            "rx = { max = \"200gbit\" }",
        ],
    },
    Case { name: "512B", len: 512, contracts: ["tx = { max = \"100gbit\" }", "rx = { max = \"100gbit\" }"] },
    Case {
        name: "1518B",
        len: 1514,
        contracts: ["tx = { max = \"100gbit\" }", "rx = { max = \"100gbit\" }"],
    },
];

/// A guest's memory and its two rings.
struct Guest {
    memory: Arc<SharedMemory>,
    tx: DriverQueue,
    rx: DriverQueue,
    tx_buffers: u64,
    rx_buffers: u64,
}

impl Guest {
    fn new(index: u16) -> Self {
        let memory = Arc::new(SharedMemory::new(0, 8 << 20).expect("memory"));
        memory.preallocate().expect("memory");
        let features = DriverFeatures::default();
        let tx = DriverQueue::new(&memory, RING, features);
        let rx = DriverQueue::new(&memory, RING, features);
        let buffers = || memory.alloc(u64::from(RING) * u64::from(BUFFER), 64);
        let (tx_buffers, rx_buffers) = (buffers(), buffers());
        let mut guest = Self { memory, tx, rx, tx_buffers, rx_buffers };
        guest.tx.disable_interrupts();
        guest.rx.disable_interrupts();
        assert!(index < 2);
        guest
    }

    fn map(&self) -> Arc<GuestMemory> {
        let fd = self.memory.fd().as_fd().try_clone_to_owned().expect("a descriptor");
        let (user_addr, size) = (self.memory.user_addr(), self.memory.size());
        let region = RegionSpec { guest_addr: 0, user_addr, size, mmap_offset: 0, fd };
        Arc::new(GuestMemory::map(vec![region]).expect("mapped"))
    }

    fn setup(&self, ring: &DriverQueue) -> VringSetup {
        let user = |addr| self.memory.to_user(addr);
        VringSetup {
            size: RING,
            desc: user(ring.desc_addr()),
            avail: user(ring.avail_addr()),
            used: user(ring.used_addr()),
            base: 0,
            kick: None,
            call: None,
        }
    }

    /// Writes the same frame, with a virtio header that asks for nothing, into every buffer.
    fn fill(&self, frame: &[u8]) {
        for i in 0..u64::from(RING) {
            let at = self.tx_buffers + i * u64::from(BUFFER);
            self.memory.write(at, &[0; HEADER]);
            self.memory.write(at + HEADER as u64, frame);
        }
    }

    fn send(&mut self, count: u16, len: usize) {
        for _ in 0..count {
            let buffer = self.tx_buffers;
            let head = self.tx.add(&[Buffer::readable(buffer, (len + HEADER) as u32)]).expect("room");
            black_box(head);
        }
        let _ = self.tx.publish();
    }

    fn give_buffers(&mut self) {
        while self.rx.free() > 0 {
            let slot = u64::from(self.rx.free() - 1);
            let buffer = self.rx_buffers + slot * u64::from(BUFFER);
            self.rx.add(&[Buffer::writable(buffer, BUFFER)]).expect("room");
        }
        let _ = self.rx.publish();
    }
}

fn mac(index: u16) -> [u8; 6] {
    [0x52, 0x54, 0, 0, 0, index as u8]
}

/// A UDP datagram from vNIC 0 to vNIC 1, without a checksum.
fn frame(len: usize) -> Vec<u8> {
    let mut frame = vec![0; len];
    frame[..6].copy_from_slice(&mac(1));
    frame[6..12].copy_from_slice(&mac(0));
    frame[12..14].copy_from_slice(&[0x08, 0x00]);
    let ip_len = (len - 14) as u16;
    frame[14] = 0x45;
    frame[16..18].copy_from_slice(&ip_len.to_be_bytes());
    frame[22..24].copy_from_slice(&[64, 17]);
    frame[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    frame[34..40].copy_from_slice(&[4, 0, 4, 1, ((ip_len - 20) >> 8) as u8, (ip_len - 20) as u8]);
    frame
}

fn vnic(index: u16, contract: &str) -> Vnic {
    let text = format!(
        "[vnic.v{index}]\nattach = {{ vhost-user = \"/run/v{index}\" }}\n\
         mac = \"52:54:00:00:00:{index:02x}\"\nsegment = 7\n{contract}\n"
    );
    tidegate_contract::parse(&text, "bench").expect("a contract").vnics.remove(0).value
}

/// Two guests and the worker between them.
struct Scene {
    worker: Worker,
    guests: [Guest; 2],
    len: usize,
}

impl Scene {
    fn new(case: &Case) -> Self {
        let (_, inbox) = mailbox().expect("a mailbox");
        let layout = Region::create().expect("memory").layout();
        let fdb = Arc::new(Fdb::new());
        let (faults, _) = std::sync::mpsc::channel();
        let mut worker =
            Worker::new(0, inbox, fdb.clone(), vec![None], &layout.workers[0], faults).expect("a worker");
        let segment = SegmentIndex(0);
        let mut to = PortSet::EMPTY;
        to.insert(1);
        let guests = [Guest::new(0), Guest::new(1)];
        for (index, contract) in (0..).zip(case.contracts) {
            let vnic = vnic(index, contract);
            let guest = &guests[usize::from(index)];
            let compiled = PortContract::new(&vnic, &Host::default());
            let stats = &layout.vnics[usize::from(index)];
            let link = Link::Vhost(VhostPort::default());
            worker.add_port(Box::new(Port::new(index, segment, compiled, stats, link)));
            let to = if index == 0 { to.clone() } else { PortSet::EMPTY };
            worker.set_info(index, Some(PortInfo::new(&vnic, 0, segment, to)));
            fdb.pin(segment, vnic.mac, index).expect("room");
            worker.set_features(index, FEATURES);
            worker.set_memory(index, &guest.map()).expect("memory");
            for (queue, ring) in [(0, &guest.rx), (1, &guest.tx)] {
                worker.start_queue(index, queue, guest.setup(ring)).expect("a ring");
                worker.enable_queue(index, queue, true);
            }
        }
        worker.set_members(vec![vec![0, 1]]);
        guests[0].fill(&frame(case.len));
        Self { worker, guests, len: case.len }
    }

    /// One batch through the switch; returns the time the worker took.
    fn round(&mut self) -> Duration {
        let [sender, receiver] = &mut self.guests;
        receiver.give_buffers();
        sender.send(BATCH, self.len);
        let mut took = Duration::ZERO;
        let mut received = 0;
        while received < BATCH {
            let before = Instant::now();
            self.worker.turn();
            took += before.elapsed();
            while let Some(used) = receiver.rx.reap() {
                assert_eq!(used.len as usize, self.len + HEADER);
                received += 1;
            }
            while sender.tx.reap().is_some() {}
        }
        took
    }
}

fn measure(case: &Case) -> f64 {
    let mut scene = Scene::new(case);
    let mut rounds = Vec::new();
    for _ in 0..4_000 {
        rounds.push(scene.round().as_nanos() as f64 / f64::from(BATCH));
    }
    rounds.sort_by(f64::total_cmp);
    rounds[rounds.len() / 2]
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let value = |name: &str| args.iter().position(|arg| arg == name).and_then(|at| args.get(at + 1));
    let named = value("--case");
    let cases = CASES.iter().filter(|case| named.is_none_or(|name| name == case.name));
    match value("--frames").and_then(|n| n.parse::<u32>().ok()) {
        Some(frames) => cases.for_each(|case| {
            let mut scene = Scene::new(case);
            (0..frames.div_ceil(u32::from(BATCH))).for_each(|_| _ = black_box(scene.round()));
        }),
        None => cases.for_each(|case| println!("{:<14} {:6.1} ns a frame", case.name, measure(case))),
    }
}
