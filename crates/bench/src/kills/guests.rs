//! Two guests that send numbered frames to each other as fast as their rings take them.

use super::MACS;
use crate::clock;
use crate::frames::{Size, UDP_HEADERS, VNET_HDR};
use crate::host::Host;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tidegate_contract::Mac;
use tidegate_frontend::front_end::{FrontEnd, FrontEndError, Options, RING_PACKED};

/// Offset of a frame's number.
const NUMBER: usize = VNET_HDR + UDP_HEADERS;

/// Frames that passed each of the four rings: sent and received by `a`, by `b`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Frames completed or received.
    pub each: [u64; 4],
    /// Rounds over all rings.
    rounds: u64,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct End {
    /// Frames that the switch gave back.
    pub sent: u64,
    /// Distinct frames that arrived.
    pub received: u64,
    pub duplicated: u64,
    pub reordered: u64,
    /// Buffers that the switch has taken and not given back.
    pub leaked: u64,
}

#[derive(Default)]
struct Board {
    counts: RwLock<Counts>,
    /// Longest time between two rounds in which both guests received (ns), since the last call of
    /// [`Guests::longest_silence`].
    silence: AtomicU64,
}

enum Order {
    Reconnect(Sender<Result<u32, FrontEndError>>),
    Finish(Duration, Sender<Result<End, FrontEndError>>),
}

/// Both guests, on their own thread.
pub struct Guests {
    board: Arc<Board>,
    orders: Sender<Order>,
    thread: Option<JoinHandle<()>>,
}

impl Guests {
    /// Connects both guests and starts to send.
    ///
    /// # Errors
    /// The switch refuses them.
    pub fn connect(host: &Host, ring: u16, frame: usize, packed: bool) -> Result<Self, FrontEndError> {
        let guest = |me: usize| {
            let defaults = Options::default();
            let layout = if packed { RING_PACKED } else { 0 };
            let options = Options { queue_size: ring, features: defaults.features | layout, ..defaults };
            let front = FrontEnd::connect(host.socket(["a", "b"][me]), options)?;
            let (to, from) = (Mac(MACS[1 - me]), Mac(MACS[me]));
            let template = Size::Frame(frame).build(to, from, 0);
            Ok::<_, FrontEndError>(Guest::new(front, template))
        };
        let guests = [guest(0)?, guest(1)?];
        let board = Arc::new(Board::default());
        let (orders, received) = channel();
        let thread_board = board.clone();
        let thread = std::thread::Builder::new().name("guests".into());
        let thread =
            thread.spawn(move || work(guests, &thread_board, &received)).map_err(FrontEndError::Io)?;
        Ok(Self { board, orders, thread: Some(thread) })
    }

    pub fn counts(&self) -> Counts {
        *self.board.counts.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the frames that moved so far, after the guests took everything that an earlier switch left
    /// in the rings.
    pub fn settled(&self) -> Counts {
        let rounds = self.counts().rounds;
        loop {
            let now = self.counts();
            if now.rounds >= rounds + 2 {
                return now;
            }
            std::thread::yield_now();
        }
    }

    /// Returns when `done` became true for the counts; `None` if it did not within `time`.
    pub fn wait_for(&self, done: impl Fn(&Counts) -> bool, time: Duration) -> Option<Instant> {
        let end = Instant::now() + time;
        loop {
            let now = Instant::now();
            if done(&self.counts()) {
                return Some(now);
            }
            if now > end {
                return None;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Returns the frames per second that both guests received, over `time`.
    pub fn rate(&self, time: Duration) -> f64 {
        let received = |counts: Counts| counts.each[1] + counts.each[3];
        let (before, began) = (received(self.counts()), Instant::now());
        std::thread::sleep(time);
        (received(self.counts()) - before) as f64 / began.elapsed().as_secs_f64()
    }

    /// Returns the longest time in which not both guests received a frame, since the last call (ns).
    pub fn longest_silence(&self) -> u64 {
        self.board.silence.swap(0, Ordering::Relaxed)
    }

    /// Reconnects both guests. Returns the number of connections made.
    ///
    /// # Errors
    /// The switch refuses them.
    pub fn reconnect(&self) -> Result<u32, FrontEndError> {
        self.ask(Order::Reconnect)
    }

    /// Stops sending, waits until no more frames arrive, and counts.
    ///
    /// # Errors
    /// The switch has ended.
    pub fn finish(self, patience: Duration) -> Result<End, FrontEndError> {
        self.ask(|reply| Order::Finish(patience, reply))
    }

    fn ask<T>(
        &self,
        order: impl FnOnce(Sender<Result<T, FrontEndError>>) -> Order,
    ) -> Result<T, FrontEndError> {
        let (reply, answer) = channel();
        let gone = |_| FrontEndError::Io(io::Error::other("the guests' thread ended"));
        self.orders.send(order(reply)).map_err(|_| FrontEndError::NotConnected)?;
        answer.recv().map_err(gone)?
    }
}

impl Drop for Guests {
    fn drop(&mut self) {
        let (orders, _) = channel();
        self.orders = orders;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Guest {
    front: FrontEnd,
    template: Vec<u8>,
    next: u64,
    numbers: Numbers,
}

impl Guest {
    fn new(front: FrontEnd, template: Vec<u8>) -> Self {
        Self { front, template, next: 0, numbers: Numbers::default() }
    }

    fn send(&mut self) {
        loop {
            self.template[NUMBER..NUMBER + 8].copy_from_slice(&self.next.to_le_bytes());
            if !self.front.push(0, &self.template) {
                break;
            }
            self.next += 1;
        }
        self.front.flush(0);
    }

    /// Takes all received frames. Returns whether there was one.
    fn receive(&mut self, frame: &mut Vec<u8>) -> bool {
        let mut any = false;
        while self.front.receive_into(0, frame) {
            // The switch's own announcements have no number.
            let Some(Ok(number)) = frame.get(NUMBER..NUMBER + 8).map(<[u8; 8]>::try_from) else { continue };
            if frame.len() != self.template.len() {
                continue;
            }
            any = true;
            self.numbers.note(u64::from_le_bytes(number));
        }
        any
    }

    fn sent(&mut self) -> u64 {
        self.next - self.front.in_flight(0) as u64
    }
}

#[derive(Default)]
struct Numbers {
    received: u64,
    duplicated: u64,
    reordered: u64,
    highest: u64,
    /// One bit per number.
    seen: Vec<u64>,
}

impl Numbers {
    fn note(&mut self, number: u64) {
        let (word, bit) = ((number / 64) as usize, 1 << (number % 64));
        if self.seen.len() <= word {
            self.seen.resize(word + 1024, 0);
        }
        if self.seen[word] & bit != 0 {
            self.duplicated += 1;
            return;
        }
        self.seen[word] |= bit;
        self.received += 1;
        self.reordered += u64::from(number < self.highest);
        self.highest = self.highest.max(number);
    }
}

fn work(mut guests: [Guest; 2], board: &Board, orders: &Receiver<Order>) {
    let mut frame = Vec::new();
    let (mut rounds, mut heard) = (0, clock::now());
    loop {
        let mut all = true;
        for guest in &mut guests {
            guest.send();
            all &= guest.receive(&mut frame);
        }
        let now = clock::now();
        board.silence.fetch_max(now - heard, Ordering::Relaxed);
        if all {
            heard = now;
        }
        rounds += 1;
        let [a, b] = &mut guests;
        let each = [a.sent(), a.numbers.received, b.sent(), b.numbers.received];
        *board.counts.write().unwrap_or_else(PoisonError::into_inner) = Counts { each, rounds };
        if !all {
            // Leaves the CPU to the worker, on a host with few CPUs.
            std::thread::yield_now();
        }
        match orders.try_recv() {
            Ok(Order::Reconnect(reply)) => {
                let connected = guests.iter_mut().try_for_each(|guest| guest.front.reconnect());
                let _ = reply.send(connected.map(|()| 2));
            }
            Ok(Order::Finish(patience, reply)) => {
                let _ = reply.send(finish(&mut guests, patience));
                return;
            }
            Err(std::sync::mpsc::TryRecvError::Empty) => {}
            Err(std::sync::mpsc::TryRecvError::Disconnected) => return,
        }
    }
}

fn finish(guests: &mut [Guest; 2], patience: Duration) -> Result<End, FrontEndError> {
    let mut frame = Vec::new();
    let (end, mut last) = (Instant::now() + patience, Instant::now());
    // Until the switch has given all frames back, and none has arrived for a while.
    while Instant::now() < end {
        let busy = guests.iter_mut().any(|guest| guest.front.in_flight(0) > 0);
        if guests.iter_mut().fold(false, |any, guest| guest.receive(&mut frame) | any) || busy {
            last = Instant::now();
        } else if last.elapsed() > Duration::from_millis(200) {
            break;
        }
    }
    let mut sum = End::default();
    let mut sent = [0; 2];
    for (guest, sent) in guests.iter_mut().zip(&mut sent) {
        *sent = guest.next;
        sum.received += guest.numbers.received;
        sum.duplicated += guest.numbers.duplicated;
        sum.reordered += guest.numbers.reordered;
        sum.leaked += guest.front.in_flight(0) as u64;
        for queue in 0..2 {
            // Checks that the connection still answers, and that the switch gave back every buffer that it
            // took.
            let taken = guest.front.stop_queue(queue)?;
            let base = guest.front.ring(queue).base();
            sum.leaked += u64::from(taken != base);
        }
    }
    sum.sent = sent.iter().sum();
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_counted_once_and_in_order() {
        let mut numbers = Numbers::default();
        [0, 1, 5, 3, 5, 100_000, 0].into_iter().for_each(|n| numbers.note(n));
        assert_eq!((numbers.received, numbers.duplicated, numbers.reordered), (5, 2, 1));
    }
}
