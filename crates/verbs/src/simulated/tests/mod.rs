//! The fabric behaves as hardware does, and as a test has it.

mod faults;
mod model;
mod orders;
mod pieces;
mod queues;

use crate::conformance::{self, End};
use crate::simulated::{self, Fabric};
use crate::{
    Address, Completion, CompletionQueue, Depths, Device, Error, Piece, QueuePair, Receive, Region, Send,
    Status,
};
use std::net::IpAddr;
use std::sync::Arc;

const KEY: u32 = 77;
/// Bytes of a buffer of a [`Side`].
const BUFFER: u32 = 256;
/// Buffers for sends, and as many for receives.
const BUFFERS: usize = 8;

/// A device with a queue pair, and memory: buffers for sends, then buffers for receives.
struct Side {
    orders: simulated::Device,
    device: Arc<Device>,
    address: IpAddr,
    region: Arc<Region>,
    sends: Arc<CompletionQueue>,
    receives: Arc<CompletionQueue>,
    pair: QueuePair,
}

impl Side {
    fn new(fabric: &Fabric, address: &str) -> Self {
        Self::with(fabric, address, [64, 64])
    }

    /// The same, with so many entries of the two completion queues.
    fn with(fabric: &Fabric, address: &str, entries: [u32; 2]) -> Self {
        let address = address.parse().unwrap();
        let orders = simulated::Device::new(fabric, "rxe0", &[address]);
        let device = Device::simulated(&orders);
        let region = Region::new(&device, 2 * BUFFERS * BUFFER as usize).unwrap();
        let [sends, receives] = entries.map(|entries| CompletionQueue::new(&device, entries).unwrap());
        let pair = QueuePair::new(&device, &sends, &receives, DEPTHS, KEY).unwrap();
        Self { orders, device, address, region, sends, receives, pair }
    }

    fn to(&self, other: &Self) -> Arc<Address> {
        Address::new(&self.device, 1, other.address, 0).unwrap()
    }

    /// Posts a send of the bytes.
    fn post_send(&self, to: &Side, n: usize, bytes: &[u8], is_signalled: bool) -> Result<(), (usize, Error)> {
        self.post_by(&self.to(to), to.pair.number(), (n, bytes), is_signalled)
    }

    /// The same, by a handle of the other host.
    fn post_by(
        &self,
        to: &Address,
        queue_pair: u32,
        (n, bytes): (usize, &[u8]),
        is_signalled: bool,
    ) -> Result<(), (usize, Error)> {
        let from = n * BUFFER as usize;
        assert!(n < BUFFERS && bytes.len() <= BUFFER as usize);
        // SAFETY: within the region; the test writes to no buffer that a device has.
        unsafe { self.region.start().add(from).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        let len = bytes.len() as u32;
        let pieces = &[Piece { region: &self.region, from, len }];
        let send = Send { id: n as u64, pieces, is_signalled, to, queue_pair, q_key: KEY };
        // SAFETY: the same.
        unsafe { self.pair.post_send(&[send]) }
    }

    /// Posts a receive with one of its buffers.
    fn post_receive(&self, n: usize) -> Result<(), (usize, Error)> {
        let from = (BUFFERS + n) * BUFFER as usize;
        let pieces = &[Piece { region: &self.region, from, len: BUFFER }];
        let receive = Receive { id: n as u64, pieces };
        // SAFETY: the test reads a buffer only after its completion.
        unsafe { self.pair.post_receive(&[receive]) }
    }

    /// Posts a told send, and takes its completion.
    fn send(&self, to: &Side, bytes: &[u8]) {
        self.post_send(to, 0, bytes, true).unwrap();
        assert_eq!(done(&self.sends), [(0, Status::Success)]);
    }

    /// Takes what came, and returns the payloads.
    fn payloads(&self) -> Vec<Vec<u8>> {
        let read = |completion: Completion| {
            assert_eq!(completion.status, Status::Success);
            let from = (BUFFERS + completion.id as usize) * BUFFER as usize;
            // SAFETY: the completion gave the buffer back.
            let all = unsafe {
                std::slice::from_raw_parts(self.region.start().add(from), completion.bytes as usize)
            };
            all[crate::GRH..].to_vec()
        };
        taken(&self.receives).into_iter().map(read).collect()
    }
}

const DEPTHS: Depths = Depths { send: 4, receive: 4, pieces: 3 };

/// Returns two sides of a fabric, the second with buffers posted.
fn sides() -> (Fabric, Side, Side) {
    let fabric = Fabric::new();
    let (a, b) = (Side::new(&fabric, "192.0.2.1"), Side::new(&fabric, "192.0.2.2"));
    (0..4).for_each(|n| b.post_receive(n).unwrap());
    (fabric, a, b)
}

/// Takes all completions of a queue.
fn taken(queue: &CompletionQueue) -> Vec<Completion> {
    let mut all = [Completion::default(); 64];
    let count = queue.poll(&mut all).unwrap();
    all[..count].to_vec()
}

/// Takes all completions, and returns the number and the status of each.
fn done(queue: &CompletionQueue) -> Vec<(u64, Status)> {
    taken(queue).iter().map(|completion| (completion.id, completion.status)).collect()
}

/// Returns the error number that a call answered.
fn number<T: std::fmt::Debug>(result: Result<T, Error>) -> i32 {
    match result.unwrap_err() {
        Error::Call { error, .. } => error.raw_os_error().unwrap(),
        other => panic!("{other}"),
    }
}

#[test]
fn simulated_devices_do_as_every_device_has_to() {
    let end = |fabric: &Fabric, name, address: &str| {
        let address: IpAddr = address.parse().unwrap();
        End::new(&Device::simulated(&simulated::Device::new(fabric, name, &[address])), address)
    };
    for [a, b] in [["192.0.2.1", "192.0.2.2"], ["fd00::1", "fd00::2"]] {
        let fabric = Fabric::new();
        conformance::check_all(&end(&fabric, "rxe0", a), &end(&fabric, "rxe1", b));
    }
    let both = ["192.0.2.1", "192.0.2.2"].map(|address| address.parse().unwrap());
    let device = Device::simulated(&simulated::Device::new(&Fabric::new(), "rxe0", &both));
    let [a, b] = both.map(|address| End::new(&device, address));
    conformance::check_all(&a, &b);
}

#[test]
fn a_conformance_check_can_fail() {
    let both = ["192.0.2.1", "192.0.2.2"].map(|address| address.parse().unwrap());
    let device = Device::simulated(&simulated::Device::new(&Fabric::new(), "rxe0", &both));
    let [a, b] = both.map(|address| End::new(&device, address));
    let wrong = End { address: b.address, ..a };
    let (_, check) = conformance::CHECKS[1];
    assert!(std::panic::catch_unwind(|| check(&wrong, &b)).is_err(), "another source than the end's");
}
