//! A worker in its own process, killed at random while two guests use it.
//!
//! ```text
//!   guest 0 ──tx ring──▶ worker ──rx ring──▶ guest 1: each frame whole, in order, at most once
//!      ▲                   │ kill -9
//!      └── chains back ◀── next process: memory and regions, as the last one left them
//! ```
//!
//! The property test of `virtio` cuts in source order; this test cuts in the compiled order.

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{FdFlags, fcntl_setfd};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tidegate_contract::Host;
use tidegate_frontend::driver::{Buffer, DriverFeatures, DriverQueue, Used};
use tidegate_frontend::memory::SharedMemory;
use tidegate_switch::fdb::{Fdb, SegmentIndex};
use tidegate_switch::link::Link;
use tidegate_switch::port::{Port, PortContract, PortInfo, PortSet};
use tidegate_switch::stats::Region;
use tidegate_switch::vhost_user::VringSetup;
use tidegate_switch::vhost_user::kick::Kick;
use tidegate_switch::vhost_user::saved::Numbered;
use tidegate_switch::virtio::memory::RegionSpec;
use tidegate_switch::virtio::{GuestMemory, Inflight};
use tidegate_switch::worker::events::Events;
use tidegate_switch::worker::{Worker, mailbox};

/// Environment variable: the guests, as numbers in the order of [`Guest::words`].
const GUESTS: &str = "TIDEGATE_TEST_GUESTS";
/// Environment variable: the sender's contract keys, a line break, the receiver's.
const KEYS: &str = "TIDEGATE_TEST_KEYS";
/// VIRTIO_F_VERSION_1, VIRTIO_NET_F_MRG_RXBUF.
const USUAL: u64 = 1 << 32 | 1 << 15;
/// VIRTIO_F_RING_PACKED.
const PACKED: u64 = 1 << 34;
const HEADER: usize = 12;
/// Size of a receive buffer (bytes). Long frames take several.
const RX_BUFFER: u32 = 600;
const BUFFER: u64 = 2048;
/// Output of a process that carries frames.
const READY: &str = "carrying frames";
const KILLS: usize = 100;
const FLOWS: usize = 5;
const UNLIMITED: [&str; 2] = [""; 2];
const LIMIT_TX: &str = "tx = { max = \"20mbit\", burst = \"4kB\" }";
const LIMIT_RX: &str = "rx = { max = \"20mbit\", burst = \"4kB\" }";
/// Lets one test run at a time, since guests and workers poll.
static ALONE: Mutex<()> = Mutex::new(());

/// A guest's memory and rings: the driver's side.
struct Guest {
    memory: Arc<SharedMemory>,
    inflight: Inflight,
    /// In the protocol's order: rx, tx.
    rings: [DriverQueue; 2],
    kicks: [OwnedFd; 2],
    /// Addresses of each ring's free buffers, and of its used buffers by the head that `add` returned.
    free: [Vec<u64>; 2],
    given: [BTreeMap<u16, u64>; 2],
}

impl Guest {
    fn new(size: u16, features: u64) -> Self {
        let memory = Arc::new(SharedMemory::new(0, 1 << 20).unwrap());
        memory.preallocate().unwrap();
        let driver = DriverFeatures { packed: features & PACKED != 0, ..DriverFeatures::default() };
        let rings = [(); 2].map(|()| DriverQueue::new(&memory, size, driver));
        let kicks = [(); 2].map(|()| eventfd(0, EventfdFlags::NONBLOCK).unwrap());
        let free = [(); 2].map(|()| (0..size).map(|_| memory.alloc(BUFFER, 64)).collect());
        let inflight = Inflight::create(2, size).unwrap();
        fcntl_setfd(memory.fd(), FdFlags::empty()).unwrap();
        fcntl_setfd(inflight.fd(), FdFlags::empty()).unwrap();
        Self { memory, inflight, rings, kicks, free, given: Default::default() }
    }

    fn words(&self) -> Vec<u64> {
        let fd = |fd: i32| fd as u64;
        let memory = [fd(self.memory.fd().as_raw_fd()), self.memory.user_addr(), self.memory.size()];
        let rings = self.rings.iter().zip(&self.kicks).flat_map(|(ring, kick)| {
            let addrs = [ring.desc_addr(), ring.avail_addr(), ring.used_addr()];
            let [desc, avail, used] = addrs.map(|addr| self.memory.to_user(addr));
            [ring.size().into(), desc, avail, used, ring.base().into(), fd(kick.as_raw_fd())]
        });
        memory.into_iter().chain([fd(self.inflight.fd().as_raw_fd())]).chain(rings).collect()
    }

    /// Adds a buffer that `fill` prepares. Returns `false` without a free buffer.
    fn add(&mut self, index: usize, fill: impl FnOnce(&SharedMemory, u64) -> Buffer) -> bool {
        let Some(at) = self.free[index].pop() else { return false };
        let head = self.rings[index].add(&[fill(&self.memory, at)]).expect("as many entries as buffers");
        assert_eq!(self.given[index].insert(head, at), None, "chain {head} is in flight");
        true
    }

    fn show(&mut self, index: usize) {
        let _ = self.rings[index].publish();
        let _ = rustix::io::write(&self.kicks[index], &1u64.to_ne_bytes());
    }

    /// Takes the next completed buffer. Returns its address and the bytes written.
    fn reap(&mut self, index: usize) -> Option<(u64, u32)> {
        let Used { head, len } = self.rings[index].reap()?;
        let at = self.given[index].remove(&head).expect("in flight");
        self.free[index].push(at);
        Some((at, len))
    }

    fn give_buffers(&mut self) {
        while self.add(0, |_, at| Buffer::writable(at, RX_BUFFER)) {}
        self.show(0);
    }
}

fn mac(index: u16) -> [u8; 6] {
    [0x52, 0x54, 0, 0, 0, index as u8]
}

/// Returns a frame's flow: 0 for long frames, one of several that send little for short ones.
fn flow(number: u32, len: usize) -> usize {
    if len > 64 { 0 } else { 1 + number as usize % (FLOWS - 1) }
}

fn frame(number: u32, len: usize) -> Vec<u8> {
    let mut frame = vec![0; HEADER + len];
    let ethernet = &mut frame[HEADER..];
    ethernet[..6].copy_from_slice(&mac(1));
    ethernet[6..12].copy_from_slice(&mac(0));
    ethernet[12..15].copy_from_slice(&[0x08, 0x00, 0x45]);
    ethernet[16..18].copy_from_slice(&((len - 14) as u16).to_be_bytes());
    ethernet[22..24].copy_from_slice(&[64, 17]);
    ethernet[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    ethernet[34..38].copy_from_slice(&[4, flow(number, len) as u8, 4, 1]);
    ethernet[38..40].copy_from_slice(&((len - 34) as u16).to_be_bytes());
    ethernet[42..].chunks_mut(4).for_each(|word| word.copy_from_slice(&number.to_le_bytes()[..word.len()]));
    frame
}

/// Runs the worker process until it is killed. Not a test of its own.
#[test]
fn device() {
    let Ok(words) = std::env::var(GUESTS) else { return };
    let mut words = words.split(' ').map(|word| word.parse::<u64>().unwrap());
    let mut next = || words.next().unwrap();
    let features = next();
    let (handle, inbox) = mailbox().unwrap();
    let stats = Region::create().unwrap();
    let fdb = Arc::new(Fdb::new());
    let (faults, broken) = std::sync::mpsc::channel();
    let (events, _) = Events::new(Arc::default());
    let worker_stats = &stats.layout().workers[0];
    let mut worker = Worker::new(
        0,
        inbox,
        fdb.clone(),
        Arc::default(),
        Arc::default(),
        vec![None],
        worker_stats,
        faults,
        events,
    )
    .unwrap();
    // SAFETY: the parent passed these descriptors, which this process owns.
    let fd = |word: u64| unsafe { OwnedFd::from_raw_fd(word as i32) };
    let keys = std::env::var(KEYS).unwrap();
    for (index, keys) in (0..).zip(keys.splitn(2, '\n')) {
        let [a, b, c, d, e, f] = mac(index);
        let text = format!(
            "[vnic.v{index}]\nattach = {{ vhost-user = \"/run/v{index}\" }}\n\
             mac = \"{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}\"\nsegment = 7\n{keys}\n"
        );
        let vnic = tidegate_contract::parse(&text, "test").unwrap().vnics.remove(0).value;
        let contract = PortContract::new(&vnic, &Host::default());
        let (segment, link) = (SegmentIndex(0), Link::vhost_user());
        let stats = &stats.layout().vnics[usize::from(index)];
        worker.add_port(Box::new(Port::new(index, segment, contract, stats, link)));
        worker.set_info(index, Some(PortInfo::new(&vnic, 0, segment, PortSet::EMPTY)));
        fdb.pin(segment, vnic.mac, index).unwrap();
        worker.set_features(index, features);
        let (memory, user_addr, size) = (fd(next()), next(), next());
        let region = RegionSpec { guest_addr: 0, user_addr, size, mmap_offset: 0, fd: memory };
        worker.set_memory(index, &Arc::new(GuestMemory::map(vec![region]).unwrap())).unwrap();
        let inflight = Inflight::open(fd(next())).unwrap();
        for queue in [0, 1] {
            let (size, desc, avail, used) = (next() as u16, next(), next(), next());
            let base = next() as u32;
            let kick = Kick::new(Numbered::free(fd(next()))).unwrap();
            handle.listen(index, &kick).unwrap();
            kick.listen_to_driver().unwrap();
            let kick = Some(kick);
            let inflight = inflight.queue(queue);
            let setup = VringSetup { size, desc, avail, used, base, log: None, kick, call: None, inflight };
            worker.start_queue(index, queue, setup).unwrap();
            worker.enable_queue(index, queue, true);
        }
    }
    worker.set_members(vec![vec![0, 1]]);
    println!("\n{READY}");
    loop {
        worker.turn();
        if let Ok((_, fault)) = broken.try_recv() {
            eprintln!("{fault:?}");
            std::process::abort();
        }
    }
}

struct Scene {
    size: u16,
    guests: [Guest; 2],
    /// For the first process; later ones find the ring positions by themselves.
    words: String,
    sent: u32,
    received: u32,
    keys: [&'static str; 2],
    /// Last number received: by flow if frames wait by flow, otherwise of all.
    last: [u32; FLOWS],
    /// Bytes received of a partial frame, and its buffers to come.
    partial: (Vec<u8>, u16),
    random: u64,
}

impl Scene {
    fn new(size: u16, features: u64, keys: [&'static str; 2]) -> Self {
        let guests = [(); 2].map(|()| Guest::new(size, features));
        let words = std::iter::once(features).chain(guests.iter().flat_map(Guest::words));
        let words = words.map(|word| word.to_string()).collect::<Vec<_>>().join(" ");
        let partial = (Vec::new(), 0);
        Self { size, guests, words, sent: 0, received: 0, keys, last: [0; FLOWS], partial, random: 1 }
    }

    fn random(&mut self, below: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.random >> 33) % below
    }

    fn start(&self) -> (Child, impl FnOnce() + use<>) {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "device", "--nocapture", "--quiet", "--test-threads=1"])
            .env(GUESTS, &self.words)
            .env(KEYS, self.keys.join("\n"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output: ChildStdout = process.stdout.take().unwrap();
        let ready = || {
            let mut lines = BufReader::new(output).lines();
            assert!(lines.any(|line| line.is_ok_and(|line| line == READY)), "the process could not start");
        };
        (process, ready)
    }

    fn send(&mut self, most: u32) {
        for _ in 0..most {
            let long = self.random(4) == 0;
            let len = if long { 64 + self.random(1400) as usize } else { 64 };
            let frame = frame(self.sent + 1, len);
            let added = self.guests[0].add(1, |memory, at| {
                memory.write(at, &frame);
                Buffer::readable(at, frame.len() as u32)
            });
            if !added {
                break;
            }
            self.sent += 1;
        }
        self.guests[0].show(1);
    }

    fn take_back(&mut self) {
        while let Some((_, len)) = self.guests[0].reap(1) {
            assert_eq!(len, 0, "a transmit buffer was written to");
        }
    }

    fn receive(&mut self) {
        while let Some((at, len)) = self.guests[1].reap(0) {
            assert!((1..=RX_BUFFER).contains(&len), "a receive buffer with {len} bytes");
            let bytes = self.guests[1].memory.bytes(at, len as usize);
            let (frame, left) = &mut self.partial;
            if *left == 0 {
                frame.clear();
                *left = u16::from_le_bytes([bytes[10], bytes[11]]);
            }
            frame.extend(bytes);
            *left -= 1;
            if *left == 0 {
                let payload = &frame[HEADER + 42..];
                let number = u32::from_le_bytes(payload[..4].try_into().unwrap());
                let is_limited = self.keys != UNLIMITED;
                let last = &mut self.last[if is_limited { flow(number, frame.len() - HEADER) } else { 0 }];
                assert!(number > *last, "frame {number} after {last}: sent twice");
                assert!(number <= self.sent);
                *last = number;
                let mut expected = self::frame(number, frame.len() - HEADER);
                expected[10..12].copy_from_slice(&frame[10..12]);
                assert!(*frame == expected, "frame {number} of {} bytes is not what was sent", frame.len());
                self.received += 1;
            }
        }
    }

    fn both_drivers(&mut self, most: u32) {
        self.receive();
        self.guests[1].give_buffers();
        self.take_back();
        self.send(most);
    }

    /// Runs until `done`, at most 20 s.
    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !done(self) {
            assert!(Instant::now() < deadline, "{what}: {} sent, {} received", self.sent, self.received);
        }
    }

    fn kill(&mut self) {
        let (mut process, ready) = self.start();
        let early = self.random(4) == 0;
        if early {
            std::thread::sleep(Duration::from_micros(self.random(15_000)));
        } else {
            ready();
        }
        let until = Instant::now() + Duration::from_micros(self.random(8_000));
        while Instant::now() < until {
            let most = 1 + self.random(u64::from(self.size)) as u32;
            self.both_drivers(most);
        }
        process.kill().unwrap();
        process.wait().unwrap();
        for _ in 0..self.random(3) {
            self.both_drivers(4);
        }
    }

    /// Runs a last process: no chain is stranded, no buffer has leaked.
    fn go_on(&mut self) {
        let (mut process, ready) = self.start();
        ready();
        self.until("what was sent comes back", |scene| {
            scene.both_drivers(0);
            scene.guests[0].given[1].is_empty()
        });
        self.receive();
        let received = self.received;
        self.until("frames are carried", |scene| {
            scene.both_drivers(7);
            scene.received >= received + 4 * u32::from(scene.size)
        });
        // Without new receive buffers, the worker uses up those in the ring.
        self.until("every receive buffer is used", |scene| {
            scene.receive();
            scene.take_back();
            scene.send(1);
            scene.guests[1].given[0].is_empty()
        });
        assert_eq!(self.partial.1, 0, "half a frame");
        process.kill().unwrap();
        process.wait().unwrap();
    }
}

fn killed_again_and_again(size: u16, features: u64, keys: [&'static str; 2], kills: usize) -> Scene {
    let mut scene = Scene::new(size, features, keys);
    for _ in 0..kills {
        scene.kill();
    }
    let (sent, received) = (scene.sent, scene.received);
    println!("{sent} frames sent, {} lost in {kills} kills, {keys:?}", sent - received);
    scene
}

fn killed_under_load(size: u16, features: u64) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut scene = killed_again_and_again(size, features, UNLIMITED, KILLS);
    let received = scene.received;
    assert!(received > 10 * KILLS as u32, "{received} frames, too few to mean anything");
    scene.go_on();
}

#[test]
fn a_split_ring_loses_frames_and_nothing_else() {
    killed_under_load(64, USUAL);
}

#[test]
fn a_packed_ring_loses_frames_and_nothing_else() {
    killed_under_load(61, USUAL | PACKED);
}

/// Some of the waiting frames are overtaken, at the sender's limit and at the receiver's.
#[test]
fn frames_that_wait_for_a_rate_are_lost_and_nothing_else() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for keys in [[LIMIT_TX, ""], ["", LIMIT_RX]] {
        for features in [USUAL, USUAL | PACKED] {
            let kills = KILLS / 4;
            let mut scene = killed_again_and_again(128, features, keys, kills);
            let lost = (scene.sent - scene.received) as usize;
            assert!(lost > 10 * kills, "{lost} lost: none waited");
            scene.go_on();
        }
    }
}
