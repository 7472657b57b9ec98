//! How a worker's time is divided among its ports: by weight, as an egress divides bytes. Pure.
//!
//! ```text
//!              ┌ time left ─▶ a turn, of so many frames ─▶ charged the time that it took ─┐
//!  port, due? ─┤                                                                          │
//!              └ none left ─▶ waits for the next round                                    │
//!                                   ▲                                                     │
//!                                   └─ a loop in which no port with time left took frames ◀┘
//! ```
//!
//! Deficit round robin (Shreedhar, Varghese, SIGCOMM 1995) over nanoseconds that were measured, not bytes: bytes say
//! little of what a frame costs, which is 20 times as much in descriptors of a byte each, and 200 times as much to
//! 200 receivers.
//!
//! - In a round each port has the time of its **quantum**, which is proportional to its weight. A turn ends when its
//!   frames are sent, not when the quantum is used up; what it took beyond is missing in the rounds that follow.
//! - A round ends when no port that has time left takes frames. So time that some ports do not need goes to the
//!   others, and a worker never idles while frames wait.
//! - What a port does not use of its quantum is lost: idling saves up a quantum at most.
//! - A turn is to take [`SLICE`]: one that took longer halves the frames of the port's next turn. And no best-effort
//!   port's turn begins later in a loop than [`LOOP`]: the first that came too late begins the next loop. So a loop is
//!   short whatever ports send.
//! - Real-time ports go first although they have no time left, for [half](REALTIME) of the worker's time in all.
//!   Beyond that they wait for their turns as others do.
//!
//! While two ports have frames, what they took, each divided by its weight, differs by at most the quantum of both
//! and their longest turns divided by their weights.

#[cfg(test)]
mod tests;

use crate::capacity::{VNICS, WORKERS};
use crate::fdb::PortIndex;

/// The quantum of the heaviest port, ns: some ten turns of small frames.
const QUANTUM: i64 = 32_000;
/// What a turn is to take at most, ns: that of 32 frames of 1518 B that go directly takes about so long.
const SLICE: i64 = 10_000;
/// No turn of a best-effort port begins later in a loop, ns.
const LOOP: u64 = 20_000;
/// Longest time that is charged at once, ns. What takes longer is no work of a turn: the worker lost its CPU, or waits
/// for a page of a guest's memory, which is [watched](super::watch) for.
const LONGEST: i64 = 200_000;
/// What a port owes at most, ns.
const DEBT: i64 = 10_000_000;
/// Real-time ports go first for one part in so many of the worker's time ...
const REALTIME: i64 = 2;
/// ... and at most for so long at once, ns.
const REALTIME_BURST: i64 = 256_000;
/// What it takes to see that a port has no frames, ns: the turn after that is not charged for it.
const LOOK: i64 = 30;
/// Buffers are costly where they take more than one part in so many of what frames take.
const COSTLY: i64 = 4;
/// Accounts: of ports, by their indices, then of other workers.
const ACCOUNTS: usize = VNICS + WORKERS;
/// Most frames that are taken from a queue in a turn.
pub(super) const BATCH: usize = 32;

/// A port's account of time.
#[derive(Clone, Copy, Debug)]
struct Account {
    /// Of its quantum in this round, ns; negative where it took more.
    left: i64,
    /// The round of `left`.
    round: u64,
    /// What it has in a round, ns.
    quantum: i64,
    /// Frames that its next turn may take from each queue.
    batch: u8,
    realtime: bool,
    /// What was last delivered to it took long for its own buffers.
    costly: bool,
}

impl Account {
    /// It is its turn at once.
    const NEW: Self =
        Self { left: 1, round: 0, quantum: 1, batch: BATCH as u8, realtime: false, costly: false };

    /// What is left of its quantum in `round`, ns.
    #[inline]
    fn left_in(&self, round: u64) -> i64 {
        let rounds = (round - self.round).min(1 << 32) as i64;
        self.left.saturating_add(rounds.saturating_mul(self.quantum)).min(self.quantum)
    }
}

/// A port among which time is divided.
#[derive(Clone, Copy, Debug)]
pub(super) struct Party {
    pub(super) port: PortIndex,
    pub(super) weight: u32,
    pub(super) realtime: bool,
}

/// Whose turn it is on one worker.
pub(super) struct Turns {
    accounts: Box<[Account; ACCOUNTS]>,
    /// The weight of the heaviest port.
    heaviest: u32,
    round: u64,
    /// A port had time left after it took frames in this loop, or was not reached.
    goes_on: bool,
    /// Rounds until the first port that waits has time left; [`u64::MAX`] where none waits.
    rounds: u64,
    /// For how long real-time ports go first, ns.
    realtime: i64,
    /// When the loop began, ns.
    began: u64,
    /// Up to when time was charged, ns.
    charged: u64,
    /// What was charged in this loop, ns.
    sum: i64,
    /// What was no port's doing in this loop, ns.
    others: u64,
    /// Ports that took frames in this loop.
    takers: Vec<PortIndex>,
    /// What it took to look at ports without frames since then, ns.
    looks: i64,
}

impl Turns {
    /// The first round, of no port.
    pub(super) fn new(now: u64) -> Self {
        Self {
            accounts: Box::new([Account::NEW; ACCOUNTS]),
            heaviest: 1,
            round: 0,
            goes_on: false,
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

    /// The account of what comes from another worker, in the place of a port's index.
    pub(super) fn of_worker(id: usize) -> PortIndex {
        (VNICS + id) as PortIndex
    }

    /// Divides the time among these ports from now on, and among other workers by what comes from them; other ports lose
    /// their accounts. `heaviest` is the weight of the heaviest port of all workers.
    pub(super) fn divide(&mut self, parties: impl Iterator<Item = Party>, heaviest: u32) {
        let mut before = std::mem::replace(&mut *self.accounts, [Account::NEW; ACCOUNTS]);
        let was = i64::from(std::mem::replace(&mut self.heaviest, heaviest.max(1)));
        let heaviest = i64::from(self.heaviest);
        for (account, before) in self.accounts[VNICS..].iter_mut().zip(&before[VNICS..]) {
            let quantum = (before.quantum * was / heaviest).max(1);
            let left = before.left_in(self.round).min(quantum);
            *account = Account { left, round: self.round, quantum, ..*before };
        }
        for Party { port, weight, realtime } in parties {
            let account = &mut before[usize::from(port)];
            account.left = account.left_in(self.round);
            let quantum = (QUANTUM * i64::from(weight) / heaviest).max(1);
            let left = account.left.min(quantum);
            self.accounts[usize::from(port)] =
                Account { left, round: self.round, quantum, realtime, ..*account };
        }
    }

    /// What comes from [another worker](Self::of_worker) is of ports of this weight together.
    pub(super) fn set_weight(&mut self, worker: PortIndex, weight: u32) {
        let quantum = (QUANTUM * i64::from(weight) / i64::from(self.heaviest)).max(1);
        let account = self.renew(worker);
        self.accounts[usize::from(worker)] = Account { left: account.left.min(quantum), quantum, ..account };
    }

    /// A loop begins.
    #[inline]
    pub(super) fn begin(&mut self, now: u64) {
        if !self.goes_on {
            self.round += if self.rounds == u64::MAX { 1 } else { self.rounds };
        }
        (self.goes_on, self.rounds) = (false, u64::MAX);
        let elapsed = now.saturating_sub(self.began).min(1 << 32) as i64;
        self.realtime = (self.realtime + elapsed / REALTIME).min(REALTIME_BURST);
        self.began = now;
        (self.sum, self.others) = (0, 0);
        self.pass(now);
    }

    /// A loop ends. What it took besides is charged to the ports that took frames, in equal parts: otherwise one that
    /// sends a frame for each loop would cost the others more than itself.
    #[inline]
    pub(super) fn finish(&mut self, now: u64) {
        let ports = self.takers.len() as i64;
        if ports == 0 {
            return;
        }
        let ours = now.saturating_sub(self.began).saturating_sub(self.others) as i64;
        let besides = (ours - self.sum).clamp(0, LONGEST) / ports;
        for i in 0..self.takers.len() {
            let port = self.takers[i];
            self.charge(port, besides);
            self.goes_on |= self.accounts[usize::from(port)].left > 0;
        }
        self.takers.clear();
    }

    /// What happened until `now` was no own port's doing, and makes no turn or loop of theirs longer: calls of other threads,
    /// frames of other workers. Returns how long that took, ns.
    #[inline]
    pub(super) fn leave_out(&mut self, now: u64) -> i64 {
        let took = now.saturating_sub(self.charged);
        self.others += took;
        self.pass(now);
        (took as i64).min(LONGEST)
    }

    /// The time that was not charged yet at `now`, ns.
    #[inline]
    pub(super) fn elapsed(&self, now: u64) -> u64 {
        now.saturating_sub(self.charged)
    }

    /// From `now` on time is charged anew. The ports that took frames share what passed since it was charged last.
    #[inline]
    pub(super) fn pass(&mut self, now: u64) {
        (self.charged, self.looks) = (now, 0);
    }

    /// Whether it is a port's turn; if not, it waits for a round to come.
    #[inline]
    pub(super) fn is_due(&mut self, port: PortIndex) -> bool {
        let account = self.renew(port);
        if account.left > 0 || (account.realtime && self.realtime > 0) {
            return true;
        }
        self.note_waiting(account);
        false
    }

    /// Whether a port is to have no more delivered to its costly buffers in this round.
    #[inline]
    pub(super) fn holds(&mut self, port: PortIndex) -> bool {
        self.accounts[usize::from(port)].costly && !self.is_due(port)
    }

    /// Whether that [is so](Self::holds), by the counts of frames alone.
    #[inline]
    pub(super) fn is_held(&self, port: PortIndex) -> bool {
        let account = &self.accounts[usize::from(port)];
        account.costly && account.left_in(self.round) <= 0
    }

    /// Frames that a port's turn may take from each queue.
    #[inline]
    pub(super) fn batch(&self, port: PortIndex) -> usize {
        usize::from(self.accounts[usize::from(port)].batch)
    }

    /// Whether a loop has taken so long that best-effort ports are to wait for the next one.
    #[inline]
    pub(super) fn is_long(&self) -> bool {
        self.charged.saturating_sub(self.began).saturating_sub(self.others) >= LOOP
    }

    /// A port that was due had no frames.
    #[inline]
    pub(super) fn look(&mut self) {
        self.looks += LOOK;
    }

    /// There was no budget or time left in this loop for these ports.
    pub(super) fn break_off(&mut self, ports: &[PortIndex]) {
        self.goes_on |= ports.iter().any(|port| self.is_due(*port));
    }

    /// A port's turn ends in which it took frames; returns the time that it is charged, ns.
    #[inline]
    pub(super) fn end(&mut self, port: PortIndex, now: u64) -> i64 {
        let took = self.lap(now);
        self.charge(port, took);
        if self.takers.len() < ACCOUNTS {
            self.takers.push(port);
        }
        let account = &mut self.accounts[usize::from(port)];
        if took > SLICE {
            account.batch = (account.batch / 2).max(1);
        } else if took < SLICE / 2 {
            account.batch = (account.batch * 2).min(BATCH as u8);
        }
        took
    }

    /// Frames were taken in that came from [another worker](Self::of_worker), for so long, ns.
    pub(super) fn took_in(&mut self, worker: PortIndex, ns: i64) {
        self.charge(worker, ns);
        self.takers.push(worker);
    }

    /// The time since it was charged last, ns, without that of looking for frames.
    #[inline]
    pub(super) fn lap(&mut self, now: u64) -> i64 {
        let took = (now.saturating_sub(self.charged) as i64).clamp(0, LONGEST);
        // Half of it at least was the work: where a port is in the cache, a look takes less.
        let took = (took - self.looks).max(took / 2);
        self.pass(now);
        self.sum += took;
        took
    }

    /// Charges `ns` to a port, for what is done because of it.
    #[inline]
    pub(super) fn charge(&mut self, port: PortIndex, ns: i64) {
        let mut account = self.renew(port);
        account.left = (account.left - ns).max(-DEBT);
        self.accounts[usize::from(port)].left = account.left;
        if account.realtime {
            self.realtime = (self.realtime - ns).max(-REALTIME_BURST);
        }
        if account.left <= 0 {
            self.note_waiting(account);
        }
    }

    /// Charges a sender for frames that were delivered from a queue. While a port with time left has such, the round
    /// goes on: what waits in queues is to leave before other ports' frames come on top.
    #[inline]
    pub(super) fn charge_delivery(&mut self, port: PortIndex, ns: i64) {
        self.charge(port, ns);
        self.goes_on |= self.accounts[usize::from(port)].left > 0;
    }

    /// Charges a receiver for what its buffers took beyond the frames in them, which took `frames` ns.
    #[inline]
    pub(super) fn charge_buffers(&mut self, port: PortIndex, buffers: i64, frames: i64) {
        let costly = buffers > frames / COSTLY;
        self.accounts[usize::from(port)].costly = costly;
        if buffers > 0 {
            self.charge(port, buffers);
        }
        self.goes_on |= costly && self.accounts[usize::from(port)].left > 0;
    }

    /// Gives a port what it has in the rounds since it was last looked at.
    #[inline]
    fn renew(&mut self, port: PortIndex) -> Account {
        let account = &mut self.accounts[usize::from(port)];
        if account.round != self.round {
            account.left = account.left_in(self.round);
            account.round = self.round;
        }
        *account
    }

    /// A port waits for the round in which it has time left.
    #[inline]
    fn note_waiting(&mut self, account: Account) {
        let rounds = (-account.left / account.quantum + 1) as u64;
        self.rounds = self.rounds.min(rounds);
    }
}
