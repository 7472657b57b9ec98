//! Divides a worker's time among its ports by weight, as an egress divides bytes. Pure.
//!
//! ```text
//!              ┌ time left ─▶ a turn, of so many frames ─▶ charged the time that it took ─┐
//!  port, due? ─┤                                                                          │
//!              └ none left ─▶ waits for the next round                                    │
//!                                   ▲                                                     │
//!                                   └─ a loop in which no port with time left took frames ◀┘
//! ```
//!
//! Deficit round robin (Shreedhar, Varghese, SIGCOMM 1995) over measured nanoseconds, not bytes: bytes say
//! little of a frame's cost. A frame in descriptors of one byte costs 20 times as much, a frame to 200
//! receivers 200 times.
//!
//! - In a round each port may use its **quantum**, which is proportional to its weight. A turn ends when
//!   its frames are sent, not when the quantum is used up; the following rounds are shorter by the excess.
//! - A round ends when no port with time left takes frames. So ports share unused time, and a worker never
//!   idles while frames wait.
//! - Idling saves up one quantum at most.
//! - These times are for the default host latency, and longer with a longer one: where a frame takes longer than a
//!   slice, as on an emulated CPU, each loop would have one.
//! - A turn should take [`SLICE`]: a longer one halves the frames of the port's next turn. No best-effort
//!   port's turn begins later in a loop than [`LOOP`]: the first port after that begins the next loop. So a
//!   loop is short, whatever ports send.
//! - Real-time ports without time left go first for [half](REALTIME) of the worker's time. Beyond that they
//!   wait for their turns.
//!
//! While two ports have frames, their times, each divided by its port's weight, differ by at most the
//! quantum of both and their longest turns divided by their weights.

#[cfg(test)]
mod tests;

use crate::capacity::{VNICS, WORKERS};
use crate::fdb::PortIndex;

/// Quantum of the heaviest port (ns): about ten turns of small frames.
const QUANTUM: i64 = 32_000;
/// Aim for the length of a turn (ns): about 32 frames of 1518 B that go directly.
const SLICE: i64 = 10_000;
/// Latest beginning of a best-effort port's turn in a loop (ns).
const LOOP: u64 = 20_000;
/// Longest time that is charged at once (ns). In a longer time the worker lost its CPU or waited for a page
/// of guest memory, which is [watched](super::watch) for.
const LONGEST: i64 = 200_000;
/// Largest debt of a port (ns).
const DEBT: i64 = 10_000_000;
/// Real-time ports go first for one part in this many of the worker's time ...
const REALTIME: i64 = 2;
/// ... and for at most this long at once (ns), which is longer than a loop.
const REALTIME_BURST: i64 = 256_000;
/// The host latency that these times are for (ns), the default one. With a longer one all are longer in proportion, up to
/// [`SCALE`] times.
const HOST_LATENCY: u64 = 250_000;
/// Frames of a turn are limited by their number by then, even where a CPU is emulated.
const SCALE: u64 = 40;
/// Cost of finding a port without frames (ns). The next turn is not charged for it.
const LOOK: i64 = 30;
/// Buffers are costly if they take more than one part in this many of the frames' time.
const COSTLY: i64 = 4;
/// Number of accounts: ports by their indices, then other workers.
const ACCOUNTS: usize = VNICS + WORKERS;
/// Most frames of a queue in one turn.
pub(super) const BATCH: usize = 32;

/// A port's account of time.
#[derive(Clone, Copy, Debug)]
struct Account {
    /// Unused quantum of this round (ns); negative after an excess.
    remaining: i64,
    /// The round of `remaining`.
    round: u64,
    /// Time in each round (ns).
    quantum: i64,
    /// Frames that the next turn may take from each queue.
    batch: u8,
    realtime: bool,
    /// The port's own buffers made the last delivery to it slow.
    costly: bool,
}

impl Account {
    /// An account whose turn comes at once.
    const NEW: Self =
        Self { remaining: 1, round: 0, quantum: 1, batch: BATCH as u8, realtime: false, costly: false };

    /// Returns the unused quantum in `round` (ns).
    #[inline]
    fn remaining_in(&self, round: u64) -> i64 {
        let rounds = (round - self.round).min(1 << 32) as i64;
        self.remaining.saturating_add(rounds.saturating_mul(self.quantum)).min(self.quantum)
    }
}

/// The times of turns and loops (ns): each is the constant of its name, longer with a longer host latency.
#[derive(Clone, Copy, Debug)]
struct Times {
    quantum: i64,
    slice: i64,
    /// The latest beginning of a best-effort turn, [`LOOP`].
    latest: u64,
    longest: i64,
    debt: i64,
    /// For how long real-time ports go first at once, [`REALTIME_BURST`].
    realtime: i64,
}

impl Times {
    /// Returns those of a host latency (ns).
    fn of(host_latency: u64) -> Self {
        let longer = |ns: u64| {
            let host_latency = host_latency.clamp(HOST_LATENCY, HOST_LATENCY * SCALE);
            u128::from(ns) * u128::from(host_latency) / u128::from(HOST_LATENCY)
        };
        let [quantum, slice, longest, debt, realtime] =
            [QUANTUM, SLICE, LONGEST, DEBT, REALTIME_BURST].map(|ns| longer(ns as u64) as i64);
        Self { quantum, slice, latest: longer(LOOP) as u64, longest, debt, realtime }
    }
}

/// A port that shares the time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Party {
    pub(super) port: PortIndex,
    pub(super) weight: u32,
    pub(super) realtime: bool,
}

/// The turns of one worker.
pub(super) struct Turns {
    accounts: Box<[Account; ACCOUNTS]>,
    /// Weight of the heaviest port.
    heaviest: u32,
    times: Times,
    round: u64,
    /// A port had time left after it took frames in this loop, or the loop did not reach it.
    round_continues: bool,
    /// Rounds until the first waiting port has time; [`u64::MAX`] if no port waits.
    rounds: u64,
    /// Time for which real-time ports may still go first (ns).
    realtime: i64,
    /// Beginning of the loop (ns).
    began: u64,
    /// End of the time that is charged (ns).
    charged: u64,
    /// Time charged in this loop (ns).
    sum: i64,
    /// Time in this loop that no port caused (ns).
    others: u64,
    /// Ports that took frames in this loop.
    takers: Vec<PortIndex>,
    /// Time for ports without frames since `charged` (ns).
    looks: i64,
}

impl Turns {
    /// Returns the first round, without ports.
    pub(super) fn new(now: u64) -> Self {
        Self {
            accounts: Box::new([Account::NEW; ACCOUNTS]),
            heaviest: 1,
            times: Times::of(HOST_LATENCY),
            round: 0,
            round_continues: false,
            rounds: u64::MAX,
            realtime: REALTIME_BURST,
            began: now,
            charged: now,
            sum: 0,
            others: 0,
            takers: Vec::with_capacity(ACCOUNTS),
            looks: 0,
        }
    }

    /// The account of another worker's frames, as the index of a port.
    pub(super) fn of_worker(id: usize) -> PortIndex {
        (VNICS + id) as PortIndex
    }

    /// Divides the time among these ports and other workers from now on; other ports lose their accounts.
    /// `heaviest` is the weight of the heaviest port of all workers.
    pub(super) fn divide(&mut self, parties: impl Iterator<Item = Party>, heaviest: u32) {
        let mut before = std::mem::replace(&mut *self.accounts, [Account::NEW; ACCOUNTS]);
        let was = i64::from(std::mem::replace(&mut self.heaviest, heaviest.max(1)));
        let heaviest = i64::from(self.heaviest);
        for (account, before) in self.accounts[VNICS..].iter_mut().zip(&before[VNICS..]) {
            let quantum = (before.quantum * was / heaviest).max(1);
            let remaining = before.remaining_in(self.round).min(quantum);
            *account = Account { remaining, round: self.round, quantum, ..*before };
        }
        for Party { port, weight, realtime } in parties {
            let account = &mut before[usize::from(port)];
            account.remaining = account.remaining_in(self.round);
            let quantum = (self.times.quantum * i64::from(weight) / heaviest).max(1);
            let remaining = account.remaining.min(quantum);
            self.accounts[usize::from(port)] =
                Account { remaining, round: self.round, quantum, realtime, ..*account };
        }
    }

    /// Sets how long the host may take (ns): turns, rounds and loops are longer if that is longer than by default.
    pub(super) fn set_host_latency(&mut self, ns: u64) {
        let was = std::mem::replace(&mut self.times, Times::of(ns)).quantum;
        self.realtime = self.realtime.clamp(-self.times.realtime, self.times.realtime);
        for account in self.accounts.iter_mut() {
            account.remaining = account.remaining_in(self.round);
            account.round = self.round;
            account.quantum = (account.quantum * self.times.quantum / was).max(1);
            account.remaining = account.remaining.min(account.quantum);
        }
    }

    /// Sets the weight of [another worker's](Self::of_worker) ports together.
    pub(super) fn set_weight(&mut self, worker: PortIndex, weight: u32) {
        let quantum = (self.times.quantum * i64::from(weight) / i64::from(self.heaviest)).max(1);
        let account = self.refresh(worker);
        self.accounts[usize::from(worker)] =
            Account { remaining: account.remaining.min(quantum), quantum, ..account };
    }

    /// Begins a loop.
    #[inline]
    pub(super) fn begin(&mut self, now: u64) {
        if !self.round_continues {
            self.round += if self.rounds == u64::MAX { 1 } else { self.rounds };
        }
        (self.round_continues, self.rounds) = (false, u64::MAX);
        let elapsed = now.saturating_sub(self.began).min(1 << 32) as i64;
        self.realtime = (self.realtime + elapsed / REALTIME).min(self.times.realtime);
        self.began = now;
        (self.sum, self.others) = (0, 0);
        self.pass(now);
    }

    /// Ends a loop. The ports that took frames share the loop's own time equally: otherwise a port with one
    /// frame for each loop would cost others more than itself.
    #[inline]
    pub(super) fn finish(&mut self, now: u64) {
        let ports = self.takers.len() as i64;
        if ports == 0 {
            return;
        }
        let ours = now.saturating_sub(self.began).saturating_sub(self.others) as i64;
        let besides = (ours - self.sum).clamp(0, self.times.longest) / ports;
        for i in 0..self.takers.len() {
            let port = self.takers[i];
            self.charge(port, besides);
            self.round_continues |= self.accounts[usize::from(port)].remaining > 0;
        }
        self.takers.clear();
    }

    /// Excludes the time until `now` from all turns and the loop: calls of other threads, frames of other
    /// workers. Returns that time (ns).
    #[inline]
    pub(super) fn leave_out(&mut self, now: u64) -> i64 {
        let took = now.saturating_sub(self.charged);
        self.others += took;
        self.pass(now);
        (took as i64).min(self.times.longest)
    }

    /// Returns the uncharged time at `now` (ns).
    #[inline]
    pub(super) fn elapsed(&self, now: u64) -> u64 {
        now.saturating_sub(self.charged)
    }

    /// Charges from `now` on. The ports that took frames share the time before.
    #[inline]
    pub(super) fn pass(&mut self, now: u64) {
        (self.charged, self.looks) = (now, 0);
    }

    /// Whether it is the port's turn; if not, the port waits for a later round.
    #[inline]
    pub(super) fn is_due(&mut self, port: PortIndex) -> bool {
        let account = self.refresh(port);
        if account.remaining > 0 || (account.realtime && self.realtime > 0) {
            return true;
        }
        self.note_waiting(account);
        false
    }

    /// Whether no more frames may go into the port's costly buffers in this round.
    #[inline]
    pub(super) fn holds(&mut self, port: PortIndex) -> bool {
        self.accounts[usize::from(port)].costly && !self.is_due(port)
    }

    /// Whether [`holds`](Self::holds) is `true` now; unlike that, does not note that the port waits.
    #[inline]
    pub(super) fn is_held(&self, port: PortIndex) -> bool {
        let account = &self.accounts[usize::from(port)];
        let goes_first = account.realtime && self.realtime > 0;
        account.costly && !goes_first && account.remaining_in(self.round) <= 0
    }

    /// Returns the frames that the port's turn may take from each queue.
    #[inline]
    pub(super) fn batch(&self, port: PortIndex) -> usize {
        usize::from(self.accounts[usize::from(port)].batch)
    }

    /// Whether best-effort ports have to wait for the next loop.
    #[inline]
    pub(super) fn is_long(&self) -> bool {
        self.charged.saturating_sub(self.began).saturating_sub(self.others) >= self.times.latest
    }

    /// Notes that a due port had no frames.
    #[inline]
    pub(super) fn note_empty(&mut self) {
        self.looks += LOOK;
    }

    /// Notes that the loop had no budget or time for these ports.
    pub(super) fn break_off(&mut self, ports: &[PortIndex]) {
        self.round_continues |= ports.iter().any(|port| self.is_due(*port));
    }

    /// Ends a turn in which the port took frames; returns its charged time (ns).
    #[inline]
    pub(super) fn end(&mut self, port: PortIndex, now: u64) -> i64 {
        let took = self.lap(now);
        self.charge(port, took);
        if self.takers.len() < ACCOUNTS {
            self.takers.push(port);
        }
        let account = &mut self.accounts[usize::from(port)];
        if took > self.times.slice {
            account.batch = (account.batch / 2).max(1);
        } else if took < self.times.slice / 2 {
            account.batch = (account.batch * 2).min(BATCH as u8);
        }
        took
    }

    /// Charges [another worker](Self::of_worker) for `ns` of taking in its frames.
    pub(super) fn charge_worker(&mut self, worker: PortIndex, ns: i64) {
        self.charge(worker, ns);
        self.takers.push(worker);
    }

    /// Returns the uncharged time (ns) without the time for ports without frames.
    #[inline]
    pub(super) fn lap(&mut self, now: u64) -> i64 {
        let took = (now.saturating_sub(self.charged) as i64).clamp(0, self.times.longest);
        // At least half of the time was work: for a port in the cache, a look takes less than `LOOK`.
        let took = (took - self.looks).max(took / 2);
        self.pass(now);
        self.sum += took;
        took
    }

    /// Charges `ns` to a port.
    #[inline]
    pub(super) fn charge(&mut self, port: PortIndex, ns: i64) {
        let mut account = self.refresh(port);
        account.remaining = (account.remaining - ns).max(-self.times.debt);
        self.accounts[usize::from(port)].remaining = account.remaining;
        if account.realtime {
            self.realtime = (self.realtime - ns).max(-self.times.realtime);
        }
        if account.remaining <= 0 {
            self.note_waiting(account);
        }
    }

    /// Charges a sender for frames that were delivered from a queue. The round continues while a port with
    /// time left has such frames: queued frames leave before other ports add more.
    #[inline]
    pub(super) fn charge_delivery(&mut self, port: PortIndex, ns: i64) {
        self.charge(port, ns);
        self.round_continues |= self.accounts[usize::from(port)].remaining > 0;
    }

    /// Charges a receiver for its buffers' time beyond the frames' own `frames` ns.
    #[inline]
    pub(super) fn charge_buffers(&mut self, port: PortIndex, buffers: i64, frames: i64) {
        let costly = buffers > frames / COSTLY;
        self.accounts[usize::from(port)].costly = costly;
        if buffers > 0 {
            self.charge(port, buffers);
        }
        self.round_continues |= costly && self.accounts[usize::from(port)].remaining > 0;
    }

    /// Adds the port's quanta of the rounds since the last look.
    #[inline]
    fn refresh(&mut self, port: PortIndex) -> Account {
        let account = &mut self.accounts[usize::from(port)];
        if account.round != self.round {
            account.remaining = account.remaining_in(self.round);
            account.round = self.round;
        }
        *account
    }

    /// Notes that a port waits for the round in which it has time.
    #[inline]
    fn note_waiting(&mut self, account: Account) {
        let rounds = (-account.remaining / account.quantum + 1) as u64;
        self.rounds = self.rounds.min(rounds);
    }
}
