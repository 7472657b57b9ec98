//! Which guests' memory one uplink's link may use: registered, lent, and taken back.
//!
//! ```text
//!  vNICs with zero copy, by queue pairs ──┐            ┌─ registered, whole ─▶ lent ─▶ Tables
//!  Guests: offers, holds ─────────────────┼─ step ─▶ Loan                        │ held, other memory, holes, vNIC gone
//!  time ──────────────────────────────────┘            └─ refused: why, and a pause ◀─┘
//! ```
//!
//! Each end of a loan or of a registration makes the next one wait longer, up to 10 s, unless it was good for a minute: a front end
//! that changes its memory in a loop is served from the pool, and the link's tables change seldom.

use super::guests::{Guests, Kind, Offer, Why};
use super::plan::Failures;
use super::registering::{NOT_WHOLE, Pinned, Registering};
use crate::fdb::PortIndex;
use crate::link::rdma::{GuestCounters, GuestRegions};
use crate::virtio::GuestMemory;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use tidegate_evidence::ZeroCopyStatus;
use tidegate_verbs::Device;

/// Time between two looks for holes (ns).
const LOOK_EVERY: u64 = 200_000_000;
/// A registration is followed by a pause of so many times its own duration: a large guest costs no more than a part of a CPU.
const REST: u64 = 3;

const ONE_PIECE: &str = "the RDMA device takes one piece of memory for each request (max_sge = 1), and zero copy needs two: what the switch \
                         writes, and the guest's payload";

const NOT_DONE: &str = "the device is not done with former memory of the guest";

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
    /// What was not copied.
    counters: Arc<GuestCounters>,
    /// A registration that is not wanted any more, and has not ended.
    given_up: Option<Registering>,
    /// When the registration under way began (ns).
    began: u64,
    /// No other one begins before (ns).
    rests_until: u64,
    /// Why nothing is lent.
    why: Why,
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
    /// Whether this is about the guest of a port already.
    pub(super) fn has(&self, port: PortIndex) -> bool {
        self.loans.contains_key(&port)
    }

    /// Does what is due at `now` (ns) for the vNICs with zero copy at the ports `wanted`.
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
        // Nothing would use what is registered.
        let can = device.pieces() > 1;
        for port in wanted {
            let loan = self.loans.entry(*port).or_default();
            let before = (loan.lent.is_some(), loan.why.clone());
            let offer = if can { guests.offer(*port) } else { Err(Why::lasting(ONE_PIECE)) };
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

    /// Returns what the link may use.
    pub(super) fn lent(&self) -> Vec<Arc<GuestRegions>> {
        self.loans.values().filter_map(|loan| loan.lent.clone()).collect()
    }

    /// Returns what is lent of a port's guest.
    pub(super) fn lent_to(&self, port: PortIndex) -> Option<&Arc<GuestRegions>> {
        self.loans.get(&port)?.lent.as_ref()
    }

    /// Returns what is counted of a vNIC with zero copy.
    pub(super) fn counters(&self, port: PortIndex) -> Option<&Arc<GuestCounters>> {
        Some(&self.loans.get(&port)?.counters)
    }

    /// Returns the state of a vNIC with zero copy, but for its landing and what is counted.
    pub(super) fn status(&self, port: PortIndex) -> ZeroCopyStatus {
        let Some(loan) = self.loans.get(&port) else {
            // Which is told as such.
            let copied_because = Some("it has no queue pair".into());
            return ZeroCopyStatus { copied_because, is_temporary: true, ..ZeroCopyStatus::default() };
        };
        let is_copied = loan.lent.is_none();
        let registered = match &loan.state {
            State::Pinned(pinned) => pinned.registered.bytes(),
            _ => 0,
        };
        let Why { text, is_temporary } = &loan.why;
        ZeroCopyStatus {
            copied_because: is_copied.then(|| text.clone().into_owned()),
            is_temporary: is_copied && *is_temporary,
            registered,
            ..ZeroCopyStatus::default()
        }
    }
}

impl Loan {
    /// Looks whether memory that is registered has holes now.
    fn find_holes(&mut self, port: PortIndex, offer: &Result<Offer, Why>, now: u64) -> bool {
        let State::Pinned(pinned) = &self.state else { return false };
        // Memory that is being replaced is not looked at.
        let is_offered = offer.as_ref().is_ok_and(|offer| offer.is_same(&pinned.memory));
        let found = is_offered && pinned.has_holes();
        if found {
            let memory = pinned.memory.clone();
            self.end(State::Refused(memory, HOLES), Why::lasting(HOLES), now);
            tracing::warn!(port, "frames are copied: {HOLES}");
        }
        found
    }

    fn step(
        &mut self,
        port: PortIndex,
        offer: Result<Offer, Why>,
        guests: &Arc<Guests>,
        device: &Arc<Device>,
        now: u64,
    ) {
        if self.given_up.take_if(|registering| registering.look().is_some()).is_some() {
            self.rest(now);
        }
        let offer = match (offer, &mut self.state) {
            (Ok(offer), _) => offer,
            // The same memory may come back.
            (Err(why), State::Refused(..)) => {
                self.why = why;
                return;
            }
            (Err(why), _) => return self.end(State::None, why, now),
        };
        if self.memory().is_some_and(|memory| !offer.is_same(memory)) {
            self.end(State::None, Why::for_now("the front end has other memory"), now);
        }
        if offer.is_held && self.lent.take().is_some() {
            self.ends.note(now);
            self.why = Why::for_now(
                "the front end changed its rings or memory, and the device gets that again after a pause",
            );
        }
        if let State::Registering(registering) = &self.state
            && let Some(outcome) = registering.look()
        {
            let memory = registering.memory.clone();
            self.rest(now);
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
                    self.why = Why::lasting(why);
                    if is_for_good { State::Refused(memory, NOT_WHOLE) } else { State::None }
                }
            };
        }
        if let State::Refused(_, why) = &self.state {
            self.why = Why::lasting(*why);
        }
        if offer.is_held || !self.ends.are_over(now) {
            return;
        }
        match &self.state {
            State::None if self.given_up.is_none() && now >= self.rests_until => {
                let memory = offer.memory.clone();
                let Some(of) = guests.begin(port, &memory, Kind::Registering) else {
                    self.why = match guests.is_stuck(port) {
                        true => Why::lasting(NOT_DONE),
                        false => Why::for_now("former memory of the guest is still registered"),
                    };
                    return;
                };
                self.ends.tried(now);
                self.began = now;
                self.why = Why::for_now("the device is registering the guest's memory");
                self.state = State::Registering(Registering::begin(device, port, offer, of));
            }
            State::Pinned(pinned) if self.lent.is_none() => {
                let Some(of) = guests.begin(port, &pinned.memory, Kind::Lent) else {
                    self.why = Why::lasting(NOT_DONE);
                    return;
                };
                self.ends.tried(now);
                self.why = Why::default();
                let regions = GuestRegions::in_use(port, pinned.registered.clone(), of);
                self.lent = Some(Arc::new(regions.counting(&self.counters)));
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

    /// Lets no registration begin for a while, since one ended at `now` (ns).
    fn rest(&mut self, now: u64) {
        self.rests_until = now + REST * now.saturating_sub(self.began);
    }

    /// Ends the loan and the registration.
    fn end(&mut self, state: State, why: Why, now: u64) {
        let before = std::mem::replace(&mut self.state, state);
        if self.lent.take().is_some() || matches!(before, State::Registering(_) | State::Pinned(_)) {
            self.ends.note(now);
        }
        if let State::Registering(registering) = before {
            // It costs as much as one that is wanted.
            registering.give_up();
            self.given_up = Some(registering);
        }
        self.why = why;
    }

    /// Logs the state, `was_lent` before.
    fn tell(&self, port: PortIndex, was_lent: bool) {
        match (was_lent, self.lent.is_some()) {
            (false, true) => tracing::info!(port, "the device uses the guest's memory"),
            (true, false) => tracing::info!(port, "frames are copied: {}", self.why.text),
            _ => tracing::debug!(port, "frames are copied: {}", self.why.text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vhost_user::errands::Errands;
    use crate::virtio::memory::RegionSpec;
    use std::time::{Duration, Instant};
    use tidegate_frontend::memory::SharedMemory;
    use tidegate_verbs::simulated::{self, Fabric};

    const PORT: PortIndex = 3;
    const SECOND: u64 = 1_000_000_000;

    struct Scene {
        lending: Lending,
        guests: Arc<Guests>,
        device: simulated::Device,
        open: Arc<Device>,
        errands: Errands,
        memory: Option<Arc<GuestMemory>>,
    }

    impl Scene {
        fn new() -> Self {
            let device = simulated::Device::new(&Fabric::new(), "sim0", &[[127, 0, 0, 1].into()]);
            let open = Device::simulated(&device);
            let guests = Guests::new(None);
            guests.set_running(PORT, 1, true);
            let lending = Lending::default();
            Self { lending, guests, device, open, errands: Errands::new("a"), memory: None }
        }

        /// Gives the guest other memory, as its port's thread does.
        fn share(&mut self) {
            let shared = SharedMemory::new(0, 4096).unwrap();
            shared.preallocate().unwrap();
            let [fd, file] = [(); 2].map(|()| shared.fd().try_clone_to_owned().unwrap());
            let spec = RegionSpec { guest_addr: 0, user_addr: 0, size: 4096, mmap_offset: 0, fd };
            let memory = Arc::new(GuestMemory::map(vec![spec]).unwrap().with_files([file]));
            self.guests.set_memory(PORT, &memory, &self.errands);
            self.memory = Some(memory);
        }

        fn step(&mut self, now: u64) -> Change {
            self.lending.step(&BTreeSet::from([PORT]), &self.guests, &self.open, now)
        }

        fn is_registering(&self) -> bool {
            matches!(self.lending.loans[&PORT].state, State::Registering(_))
        }

        /// Steps at `now` until a registration under way has ended. Returns whether the memory is lent.
        fn settle(&mut self, now: u64) -> bool {
            self.step(now);
            self.until(|scene| {
                scene.step(now);
                !scene.is_registering()
            });
            !self.lending.lent().is_empty()
        }

        #[track_caller]
        fn until(&mut self, mut done: impl FnMut(&mut Self) -> bool) {
            let end = Instant::now() + Duration::from_secs(20);
            while !done(self) {
                assert!(Instant::now() < end, "{:?}", self.lending);
                std::thread::sleep(Duration::from_micros(100));
            }
        }
    }

    #[test]
    fn a_device_that_takes_one_piece_gets_no_memory() {
        let mut scene = Scene::new();
        scene.device.set_pieces(1);
        scene.share();
        assert!(!scene.settle(SECOND));
        let status = scene.lending.status(PORT);
        assert!(status.copied_because.is_some_and(|why| why.contains("max_sge = 1")) && !status.is_temporary);
        assert_eq!(scene.device.foreign(), 0);
        scene.device.set_pieces(2);
        assert!(scene.settle(2 * SECOND));
    }

    /// One that is not wanted any more has taken the kernel's time all the same.
    #[test]
    fn a_registration_that_was_given_up_is_followed_by_its_pause() {
        let mut scene = Scene::new();
        scene.device.pin_slowly(true);
        scene.share();
        scene.step(SECOND);
        assert!(scene.is_registering());
        // Other memory after 100 s; the former one's thread ends after 150 s.
        scene.share();
        scene.step(101 * SECOND);
        assert!(!scene.is_registering());
        scene.step(140 * SECOND);
        assert!(!scene.is_registering(), "no second thread beside it");
        scene.device.pin_slowly(false);
        let memory = scene.memory.as_ref().map(Arc::downgrade).unwrap();
        scene.until(|scene| scene.guests.begin(PORT, &memory, Kind::Registering).is_some());
        scene.until(|scene| {
            scene.step(151 * SECOND);
            assert!(!scene.is_registering(), "it rests first");
            scene.lending.loans[&PORT].given_up.is_none()
        });
        scene.step(600 * SECOND);
        assert!(!scene.is_registering() && scene.lending.lent().is_empty(), "it rests for 450 s");
        scene.until(|scene| {
            scene.step(602 * SECOND);
            !scene.lending.lent().is_empty()
        });
    }

    #[test]
    fn memory_that_changes_in_a_loop_is_lent_seldom() {
        let mut scene = Scene::new();
        let (mut lent, mut ms) = (0, 0);
        // Ten times a second for a minute.
        while ms < 60_000 {
            scene.share();
            let now = ms * SECOND / 1000;
            scene.step(now);
            // The former memory is deregistered by another thread.
            scene.until(|scene| scene.device.foreign() == 0 || scene.is_registering());
            lent += u64::from(scene.settle(now));
            ms += 100;
        }
        assert!((8..20).contains(&lent), "{lent} times");
        // Once it stops, it is lent within the longest pause, and stays.
        ms += 10_000;
        assert!(scene.settle(ms * SECOND / 1000));
        assert!(!scene.step((ms + 100_000) * SECOND / 1000).lends_others);
    }

    #[test]
    fn a_registration_that_took_long_is_followed_by_a_pause() {
        let mut scene = Scene::new();
        scene.device.pin_slowly(true);
        scene.share();
        scene.step(0);
        assert!(scene.is_registering());
        scene.step(20 * SECOND);
        assert!(scene.is_registering());
        scene.device.pin_slowly(false);
        assert!(scene.settle(20 * SECOND));
        scene.share();
        let change = scene.step(21 * SECOND);
        assert!(change.lends_others && scene.lending.lent().is_empty());
        scene.until(|scene| scene.device.foreign() == 0);
        assert!(!scene.settle(79 * SECOND), "three times as long");
        scene.until(|scene| scene.settle(80 * SECOND));
    }

    #[test]
    fn a_port_without_a_queue_pair_gives_all_back() {
        let mut scene = Scene::new();
        scene.share();
        assert!(scene.settle(0));
        assert_eq!(
            scene.lending.status(PORT),
            ZeroCopyStatus { registered: 4096, ..ZeroCopyStatus::default() }
        );
        let change = scene.lending.step(&BTreeSet::new(), &scene.guests, &scene.open, SECOND);
        assert_eq!(change, Change { lends_others: true, is_news: true, holes: 0 });
        scene.until(|scene| scene.device.foreign() == 0);
        let why = scene.lending.status(PORT).copied_because.unwrap();
        assert!(why.contains("queue pair"), "{why}");
    }

    #[test]
    fn what_is_under_way_when_a_ring_ends_is_waited_for() {
        let mut scene = Scene::new();
        scene.share();
        assert!(scene.settle(0));
        let guests = scene.guests.clone();
        std::thread::scope(|scope| {
            let under_way = scene.lending.lent();
            let waiter = scope.spawn(|| drop(guests.hold(PORT, super::super::Kind::Lent, || ())));
            scene.until(|scene| {
                scene.step(SECOND);
                scene.lending.lent().is_empty()
            });
            std::thread::sleep(Duration::from_millis(20));
            assert!(!waiter.is_finished(), "the device still has it");
            assert_eq!(scene.device.foreign(), 4096);
            drop(under_way);
            waiter.join().unwrap();
        });
        // The ring begins again: the same registration.
        assert!(scene.settle(2 * SECOND));
    }
}
