//! Which guests' memory one uplink's link may send from: registered, lent, and taken back.
//!
//! ```text
//!  vNICs with zero copy and a queue pair ─┐            ┌─ registered, whole ─▶ lent ─▶ Tables
//!  Guests: offers, holds ─────────────────┼─ step ─▶ Loan                        │ held, other memory, holes, no queue pair
//!  time ──────────────────────────────────┘            └─ refused: why, and a pause ◀─┘
//! ```
//!
//! Each end of a loan or of a registration makes the next one wait longer, up to 10 s, unless it was good for a minute: a front end
//! that changes its memory in a loop is served from the pool, and the link's tables change seldom.

use super::guests::{Guests, Kind, Offer};
use super::plan::Failures;
use super::registering::{NOT_WHOLE, Pinned, Registering};
use crate::fdb::PortIndex;
use crate::link::rdma::GuestRegions;
use crate::virtio::GuestMemory;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use tidegate_evidence::ZeroCopyStatus;
use tidegate_verbs::Device;

/// Time between two looks for holes (ns).
const LOOK_EVERY: u64 = 200_000_000;
/// A registration is followed by a pause of so many times its own duration: a large guest costs no more than a part of a CPU.
const REST: u64 = 3;

const HOLES: &str = "pages were taken out of the guest's memory after it was registered, and a device has the former ones: no \
                     balloon and no free page reporting with zero-copy (libvirt: <memballoon model='none'/>); copied until the \
                     front end shares its memory anew";

/// The guests of one link.
#[derive(Debug, Default)]
pub(super) struct Lending {
    loans: BTreeMap<PortIndex, Loan>,
    look_at: u64,
}

/// One guest.
#[derive(Debug, Default)]
struct Loan {
    /// What the link has.
    lent: Option<Arc<GuestRegions>>,
    state: State,
    ends: Failures,
    /// When the registration under way began (ns).
    began: u64,
    /// No other one begins before (ns).
    rests_until: u64,
    /// Why nothing is lent.
    why: String,
    /// Why the last registration failed: told once.
    refusal: String,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    None,
    Registering(Registering),
    Pinned(Pinned),
    /// Not of use as long as the front end has this.
    Refused(Weak<GuestMemory>, &'static str),
}

/// What a step changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Change {
    /// Other guests are lent.
    pub(super) lends_others: bool,
    /// The state of some is another.
    pub(super) is_news: bool,
    /// Guests in whose memory holes were found.
    pub(super) holes: u64,
}

impl Lending {
    /// Does what is due at `now` (ns) for vNICs with zero copy that have a queue pair: `wanted`, by port.
    pub(super) fn step(
        &mut self,
        wanted: &BTreeSet<PortIndex>,
        guests: &Arc<Guests>,
        device: &Arc<Device>,
        now: u64,
    ) -> Change {
        let mut change = Change::default();
        self.loans.retain(|port, loan| {
            let stays = wanted.contains(port);
            change.lends_others |= !stays && loan.lent.is_some();
            change.is_news |= !stays;
            stays
        });
        let looks = now >= self.look_at;
        if looks {
            self.look_at = now + LOOK_EVERY;
        }
        for port in wanted {
            let loan = self.loans.entry(*port).or_default();
            let before = (loan.lent.is_some(), loan.why.clone());
            let offer = guests.offer(*port);
            change.holes += u64::from(looks && loan.find_holes(*port, &offer, now));
            loan.step(*port, offer, guests, device, now);
            change.lends_others |= before.0 != loan.lent.is_some();
            let after = (loan.lent.is_some(), loan.why.clone());
            if before != after {
                change.is_news = true;
                loan.tell(*port, before.0);
            }
        }
        change
    }

    /// Returns what the link may send from.
    pub(super) fn lent(&self) -> Vec<Arc<GuestRegions>> {
        self.loans.values().filter_map(|loan| loan.lent.clone()).collect()
    }

    /// Returns what is lent of a port's guest.
    pub(super) fn lent_to(&self, port: PortIndex) -> Option<&Arc<GuestRegions>> {
        self.loans.get(&port)?.lent.as_ref()
    }

    /// Returns the state of a vNIC with zero copy.
    pub(super) fn status(&self, port: PortIndex) -> ZeroCopyStatus {
        let Some(loan) = self.loans.get(&port) else {
            return ZeroCopyStatus { copied_because: Some("it has no queue pair".into()), registered: 0 };
        };
        let is_copied = loan.lent.is_none();
        let registered = match &loan.state {
            State::Pinned(pinned) => pinned.registered.bytes(),
            _ => 0,
        };
        ZeroCopyStatus { copied_because: is_copied.then(|| loan.why.clone()), registered }
    }
}

impl Loan {
    /// Looks whether memory that is registered has holes now.
    fn find_holes(&mut self, port: PortIndex, offer: &Result<Offer, &str>, now: u64) -> bool {
        let State::Pinned(pinned) = &self.state else { return false };
        // Memory that is being replaced is not looked at.
        let is_offered = offer.as_ref().is_ok_and(|offer| offer.is_same(&pinned.memory));
        let found = is_offered && pinned.has_holes();
        if found {
            let memory = pinned.memory.clone();
            self.end(State::Refused(memory, HOLES), HOLES, now);
            tracing::warn!(port, "frames are copied: {HOLES}");
        }
        found
    }

    fn step(
        &mut self,
        port: PortIndex,
        offer: Result<Offer, &str>,
        guests: &Arc<Guests>,
        device: &Arc<Device>,
        now: u64,
    ) {
        let offer = match (offer, &mut self.state) {
            (Ok(offer), _) => offer,
            // The same memory may come back.
            (Err(why), State::Refused(..)) => {
                self.why = why.into();
                return;
            }
            (Err(why), _) => return self.end(State::None, why, now),
        };
        if self.memory().is_some_and(|memory| !offer.is_same(memory)) {
            self.end(State::None, "the front end has other memory", now);
        }
        if offer.is_held && self.lent.take().is_some() {
            self.ends.note(now);
            self.why =
                "the front end changed its rings or memory, and the device gets that again after a pause"
                    .into();
        }
        if let State::Registering(registering) = &self.state
            && let Some(outcome) = registering.look()
        {
            let memory = registering.memory.clone();
            self.rests_until = now + REST * now.saturating_sub(self.began);
            self.state = match outcome {
                Ok(pinned) => {
                    self.refusal.clear();
                    State::Pinned(pinned)
                }
                Err(why) => {
                    self.ends.note(now);
                    if self.refusal != why {
                        tracing::warn!(port, "frames are copied: {why}");
                        self.refusal.clone_from(&why);
                    }
                    let is_for_good = why == NOT_WHOLE;
                    self.why = why;
                    if is_for_good { State::Refused(memory, NOT_WHOLE) } else { State::None }
                }
            };
        }
        if let State::Refused(_, why) = &self.state {
            self.why = (*why).into();
        }
        if offer.is_held || !self.ends.are_over(now) {
            return;
        }
        match &self.state {
            State::None if now >= self.rests_until => {
                let memory = offer.memory.clone();
                let Some(of) = guests.begin(port, &memory, Kind::Registering) else {
                    self.why = "former memory of the guest is still registered".into();
                    return;
                };
                self.ends.tried(now);
                self.began = now;
                self.why = "the device is registering the guest's memory".into();
                self.state = State::Registering(Registering::begin(device, port, offer, of));
            }
            State::Pinned(pinned) if self.lent.is_none() => {
                let Some(of) = guests.begin(port, &pinned.memory, Kind::Lent) else {
                    self.why = "the device is not done with former memory of the guest".into();
                    return;
                };
                self.ends.tried(now);
                self.why = String::new();
                self.lent = Some(Arc::new(GuestRegions::in_use(port, pinned.registered.clone(), of)));
            }
            _ => {}
        }
    }

    /// Returns the memory that this is about.
    fn memory(&self) -> Option<&Weak<GuestMemory>> {
        match &self.state {
            State::None => None,
            State::Registering(registering) => Some(&registering.memory),
            State::Pinned(pinned) => Some(&pinned.memory),
            State::Refused(memory, _) => Some(memory),
        }
    }

    /// Ends the loan and the registration.
    fn end(&mut self, state: State, why: &str, now: u64) {
        let before = std::mem::replace(&mut self.state, state);
        if self.lent.take().is_some() || matches!(before, State::Registering(_) | State::Pinned(_)) {
            self.ends.note(now);
        }
        self.why = why.into();
    }

    /// Logs the state, `was_lent` before.
    fn tell(&self, port: PortIndex, was_lent: bool) {
        match (was_lent, self.lent.is_some()) {
            (false, true) => tracing::info!(port, "the device reads the guest's memory"),
            (true, false) => tracing::info!(port, "frames are copied: {}", self.why),
            _ => tracing::debug!(port, "frames are copied: {}", self.why),
        }
    }
}
