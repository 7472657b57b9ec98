//! What every device has to do, checked on two ends of a link: real ones in a guest, simulated ones in a test.
//!
//! ```text
//!  End ─▶ Side: queue pair, its memory, its completion queues ─┐
//!                                                              ├─ CHECKS ─▶ a panic that says what was wrong
//!  End ─▶ Side ────────────────────────────────────────────────┘
//! ```
//!
//! That a datagram vanishes is shown by one sent after it: the devices keep the order of one queue pair's datagrams.
//!
//! - `pieces`: requests of several pieces
//! - `shared`: regions over memory of others
//! - `renewal`: queue pairs that begin anew

mod pieces;
mod renewal;
mod shared;

use crate::{
    Address, Completion, CompletionQueue, Depths, Device, Error, GRH, LARGEST_Q_KEY, Piece, QueuePair,
    Receive, Region, Send, Status,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// One end: a device, and a RoCE v2 GID of it. Both ends may be the same device.
#[derive(Clone, Debug)]
pub struct End {
    /// The device.
    pub device: Arc<Device>,
    /// The GID's index.
    pub gid: u8,
    /// The GID's address.
    pub address: IpAddr,
}

/// A check of two ends.
pub type Check = fn(&End, &End);

/// All checks, each with its name.
pub const CHECKS: [(&str, Check); 20] = [
    ("datagrams arrive in order, with their length and their sender", arrives),
    ("the GRH has source, destination and traffic class", grh),
    ("a datagram as long as the MTU arrives", longest),
    ("a wrong Q_Key vanishes, and a new one counts at once", keys),
    ("an unknown queue pair gets nothing, and the sender hears nothing", unknown),
    ("without a buffer a datagram vanishes", unbuffered),
    ("a told send completes those before it", told),
    ("queue pairs share a completion queue", shared),
    ("an armed queue wakes", wakes),
    ("a queue pair that fails is flushed", flushed),
    ("privileged Q_Keys are refused", privileged),
    ("pieces are gathered in order", pieces::gathered),
    ("a datagram is scattered in order, and no byte is written elsewhere", pieces::scattered),
    ("as many pieces as the device says, and no more", pieces::most),
    ("pieces that are not right are refused, and all goes on", pieces::refused),
    ("memory of others is sent and received into, and its owner stays", shared::over),
    ("a hole below a region fails nothing", shared::holes),
    ("a queue pair that is renewed has its number, and nothing posted", renewal::ready),
    ("sends of a queue pair that is renewed are forgotten", renewal::sends),
    ("a queue pair that failed begins anew", renewal::failed),
];

/// How long a completion may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// Bytes of a buffer: a GRH and a datagram.
const BUFFER: usize = 4096 + 64;
/// Buffers for receives, and as many for sends.
const BUFFERS: usize = 16;
/// Pieces of a request: fewer than any device takes.
const PIECES: u32 = 4;
const KEY: u32 = 0x1234_5678;
const OTHER_KEY: u32 = 0x1234_5679;

/// Runs all checks, and prints the name of each.
///
/// # Panics
/// A device behaves otherwise.
pub fn check_all(a: &End, b: &End) {
    for (name, check) in CHECKS {
        println!("{name}");
        check(a, b);
    }
}

impl End {
    /// Returns the end of `device` at `address`.
    ///
    /// # Panics
    /// The device has no RoCE v2 GID of this address.
    pub fn new(device: &Arc<Device>, address: IpAddr) -> Self {
        let gids = device.gids().unwrap();
        let gid = gids.iter().find(|gid| gid.address == address && gid.is_roce_v2);
        let gid = gid.unwrap_or_else(|| panic!("{} has no GID of {address}: {gids:?}", device.name()));
        Self { device: device.clone(), gid: gid.index, address }
    }
}

/// A queue pair with its memory: the first half for sends, the second for receives.
struct Side {
    end: End,
    region: Arc<Region>,
    sends: Arc<CompletionQueue>,
    receives: Arc<CompletionQueue>,
    pair: QueuePair,
}

impl Side {
    fn new(end: &End) -> Self {
        let queue = || CompletionQueue::new(&end.device, 4 * BUFFERS as u32).unwrap();
        Self::with(end, queue(), queue())
    }

    fn with(end: &End, sends: Arc<CompletionQueue>, receives: Arc<CompletionQueue>) -> Self {
        let region = Region::new(&end.device, 2 * BUFFERS * BUFFER).unwrap();
        let depths = Depths { send: BUFFERS as u32, receive: BUFFERS as u32, pieces: PIECES };
        let pair = QueuePair::new(&end.device, &sends, &receives, depths, KEY).unwrap();
        Self { end: end.clone(), region, sends, receives, pair }
    }

    /// Returns a handle of another end.
    fn address(&self, to: &End, traffic_class: u8) -> Arc<Address> {
        Address::new(&self.end.device, self.end.gid, to.address, traffic_class).unwrap()
    }

    /// Posts the first buffers.
    fn post(&self, buffers: usize) {
        let pieces: Vec<_> = (0..buffers).map(|n| self.piece((BUFFERS + n) * BUFFER, BUFFER)).collect();
        let receive = |(n, piece)| Receive { id: n as u64, pieces: std::slice::from_ref(piece) };
        let receives: Vec<_> = pieces.iter().enumerate().map(receive).collect();
        // SAFETY: these bytes are read only after a completion.
        unsafe { self.pair.post_receive(&receives) }.unwrap();
    }

    /// Sends a datagram from each of the first buffers, and waits for the completion of the last.
    fn send(&self, to: &Address, number: u32, key: u32, datagrams: &[&[u8]]) {
        let pieces = datagrams.iter().enumerate().map(|(n, bytes)| {
            self.write(n, bytes);
            [self.piece(n * BUFFER, bytes.len())]
        });
        let pieces: Vec<_> = pieces.collect();
        let pieces: Vec<&[Piece<'_>]> = pieces.iter().map(<[_; 1]>::as_slice).collect();
        self.send_pieces(to, (number, key), &pieces);
    }

    /// Sends a datagram of each list of pieces, and waits for the completion of the last.
    fn send_pieces(&self, to: &Address, (queue_pair, q_key): (u32, u32), datagrams: &[&[Piece<'_>]]) {
        let mut sends = vec![];
        for (n, pieces) in datagrams.iter().enumerate() {
            let is_signalled = n + 1 == datagrams.len();
            sends.push(Send { id: n as u64, pieces, is_signalled, to, queue_pair, q_key });
        }
        // SAFETY: the bytes are written again only after the completion.
        unsafe { self.pair.post_send(&sends) }.unwrap();
        let done = take(&self.sends, 1);
        let expected = (datagrams.len() as u64 - 1, Status::Success, false, self.pair.number());
        assert_eq!((done[0].id, done[0].status, done[0].is_receive, done[0].queue_pair), expected);
    }

    fn piece(&self, from: usize, len: usize) -> Piece<'_> {
        Piece { region: &self.region, from, len: len as u32 }
    }

    /// Writes bytes to a buffer that the device does not have.
    fn write(&self, n: usize, bytes: &[u8]) {
        assert!(bytes.len() <= BUFFER);
        // SAFETY: within the buffer, which the device does not have.
        unsafe { self.buffer(n).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    /// Returns the first bytes of a buffer that the device does not have.
    fn read(&self, n: usize, len: usize) -> Vec<u8> {
        assert!(len <= BUFFER);
        // SAFETY: the same.
        unsafe { std::slice::from_raw_parts(self.buffer(n), len) }.to_vec()
    }

    fn buffer(&self, n: usize) -> *mut u8 {
        assert!(n < 2 * BUFFERS && self.region.len() >= 2 * BUFFERS * BUFFER);
        // SAFETY: within the region.
        unsafe { self.region.start().add(n * BUFFER) }
    }

    /// Waits for so many datagrams, and returns the completion, the GRH and the payload of each.
    fn receive(&self, datagrams: usize) -> Vec<(Completion, Vec<u8>, Vec<u8>)> {
        let read = |done: Completion| {
            let facts = (done.status, done.is_receive, done.queue_pair);
            assert_eq!(facts, (Status::Success, true, self.pair.number()), "{done:?}");
            let (id, bytes) = (done.id as usize, done.bytes as usize);
            assert!(id < BUFFERS && (GRH..=BUFFER).contains(&bytes), "{done:?}");
            let all = self.read(BUFFERS + id, bytes);
            (done, all[..GRH].to_vec(), all[GRH..].to_vec())
        };
        take(&self.receives, datagrams).into_iter().map(read).collect()
    }

    /// Waits for so many datagrams, and returns their payloads.
    fn payloads(&self, datagrams: usize) -> Vec<Vec<u8>> {
        self.receive(datagrams).into_iter().map(|(_, _, bytes)| bytes).collect()
    }

    fn has_received(&self) -> bool {
        self.receives.poll(&mut [Completion::default()]).unwrap() > 0
    }
}

/// Waits for so many completions, and takes no more.
fn take(queue: &CompletionQueue, count: usize) -> Vec<Completion> {
    let (mut all, end) = (vec![], Instant::now() + PATIENCE);
    while all.len() < count {
        let mut one = [Completion::default()];
        if queue.poll(&mut one).unwrap() == 1 {
            all.push(one[0]);
        } else {
            assert!(Instant::now() < end, "{} of {count} completions in {PATIENCE:?}", all.len());
            std::thread::yield_now();
        }
    }
    all
}

fn sides(a: &End, b: &End) -> (Side, Side, Arc<Address>) {
    let (a, b) = (Side::new(a), Side::new(b));
    let to = a.address(&b.end, 0);
    (a, b, to)
}

fn arrives(a: &End, b: &End) {
    let (a, b, to) = sides(a, b);
    b.post(4);
    a.send(&to, b.pair.number(), KEY, &[b"first", b"the second", &[7; 1000]]);
    let received = b.receive(3);
    let expected: [&[u8]; 3] = [b"first", b"the second", &[7; 1000]];
    for (n, (done, _, bytes)) in received.iter().enumerate() {
        assert_eq!((done.id, done.source, &bytes[..]), (n as u64, a.pair.number(), expected[n]));
    }
    // Back, to the queue pair that the completion named.
    a.post(1);
    b.send(&b.address(&a.end, 0), received[0].0.source, KEY, &[b"back"]);
    assert_eq!(a.payloads(1), [b"back"]);
}

fn grh(a: &End, b: &End) {
    let (a, b, _) = sides(a, b);
    for traffic_class in [0, 0xb8, 0xb9, 0xbb, 3] {
        b.post(1);
        a.send(&a.address(&b.end, traffic_class), b.pair.number(), KEY, &[b"x"]);
        let grh = b.receive(1).remove(0).1;
        match (a.end.address, b.end.address) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let ip = &grh[20..];
                assert_eq!((ip[0], ip[1]), (0x45, traffic_class), "{ip:?}");
                assert_eq!((&ip[12..16], &ip[16..20]), (&from.octets()[..], &to.octets()[..]), "{ip:?}");
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                assert_eq!(grh[0] >> 4, 6);
                assert_eq!(grh[0] << 4 | grh[1] >> 4, traffic_class, "{grh:?}");
                assert_eq!((&grh[8..24], &grh[24..]), (&from.octets()[..], &to.octets()[..]), "{grh:?}");
            }
            mixed => panic!("two families: {mixed:?}"),
        }
    }
}

fn longest(a: &End, b: &End) {
    let mtu = a.device.port().unwrap().mtu.min(b.device.port().unwrap().mtu) as usize;
    let (a, b, to) = sides(a, b);
    b.post(1);
    let bytes: Vec<u8> = (0..mtu).map(|n| n as u8).collect();
    a.send(&to, b.pair.number(), KEY, &[&bytes]);
    assert_eq!(b.payloads(1), [bytes]);
}

fn keys(a: &End, b: &End) {
    let (a, b, to) = sides(a, b);
    b.post(4);
    for wrong in [OTHER_KEY, 0, LARGEST_Q_KEY] {
        a.send(&to, b.pair.number(), wrong, &[b"wrong"]);
    }
    a.send(&to, b.pair.number(), KEY, &[b"right"]);
    assert_eq!(b.payloads(1), [b"right"]);
    b.pair.set_q_key(OTHER_KEY).unwrap();
    a.send(&to, b.pair.number(), KEY, &[b"the old key"]);
    a.send(&to, b.pair.number(), OTHER_KEY, &[b"the new key"]);
    assert_eq!(b.payloads(1), [b"the new key"]);
    assert!(!b.has_received());
}

fn unknown(a: &End, b: &End) {
    let (a, b, to) = sides(a, b);
    b.post(1);
    let gone = {
        let gone = Side::new(&b.end);
        gone.post(1);
        gone.pair.number()
    };
    for number in [gone, 0x00ff_fff0] {
        a.send(&to, number, KEY, &[b"nowhere"]);
    }
    a.send(&to, b.pair.number(), KEY, &[b"here"]);
    assert_eq!(b.payloads(1), [b"here"]);
}

fn unbuffered(a: &End, b: &End) {
    let (a, b, to) = sides(a, b);
    let witness = Side::new(&b.end);
    witness.post(1);
    a.send(&to, b.pair.number(), KEY, &[b"lost"]);
    // The devices keep the order of one sender's datagrams, so the lost one came before this.
    a.send(&to, witness.pair.number(), KEY, &[b"came"]);
    assert_eq!(witness.payloads(1), [b"came"]);
    b.post(1);
    a.send(&to, b.pair.number(), KEY, &[b"found"]);
    assert_eq!(b.payloads(1), [b"found"]);
}

fn told(a: &End, b: &End) {
    let (a, b, to) = sides(a, b);
    b.post(BUFFERS);
    // Three times the queue's depth: the places of sends that are not told come back.
    for _ in 0..3 {
        a.send(&to, b.pair.number(), KEY, &[b"x".as_slice(); BUFFERS]);
        b.receive(BUFFERS);
        b.post(BUFFERS);
    }
    assert_eq!(a.sends.poll(&mut [Completion::default(); 4]).unwrap(), 0);
}

fn shared(a: &End, b: &End) {
    let queue = CompletionQueue::new(&b.device, 4 * BUFFERS as u32).unwrap();
    let sender = Side::new(a);
    let pairs = [(); 3].map(|()| Side::with(b, queue.clone(), queue.clone()));
    let to = sender.address(b, 0);
    for side in &pairs {
        side.post(1);
    }
    for side in pairs.iter().rev() {
        sender.send(&to, side.pair.number(), KEY, &[b"x"]);
    }
    let numbers: Vec<u32> = take(&queue, 3).iter().map(|done| done.queue_pair).collect();
    assert_eq!(numbers, [2, 1, 0].map(|n: usize| pairs[n].pair.number()));
}

fn wakes(a: &End, b: &End) {
    let (a, b, to) = sides(a, b);
    b.post(4);
    assert!(!is_readable(&b.receives, Duration::ZERO));
    b.receives.arm().unwrap();
    assert!(!b.has_received() && !is_readable(&b.receives, Duration::from_millis(1)));
    a.send(&to, b.pair.number(), KEY, &[b"one"]);
    assert!(is_readable(&b.receives, PATIENCE), "an armed queue with a completion");
    b.receives.take_events();
    assert!(!is_readable(&b.receives, Duration::ZERO), "its events were taken");
    // Not armed any more: the next is no event.
    a.send(&to, b.pair.number(), KEY, &[b"two"]);
    assert_eq!(b.payloads(2), [b"one", b"two"]);
    assert!(!is_readable(&b.receives, Duration::ZERO), "it was not armed");
    b.receives.arm().unwrap();
    a.send(&to, b.pair.number(), KEY, &[b"three"]);
    assert!(is_readable(&b.receives, PATIENCE));
    b.receives.take_events();
    b.receives.take_events();
    assert_eq!(b.payloads(1), [b"three"]);
}

fn is_readable(queue: &CompletionQueue, patience: Duration) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(queue.as_fd(), PollFlags::IN)];
    let patience =
        Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: i64::from(patience.subsec_nanos()) };
    poll(&mut polled, Some(&patience)).unwrap() > 0
}

fn flushed(a: &End, b: &End) {
    let (a, b, to) = sides(a, b);
    b.post(3);
    a.send(&to, b.pair.number(), KEY, &[b"before"]);
    assert_eq!(b.payloads(1), [b"before"]);
    b.pair.fail().unwrap();
    let flushed =
        |id| Completion { id, status: Status::Flushed, queue_pair: b.pair.number(), ..Completion::default() };
    assert_eq!(take(&b.receives, 2), [flushed(1), flushed(2)]);
    a.send(&to, b.pair.number(), KEY, &[b"after"]);
    let next = Side::new(&b.end);
    next.post(1);
    a.send(&to, next.pair.number(), KEY, &[b"next"]);
    assert_eq!(next.payloads(1), [b"next"]);
    assert!(!b.has_received());
    assert!(b.pair.set_q_key(OTHER_KEY).is_err(), "a key for a queue pair that failed");
}

fn privileged(a: &End, _: &End) {
    let side = Side::new(a);
    for key in [LARGEST_Q_KEY + 1, u32::MAX] {
        let depths = Depths { send: 1, receive: 1, pieces: 1 };
        let refused = QueuePair::new(&a.device, &side.sends, &side.receives, depths, key).unwrap_err();
        assert!(matches!(refused, Error::QKey(named) if named == key), "{refused}");
        assert!(matches!(side.pair.set_q_key(key), Err(Error::QKey(named)) if named == key));
    }
}
