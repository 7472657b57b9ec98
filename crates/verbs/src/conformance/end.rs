//! An end of a link, and a queue pair with its memory there.
//!
//! ```text
//!  checks ─ post, send ─▶ Side {memory: buffers of sends, of receives; queue pair; completion queues} ─▶ payloads ─▶ checks
//! ```

use crate::{
    Address, Completion, CompletionQueue, Depths, Device, GRH, Piece, QueuePair, Receive, Region, Send,
    Status,
};
use std::net::IpAddr;
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

/// How long a completion may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);
/// Bytes of a buffer: a GRH and a datagram.
pub(super) const BUFFER: usize = 4096 + 64;
/// Buffers for receives, and as many for sends.
pub(super) const BUFFERS: usize = 16;
/// Pieces of a request: fewer than any device takes.
pub(super) const PIECES: u32 = 4;
pub(super) const KEY: u32 = 0x1234_5678;
pub(super) const OTHER_KEY: u32 = 0x1234_5679;

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
pub(super) struct Side {
    pub(super) end: End,
    pub(super) region: Arc<Region>,
    pub(super) sends: Arc<CompletionQueue>,
    pub(super) receives: Arc<CompletionQueue>,
    pub(super) pair: QueuePair,
}

impl Side {
    pub(super) fn new(end: &End) -> Self {
        let queue = || CompletionQueue::new(&end.device, 4 * BUFFERS as u32).unwrap();
        Self::with(end, queue(), queue())
    }

    pub(super) fn with(end: &End, sends: Arc<CompletionQueue>, receives: Arc<CompletionQueue>) -> Self {
        let region = Region::new(&end.device, 2 * BUFFERS * BUFFER).unwrap();
        let depths = Depths { send: BUFFERS as u32, receive: BUFFERS as u32, pieces: PIECES };
        let pair = QueuePair::new(&end.device, &sends, &receives, depths, KEY).unwrap();
        Self { end: end.clone(), region, sends, receives, pair }
    }

    /// Returns a handle of another end.
    pub(super) fn address(&self, to: &End, traffic_class: u8) -> Arc<Address> {
        Address::new(&self.end.device, self.end.gid, to.address, traffic_class).unwrap()
    }

    /// Posts the first buffers.
    pub(super) fn post(&self, buffers: usize) {
        let pieces: Vec<_> = (0..buffers).map(|n| self.piece((BUFFERS + n) * BUFFER, BUFFER)).collect();
        let receive = |(n, piece)| Receive { id: n as u64, pieces: std::slice::from_ref(piece) };
        let receives: Vec<_> = pieces.iter().enumerate().map(receive).collect();
        // SAFETY: these bytes are read only after a completion.
        unsafe { self.pair.post_receive(&receives) }.unwrap();
    }

    /// Sends a datagram from each of the first buffers, and waits for the completion of the last.
    pub(super) fn send(&self, to: &Address, number: u32, key: u32, datagrams: &[&[u8]]) {
        let pieces = datagrams.iter().enumerate().map(|(n, bytes)| {
            self.write(n, bytes);
            [self.piece(n * BUFFER, bytes.len())]
        });
        let pieces: Vec<_> = pieces.collect();
        let pieces: Vec<&[Piece<'_>]> = pieces.iter().map(<[_; 1]>::as_slice).collect();
        self.send_pieces(to, (number, key), &pieces);
    }

    /// Sends a datagram of each list of pieces, and waits for the completion of the last.
    pub(super) fn send_pieces(
        &self,
        to: &Address,
        (queue_pair, q_key): (u32, u32),
        datagrams: &[&[Piece<'_>]],
    ) {
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

    pub(super) fn piece(&self, from: usize, len: usize) -> Piece<'_> {
        Piece { region: &self.region, from, len: len as u32 }
    }

    /// Writes bytes to a buffer that the device does not have.
    pub(super) fn write(&self, n: usize, bytes: &[u8]) {
        assert!(bytes.len() <= BUFFER);
        // SAFETY: within the buffer, which the device does not have.
        unsafe { self.buffer(n).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    /// Returns the first bytes of a buffer that the device does not have.
    pub(super) fn read(&self, n: usize, len: usize) -> Vec<u8> {
        assert!(len <= BUFFER);
        // SAFETY: the same.
        unsafe { std::slice::from_raw_parts(self.buffer(n), len) }.to_vec()
    }

    pub(super) fn buffer(&self, n: usize) -> *mut u8 {
        assert!(n < 2 * BUFFERS && self.region.len() >= 2 * BUFFERS * BUFFER);
        // SAFETY: within the region.
        unsafe { self.region.start().add(n * BUFFER) }
    }

    /// Waits for so many datagrams, and returns the completion, the GRH and the payload of each.
    pub(super) fn receive(&self, datagrams: usize) -> Vec<(Completion, Vec<u8>, Vec<u8>)> {
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
    pub(super) fn payloads(&self, datagrams: usize) -> Vec<Vec<u8>> {
        self.receive(datagrams).into_iter().map(|(_, _, bytes)| bytes).collect()
    }

    pub(super) fn has_received(&self) -> bool {
        self.receives.poll(&mut [Completion::default()]).unwrap() > 0
    }
}

/// Waits for so many completions, and takes no more.
pub(super) fn take(queue: &CompletionQueue, count: usize) -> Vec<Completion> {
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

pub(super) fn sides(a: &End, b: &End) -> (Side, Side, Arc<Address>) {
    let (a, b) = (Side::new(a), Side::new(b));
    let to = a.address(&b.end, 0);
    (a, b, to)
}
