//! The state of a fabric: devices, queue pairs, completion queues, datagrams that wait. No thread, no clock.
//!
//! ```text
//!  post_send ─▶ Pair.sends ─ run: queue pairs by turns ─▶ transmit ─┬▶ lost, held
//!                                      │                            └▶ deliver ─▶ buffer ─▶ Queue of receives
//!                                      └▶ Queue of sends
//! ```
//!
//! A send is read from memory when the device comes to it: at once, or when a paused device is told to go on.

use super::datagram::Datagram;
use super::fate::{Fate, Fates};
use super::pair::{Pair, ReceiveRequest, SendRequest, gather, scatter};
use super::queue::{Queue, Told, unsuccessful};
use crate::{BATCH, Completion, ELEMENTS, Link, PIECES, Status};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::ops::Bound;

/// Number of the first queue pair of each device: two devices have the same numbers.
const FIRST_QUEUE_PAIR: u32 = 17;
/// Numbers of queue pairs are below this.
const QUEUE_PAIRS: u32 = 1 << 24;
/// The bytes are longer than the buffer (ibv_wc_status, IBV_WC_LOC_LEN_ERR).
const LOCAL_LENGTH: Status = Status::Failed(1);
/// The region is gone (IBV_WC_LOC_PROT_ERR).
const LOCAL_PROTECTION: Status = Status::Failed(4);

/// A device and its port.
#[derive(Debug)]
pub struct Machine {
    /// Most bytes of a datagram.
    pub mtu: u32,
    /// Most pieces of a request.
    pub pieces: u32,
    /// Whether its port carries datagrams.
    pub is_active: bool,
    /// What its link is.
    pub link: Link,
    /// Its addresses: each has a GID of RoCE v1 and one of v2.
    pub addresses: Vec<IpAddr>,
    /// Whether it was taken out.
    pub is_gone: bool,
    /// Whether it leaves sends where they are.
    pub is_paused: bool,
    /// Its queue pairs.
    pub pairs: BTreeMap<u32, Pair>,
    /// The number of the next queue pair.
    pub next_pair: u32,
    /// The queue pair whose send it came to last.
    pub last_served: u32,
    /// The next call of this name fails with this error number.
    pub refusals: VecDeque<(&'static str, i32)>,
    /// Registrations of others' memory do not end.
    pub pins_slowly: bool,
    /// Bytes of others' memory that are registered.
    pub foreign: usize,
    /// What it did.
    pub counters: Counters,
    /// What became of datagrams that arrived.
    pub fates: Fates,
}

/// What a device did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Writes to the device by calls that posted sends: one for each [`BATCH`].
    pub doorbells: u64,
    /// The same of receives.
    pub receive_doorbells: u64,
    /// Datagrams sent, with those that were lost afterwards.
    pub datagrams: u64,
    /// Their payload (bytes).
    pub bytes: u64,
}

/// What is done to one datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// It vanishes.
    Lose,
    /// It waits until it is released, while later ones pass.
    Hold,
}

/// The state of a fabric.
#[derive(Debug, Default)]
pub struct Network {
    /// Devices, in the order in which they were made.
    pub machines: Vec<Machine>,
    /// Completion queues.
    pub queues: BTreeMap<u64, Queue>,
    next_queue: u64,
    /// Datagrams sent so far, by all devices.
    pub sent: u64,
    /// What is done to the datagram with this number.
    pub orders: BTreeMap<u64, Order>,
    /// Whether all datagrams wait.
    pub holds_all: bool,
    /// Those that wait.
    pub held: VecDeque<Datagram>,
    /// What became of all datagrams.
    pub fates: Fates,
}

impl Machine {
    /// Returns an active device.
    pub fn new(addresses: Vec<IpAddr>) -> Self {
        Self {
            mtu: 4096,
            pieces: PIECES,
            is_active: true,
            link: Link::Ethernet,
            addresses,
            is_gone: false,
            is_paused: false,
            pairs: BTreeMap::new(),
            next_pair: FIRST_QUEUE_PAIR,
            last_served: 0,
            refusals: VecDeque::new(),
            pins_slowly: false,
            foreign: 0,
            counters: Counters::default(),
            fates: Fates::default(),
        }
    }

    /// Returns the number of the queue pair that is served next: they take turns.
    fn next_served(&self) -> Option<u32> {
        let has_work = |(&number, pair): (&u32, &Pair)| pair.sends.are_posted().then_some(number);
        let after = (Bound::Excluded(self.last_served), Bound::Unbounded);
        self.pairs.range(after).find_map(has_work).or_else(|| self.pairs.iter().find_map(has_work))
    }
}

impl Network {
    /// Adds a completion queue and returns its number.
    pub fn add_queue(&mut self, queue: Queue) -> u64 {
        self.next_queue += 1;
        self.queues.insert(self.next_queue, queue);
        self.next_queue
    }

    /// Adds a queue pair and returns its number: numbers are used again as late as possible.
    pub fn add_pair(&mut self, device: usize, pair: Pair) -> u32 {
        let machine = &mut self.machines[device];
        loop {
            let number = machine.next_pair;
            machine.next_pair = if number + 1 == QUEUE_PAIRS { FIRST_QUEUE_PAIR } else { number + 1 };
            if let Entry::Vacant(place) = machine.pairs.entry(number) {
                place.insert(pair);
                return number;
            }
        }
    }

    /// Posts sends, by one write to the device.
    ///
    /// # Errors
    /// How many were posted, and why no more were.
    pub fn post_send(
        &mut self,
        device: usize,
        number: u32,
        requests: Vec<SendRequest>,
    ) -> Result<(), (usize, io::Error)> {
        self.check_present(device).map_err(|error| (0, error))?;
        let machine = &mut self.machines[device];
        let pair = machine.pairs.get_mut(&number).ok_or((0, error(libc::EINVAL)))?;
        let pieces: Vec<usize> = requests.iter().map(|request| request.pieces.len()).collect();
        let (taken, result) = post_all(requests, |request| pair.sends.post(request));
        let has_failed = pair.has_failed;
        machine.counters.doorbells += writes(&pieces[..taken]);
        if has_failed {
            self.flush(device, number);
        } else if !self.machines[device].is_paused {
            self.run(device, usize::MAX);
        }
        result
    }

    /// Posts receives, by one write to the device.
    ///
    /// # Errors
    /// How many were posted, and why no more were.
    pub fn post_receive(
        &mut self,
        device: usize,
        number: u32,
        requests: Vec<ReceiveRequest>,
    ) -> Result<(), (usize, io::Error)> {
        self.check_present(device).map_err(|error| (0, error))?;
        let machine = &mut self.machines[device];
        let pair = machine.pairs.get_mut(&number).ok_or((0, error(libc::EINVAL)))?;
        let pieces: Vec<usize> = requests.iter().map(|request| request.pieces.len()).collect();
        let (taken, result) = post_all(requests, |request| pair.receives.post(request));
        let has_failed = pair.has_failed;
        machine.counters.receive_doorbells += writes(&pieces[..taken]);
        if has_failed {
            self.flush(device, number);
        }
        result
    }

    /// Sends at most so many posted datagrams, and returns how many were come to.
    pub fn run(&mut self, device: usize, most: usize) -> usize {
        for done in 0..most {
            let machine = &mut self.machines[device];
            let Some(number) = machine.next_served() else { return done };
            machine.last_served = number;
            self.send(device, number);
        }
        most
    }

    /// Takes the oldest send of a queue pair, and completes it.
    fn send(&mut self, device: usize, number: u32) {
        let machine = &mut self.machines[device];
        let Some(pair) = machine.pairs.get_mut(&number) else { return };
        let Some(request) = pair.sends.next() else { return };
        let queue = pair.send_queue;
        let failure = pair.failures.pop_front();
        // SAFETY: the caller of `post_send` gave the bytes to the device until this request's completion.
        let bytes = match (failure, unsafe { gather(&request.pieces) }) {
            (None, Some(bytes)) => bytes,
            (failure, _) => {
                let status = failure.unwrap_or(LOCAL_PROTECTION);
                let covers = 1 + std::mem::take(&mut pair.untold);
                let completion = unsuccessful(request.id, status, number);
                self.complete(queue, Told { completion, is_receive: false, covers });
                return self.fail(device, number);
            }
        };
        pair.untold += 1;
        let covers = if request.is_signalled { std::mem::take(&mut pair.untold) } else { 0 };
        machine.counters.datagrams += 1;
        machine.counters.bytes += bytes.len() as u64;
        let (is_active, mtu) = (machine.is_active, machine.mtu);
        // What does not fit is not sent, and is no error (InfiniBand Architecture, C10-93.1.1).
        if bytes.len() > mtu as usize {
            self.fates.count(Fate::TooLong);
        } else if !is_active {
            self.fates.count(Fate::Down);
        } else {
            let SendRequest { from, to, traffic_class, queue_pair, q_key, .. } = request;
            self.transmit(Datagram { from, source: number, to, queue_pair, q_key, traffic_class, bytes });
        }
        if covers > 0 {
            let completion = Completion { id: request.id, queue_pair: number, ..Completion::default() };
            self.complete(queue, Told { completion, is_receive: false, covers });
        }
    }

    /// Brings a datagram into the fabric: it arrives, waits or vanishes. Returns what became of it.
    pub fn transmit(&mut self, datagram: Datagram) -> Fate {
        let order = self.orders.remove(&self.sent);
        self.sent += 1;
        match order {
            Some(Order::Lose) => {
                self.fates.count(Fate::Lost);
                Fate::Lost
            }
            Some(Order::Hold) => self.hold(datagram),
            None if self.holds_all => self.hold(datagram),
            None => self.arrive(datagram),
        }
    }

    fn hold(&mut self, datagram: Datagram) -> Fate {
        self.held.push_back(datagram);
        self.fates.count(Fate::Held);
        Fate::Held
    }

    /// Brings a datagram to its device, and returns what became of it.
    pub fn arrive(&mut self, datagram: Datagram) -> Fate {
        let has = |machine: &Machine| !machine.is_gone && machine.addresses.contains(&datagram.to);
        let fate = match self.machines.iter().position(has) {
            None => Fate::NoDevice,
            Some(device) => {
                let fate = self.receive(device, &datagram);
                self.machines[device].fates.count(fate);
                fate
            }
        };
        self.fates.count(fate);
        fate
    }

    /// Writes a datagram to the oldest buffer of its queue pair.
    fn receive(&mut self, device: usize, datagram: &Datagram) -> Fate {
        let machine = &mut self.machines[device];
        if !machine.is_active {
            return Fate::Down;
        }
        let number = datagram.queue_pair;
        let Some(pair) = machine.pairs.get_mut(&number) else { return Fate::UnknownQueuePair };
        if pair.has_failed {
            return Fate::Failed;
        }
        if datagram.q_key != pair.q_key {
            return Fate::WrongKey;
        }
        let Some(request) = pair.receives.next() else { return Fate::NoBuffer };
        let queue = pair.receive_queue;
        let bytes = [&datagram.grh(), &datagram.bytes[..]].concat();
        let room: usize = request.pieces.iter().map(|piece| piece.len as usize).sum();
        let status = if bytes.len() > room {
            LOCAL_LENGTH
        // SAFETY: the caller of `post_receive` gave the buffer to the device until this request's completion.
        } else if unsafe { scatter(&request.pieces, &bytes) } {
            Status::Success
        } else {
            LOCAL_PROTECTION
        };
        if status != Status::Success {
            let completion = unsuccessful(request.id, status, number);
            self.complete(queue, Told { completion, is_receive: true, covers: 1 });
            self.fail(device, number);
            return Fate::BadBuffer;
        }
        let completion = Completion {
            id: request.id,
            status,
            is_receive: true,
            bytes: bytes.len() as u32,
            queue_pair: number,
            source: datagram.source,
        };
        self.complete(queue, Told { completion, is_receive: true, covers: 1 });
        Fate::Delivered
    }

    /// Brings a queue pair into the error state: what is posted is flushed.
    pub fn fail(&mut self, device: usize, number: u32) {
        if let Some(pair) = self.machines[device].pairs.get_mut(&number) {
            pair.has_failed = true;
            self.flush(device, number);
        }
    }

    /// Completes all that is posted as flushed: also sends that were not to be told.
    fn flush(&mut self, device: usize, number: u32) {
        loop {
            let Some(pair) = self.machines[device].pairs.get_mut(&number) else { return };
            let (queue, id, is_receive, covers) = if let Some(request) = pair.sends.next() {
                (pair.send_queue, request.id, false, 1 + std::mem::take(&mut pair.untold))
            } else if let Some(request) = pair.receives.next() {
                (pair.receive_queue, request.id, true, 1)
            } else {
                return;
            };
            let completion = unsuccessful(id, Status::Flushed, number);
            self.complete(queue, Told { completion, is_receive, covers });
        }
    }

    /// Adds a completion. A queue that is full breaks, and all its queue pairs fail.
    fn complete(&mut self, queue: u64, told: Told) {
        let has_place = self.queues.get_mut(&queue).is_none_or(|queue| queue.push(told));
        if has_place {
            return;
        }
        for device in 0..self.machines.len() {
            let uses =
                |pair: &Pair| !pair.has_failed && [pair.send_queue, pair.receive_queue].contains(&queue);
            let pairs = self.machines[device].pairs.iter();
            let broken: Vec<u32> = pairs.filter(|(_, pair)| uses(pair)).map(|(&number, _)| number).collect();
            broken.into_iter().for_each(|number| self.fail(device, number));
        }
    }

    /// Takes completions of a queue, and sets the places of their requests free.
    ///
    /// # Errors
    /// The queue broke, or its device is gone.
    pub fn poll(&mut self, device: usize, queue: u64, to: &mut [Completion]) -> io::Result<usize> {
        self.check_present(device)?;
        let queue = self.queues.get_mut(&queue).ok_or(error(libc::EINVAL))?;
        let most = to.len();
        let mut taken = 0;
        for (place, told) in to.iter_mut().zip(queue.take(most)?) {
            *place = told.completion;
            taken += 1;
            let Some(pair) = self.machines[device].pairs.get_mut(&place.queue_pair) else { continue };
            match told.is_receive {
                true => pair.receives.release(told.covers),
                false => pair.sends.release(told.covers),
            }
        }
        Ok(taken)
    }

    /// Checks that a device was not taken out.
    ///
    /// # Errors
    /// It was.
    pub fn check_present(&self, device: usize) -> io::Result<()> {
        if self.machines[device].is_gone { Err(error(libc::EIO)) } else { Ok(()) }
    }

    /// Fails if the device is gone, or was told to refuse the next call of this name.
    ///
    /// # Errors
    /// The device's.
    pub fn check_call(&mut self, device: usize, call: &'static str) -> io::Result<()> {
        self.check_present(device)?;
        let refusals = &mut self.machines[device].refusals;
        match refusals.iter().position(|(name, _)| *name == call).and_then(|at| refusals.remove(at)) {
            Some((_, number)) => Err(error(number)),
            None => Ok(()),
        }
    }
}

/// Returns how many writes to the device take requests with so many pieces each.
fn writes(pieces: &[usize]) -> u64 {
    let (mut writes, mut requests, mut elements) = (0, 0, 0);
    for pieces in pieces {
        if requests == 0 || requests == BATCH || elements + pieces > ELEMENTS {
            (writes, requests, elements) = (writes + 1, 0, 0);
        }
        (requests, elements) = (requests + 1, elements + pieces);
    }
    writes
}

/// Returns an error of the kernel.
pub fn error(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}

/// Posts requests until one finds no room; returns how many were posted, and that number with the reason if it is not all.
fn post_all<R>(requests: Vec<R>, mut post: impl FnMut(R) -> bool) -> (usize, Result<(), (usize, io::Error)>) {
    let count = requests.len();
    let taken = requests.into_iter().map(&mut post).take_while(|posted| *posted).count();
    (taken, if taken == count { Ok(()) } else { Err((taken, error(libc::ENOMEM))) })
}
