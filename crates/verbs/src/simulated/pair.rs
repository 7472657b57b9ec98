//! A queue pair of the fabric: what is posted, and what waits to be set free.
//!
//! ```text
//!  post ─▶ posted ─ the device takes the oldest ─▶ done ─▶ completion (a send: only if it is to be told)
//!   └ full: refused                                                └ taken by the owner: places are free again
//! ```

use super::memory::Memory;
use crate::Status;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Weak;

/// Bytes of a region, as a request names them: one of its pieces.
#[derive(Clone, Debug)]
pub struct Bytes {
    /// The region. It may be gone when the device comes to the request.
    pub memory: Weak<Memory>,
    /// First byte.
    pub from: usize,
    /// Bytes.
    pub len: u32,
}

/// A datagram to send.
#[derive(Clone, Debug)]
pub struct SendRequest {
    /// Returned in its completion.
    pub id: u64,
    /// Its payload.
    pub pieces: Vec<Bytes>,
    /// Whether its completion is told.
    pub is_signalled: bool,
    /// Address that it leaves from.
    pub from: IpAddr,
    /// Address of the receiving host.
    pub to: IpAddr,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// The receiving queue pair.
    pub queue_pair: u32,
    /// Its key.
    pub q_key: u32,
}

/// A buffer for a datagram.
#[derive(Clone, Debug)]
pub struct ReceiveRequest {
    /// Returned in its completion.
    pub id: u64,
    /// Where the GRH and the payload go.
    pub pieces: Vec<Bytes>,
}

/// Requests of one direction: those that the device has, and places of those that are not yet told.
#[derive(Debug)]
pub struct Requests<R> {
    depth: u32,
    /// Places in use: posted, done, or told and not yet taken.
    used: u32,
    posted: VecDeque<R>,
}

impl<R> Requests<R> {
    fn new(depth: u32) -> Self {
        Self { depth, used: 0, posted: VecDeque::new() }
    }

    /// Adds a request. Returns whether it had a place.
    #[must_use]
    pub fn post(&mut self, request: R) -> bool {
        let has_place = self.used < self.depth;
        if has_place {
            self.used += 1;
            self.posted.push_back(request);
        }
        has_place
    }

    /// Takes the oldest request; its place stays in use.
    pub fn next(&mut self) -> Option<R> {
        self.posted.pop_front()
    }

    /// Sets places free.
    pub fn release(&mut self, places: u32) {
        self.used = self.used.saturating_sub(places);
    }

    /// Whether the device has a request.
    pub fn are_posted(&self) -> bool {
        !self.posted.is_empty()
    }

    /// Returns how many requests the device has.
    pub fn posted(&self) -> usize {
        self.posted.len()
    }
}

/// A queue pair.
#[derive(Debug)]
pub struct Pair {
    /// Its key.
    pub q_key: u32,
    /// The queue of its sends' completions.
    pub send_queue: u64,
    /// The queue of its receives' completions.
    pub receive_queue: u64,
    /// Its sends.
    pub sends: Requests<SendRequest>,
    /// Its receives.
    pub receives: Requests<ReceiveRequest>,
    /// Sends that are done and were not to be told, since the last that was.
    pub untold: u32,
    /// Whether it is in the error state.
    pub has_failed: bool,
    /// What the next sends fail with.
    pub failures: VecDeque<Status>,
}

impl Pair {
    /// Returns a queue pair that is ready.
    pub fn new(queues: [u64; 2], depths: [u32; 2], q_key: u32) -> Self {
        let [send_queue, receive_queue] = queues;
        let [sends, receives] = depths;
        let (sends, receives) = (Requests::new(sends), Requests::new(receives));
        let failures = VecDeque::new();
        Self { q_key, send_queue, receive_queue, sends, receives, untold: 0, has_failed: false, failures }
    }
}

/// Returns the bytes of all pieces in their order; none if a region is gone.
///
/// # Safety
/// As for [`Memory::read`].
pub unsafe fn gather(pieces: &[Bytes]) -> Option<Vec<u8>> {
    let mut all = vec![];
    for piece in pieces {
        // SAFETY: the caller's promise.
        all.extend(unsafe { piece.memory.upgrade()?.read(piece.from, piece.len as usize) }?);
    }
    Some(all)
}

/// Writes bytes to the pieces in their order, as many as these have room for. Returns false if a region is gone: also one
/// that no byte would have come to.
///
/// # Safety
/// As for [`Memory::write`].
pub unsafe fn scatter(pieces: &[Bytes], mut bytes: &[u8]) -> bool {
    let memories: Option<Vec<_>> = pieces.iter().map(|piece| piece.memory.upgrade()).collect();
    let Some(memories) = memories else { return false };
    pieces.iter().zip(memories).all(|(piece, memory)| {
        let (own, rest) = bytes.split_at(bytes.len().min(piece.len as usize));
        bytes = rest;
        // SAFETY: the caller's promise.
        unsafe { memory.write(piece.from, own) }
    })
}
