//! Which vNIC has an address that several vNICs may have: `allowed.shared`, as for VRRP and CARP.
//!
//! ```text
//!  a frame that uses it, and no vNIC has it ─┐
//!  an announcement ─▶ not too often? ────────┴▶ Holder: port, moves ─▶ FDB, where it is a MAC
//!  port or contract goes ────────────────────▶ no vNIC has it
//! ```
//!
//! Each address has one holder, referenced by the contracts of all vNICs that name it. No lock: the port is
//! one word, and so is the time of the next allowed move.

use crate::fdb::{Fdb, PortIndex, SegmentIndex};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use tidegate_contract::Mac;

/// Largest number of moves in a burst: two routers that start together swap the address a few times.
pub const BURST: u64 = 8;
/// Interval of further moves (ns): VRRP announces once a second.
pub const EVERY: u64 = 1_000_000_000;
/// Most attempts to bring the FDB up to a holder that changes meanwhile.
const ROUNDS: usize = 8;

/// The vNIC that has a shared address.
#[derive(Debug, Default)]
pub struct Holder {
    /// Port number plus 1; 0: no vNIC has the address.
    port: AtomicU32,
    /// When the token bucket of moves is full again (ns, the workers' clock).
    full: AtomicU64,
    moves: AtomicU64,
    refused: AtomicU64,
}

/// The result of an attempt to take an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakeOutcome {
    /// The port had it already.
    Own,
    /// No port had it.
    Free,
    /// This port had it.
    From(PortIndex),
    /// Refused: another port keeps it.
    Refused,
}

impl Holder {
    /// Returns the port that has the address.
    #[inline]
    pub fn port(&self) -> Option<PortIndex> {
        self.port.load(Ordering::Acquire).checked_sub(1).map(|port| port as PortIndex)
    }

    /// Whether `port` has the address.
    #[inline]
    pub fn is(&self, port: PortIndex) -> bool {
        self.port() == Some(port)
    }

    /// Gives `port`, which uses the address at `now` (ns), the address if no port has it. If `announces`,
    /// takes it from another port, unless moves are too frequent.
    pub fn take(&self, port: PortIndex, announces: bool, now: u64) -> TakeOutcome {
        let mine = u32::from(port) + 1;
        match self.port.compare_exchange(0, mine, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return TakeOutcome::Free,
            Err(before) if before == mine => return TakeOutcome::Own,
            Err(_) if !announces => return TakeOutcome::Refused,
            Err(_) => {}
        }
        let full = now.saturating_add(EVERY * (BURST - 1));
        let charge = |at: u64| (at <= full).then(|| at.max(now).saturating_add(EVERY));
        if self.full.fetch_update(Ordering::AcqRel, Ordering::Acquire, charge).is_err() {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return TakeOutcome::Refused;
        }
        self.moves.fetch_add(1, Ordering::Relaxed);
        match self.port.swap(mine, Ordering::AcqRel).checked_sub(1) {
            Some(before) => TakeOutcome::From(before as PortIndex),
            None => TakeOutcome::Free,
        }
    }

    /// Takes the address from `port`, if it has it.
    pub fn release(&self, port: PortIndex) {
        let mine = u32::from(port) + 1;
        let _another_has_it = self.port.compare_exchange(mine, 0, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Makes frames to `mac` go to the holder. Of simultaneous changes, the last one wins in the FDB, too.
    pub fn lead(&self, fdb: &Fdb, segment: SegmentIndex, mac: Mac) {
        for _ in 0..ROUNDS {
            let port = self.port();
            fdb.lead(segment, mac, port);
            if self.port() == port {
                return;
            }
        }
    }

    /// Returns the number of moves, and of moves refused as too frequent.
    pub fn moves(&self) -> (u64, u64) {
        (self.moves.load(Ordering::Relaxed), self.refused.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Take(PortIndex, bool),
        Release(PortIndex),
        Pass(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (0..3u16, any::<bool>()).prop_map(|(port, announces)| Step::Take(port, announces)),
            1 => (0..3u16).prop_map(Step::Release),
            1 => (0..3 * EVERY).prop_map(Step::Pass),
        ]
    }

    proptest! {
        #[test]
        fn one_port_has_the_address_and_moves_are_limited(steps in prop::collection::vec(step(), 1..200)) {
            let holder = Holder::default();
            let (mut now, mut has, mut spent, mut moved) = (10 * EVERY, None, 0u64, 0u64);
            for step in steps {
                match step {
                    Step::Pass(ns) => {
                        now += ns;
                        spent = spent.saturating_sub(ns);
                    }
                    Step::Release(port) => {
                        holder.release(port);
                        has = has.filter(|at| *at != port);
                    }
                    Step::Take(port, announces) => {
                        let expected = match has {
                            None => TakeOutcome::Free,
                            Some(at) if at == port => TakeOutcome::Own,
                            Some(at) if announces && spent <= EVERY * (BURST - 1) => {
                                spent += EVERY;
                                moved += 1;
                                TakeOutcome::From(at)
                            }
                            Some(_) => TakeOutcome::Refused,
                        };
                        prop_assert_eq!(holder.take(port, announces, now), expected);
                        has = if expected == TakeOutcome::Refused { has } else { Some(port) };
                    }
                }
                prop_assert_eq!(holder.port(), has);
                prop_assert_eq!(holder.moves().0, moved);
            }
        }
    }

    #[test]
    fn the_fdb_follows() {
        let (fdb, segment, mac) = (Fdb::new(), SegmentIndex(3), Mac([0, 0, 0x5e, 0, 1, 9]));
        fdb.reserve(segment, mac).expect("room");
        let holder = Holder::default();
        std::thread::scope(|scope| {
            for port in 1..4u16 {
                let (fdb, holder) = (&fdb, &holder);
                scope.spawn(move || {
                    for _ in 0..20_000 {
                        // At the largest time, moves are not limited.
                        let taken = holder.take(port, true, u64::MAX);
                        assert_ne!(taken, TakeOutcome::Refused);
                        holder.lead(fdb, segment, mac);
                    }
                });
            }
        });
        let last = holder.port().expect("one of them");
        assert_eq!(fdb.lookup(segment, mac), Some(last));
        holder.release(last);
        holder.lead(&fdb, segment, mac);
        assert_eq!(fdb.lookup(segment, mac), None);
    }
}
