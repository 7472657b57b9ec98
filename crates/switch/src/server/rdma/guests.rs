//! Guests' memory that a device may use: what front ends have, and who uses it.
//!
//! ```text
//!  a port's thread: memory, rings, log ─▶ Guest ── offer ─▶ thread `rdma`: registers it, lends it to a link
//!      │ hold: no new use                   ▲                  │
//!      └───── waits, at most 2 s ───────────┴── Use dropped ◀──┘ the device is done
//! ```
//!
//! A port's thread changes what the guest or its front end relies on (memory, rings, log) only while it holds the memory: then no
//! device uses that. A link, or a part of it that has requests under way, uses it as long as it has the
//! [`GuestRegions`](crate::link::rdma::GuestRegions). What a front end does costs no other thread more than a lock for a moment.

use super::locked::{Budget, Locked};
use crate::fdb::PortIndex;
use crate::vhost_user::errands::Errands;
use crate::virtio::GuestMemory;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// Longest wait until no device uses a guest's memory. A device that is not done by then is [stuck](super::turn).
const PATIENCE: Duration = Duration::from_secs(2);

/// The guests of all ports.
#[derive(Debug, Default)]
pub(in crate::server) struct Guests {
    guests: Mutex<BTreeMap<PortIndex, Guest>>,
    changed: Condvar,
    /// How many threads hold all guests' memory: then no link may begin to use any. Read under the lock.
    holds: AtomicUsize,
    /// Locked memory that they may have.
    budget: Arc<Budget>,
}

/// What a port's front end has.
#[derive(Debug, Default)]
struct Guest {
    offer: Option<Offer>,
    /// Its rings that run.
    running: BTreeSet<u16>,
    /// Written pages are noted: its guest migrates.
    is_logged: bool,
    /// It negotiated IN_ORDER.
    is_in_order: bool,
    is_held: bool,
    /// Uses of each [kind](Kind) that have not ended.
    uses: [usize; 3],
    /// A wait for the end of uses up to this kind was in vain, and some of them have not ended yet.
    stuck: Option<Kind>,
}

impl Guest {
    /// Whether a use up to this kind has not ended.
    fn is_used(&self, kind: Kind) -> bool {
        self.uses[..=kind as usize].iter().any(|uses| *uses > 0)
    }
}

/// Why no device has a guest's memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Why {
    pub(super) text: Cow<'static, str>,
    /// It goes by itself.
    pub(super) is_temporary: bool,
}

impl Why {
    /// Returns a reason that goes by itself.
    pub(super) const fn for_now(text: &'static str) -> Self {
        Self { text: Cow::Borrowed(text), is_temporary: true }
    }

    /// Returns a reason that stays until something is done.
    pub(super) fn lasting(text: impl Into<Cow<'static, str>>) -> Self {
        Self { text: text.into(), is_temporary: false }
    }
}

/// A guest's memory.
#[derive(Clone, Debug)]
pub(super) struct Offer {
    /// Weak: its front end's port unmaps it as it does without RDMA.
    pub(super) memory: Weak<GuestMemory>,
    /// Do what takes long.
    pub(super) errands: Errands,
    /// No link may begin to use it now.
    pub(super) is_held: bool,
}

impl Offer {
    /// Whether both are the same memory table.
    pub(super) fn is_same(&self, memory: &Weak<GuestMemory>) -> bool {
        self.memory.ptr_eq(memory)
    }
}

/// How memory is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) enum Kind {
    /// A link sends from it.
    Lent = 0,
    /// A device has it registered.
    Registered = 1,
    /// It is being registered. No thread waits for the end of that: no link has the result.
    Registering = 2,
}

/// One use of a port's memory. Its drop ends that.
#[derive(Debug)]
pub(super) struct Use {
    guests: Arc<Guests>,
    port: PortIndex,
    kind: Kind,
}

/// Keeps links from a port's memory.
pub(in crate::server) struct Held<'a> {
    guests: &'a Guests,
    port: PortIndex,
}

impl Guests {
    /// Returns no guests, of a process that may lock so many bytes of memory.
    pub(super) fn new(lockable: Option<u64>) -> Arc<Self> {
        Arc::new(Self { budget: Budget::new(lockable), ..Self::default() })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<PortIndex, Guest>> {
        self.guests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, port: PortIndex, change: impl FnOnce(&mut Guest)) {
        change(self.lock().entry(port).or_default());
    }

    /// Notes that a port's front end has shared this memory.
    pub(in crate::server) fn set_memory(
        &self,
        port: PortIndex,
        memory: &Arc<GuestMemory>,
        errands: &Errands,
    ) {
        let offer = Offer { memory: Arc::downgrade(memory), errands: errands.clone(), is_held: false };
        self.change(port, |guest| guest.offer = Some(offer));
    }

    /// Notes that a ring runs, or does not.
    pub(in crate::server) fn set_running(&self, port: PortIndex, ring: u16, runs: bool) {
        self.change(port, |guest| {
            match runs {
                true => guest.running.insert(ring),
                false => guest.running.remove(&ring),
            };
        });
    }

    /// Notes whether written pages are noted.
    pub(in crate::server) fn set_logged(&self, port: PortIndex, is_logged: bool) {
        self.change(port, |guest| guest.is_logged = is_logged);
    }

    /// Notes whether IN_ORDER was negotiated.
    pub(in crate::server) fn set_in_order(&self, port: PortIndex, is_in_order: bool) {
        self.change(port, |guest| guest.is_in_order = is_in_order);
    }

    /// Notes that a port's front end is gone.
    pub(in crate::server) fn leave(&self, port: PortIndex) {
        self.change(port, |guest| {
            let Guest { is_held, uses, stuck, .. } = *guest;
            *guest = Guest { is_held, uses, stuck, ..Guest::default() };
        });
    }

    /// Ends the uses of a port's memory as [`Kind::Lent`], and with [`Kind::Registered`] the memory's registration as well, and
    /// waits for it, at most two seconds: `hurry` has the thread `rdma` look at once. None begins until the result is dropped.
    pub(in crate::server) fn hold(&self, port: PortIndex, kind: Kind, hurry: impl FnOnce()) -> Held<'_> {
        let held = Held { guests: self, port };
        let mut guests = self.lock();
        let guest = guests.entry(port).or_default();
        guest.is_held = true;
        if kind == Kind::Registered {
            guest.offer = None;
        }
        // Once is enough: it would be in vain again.
        if !guest.is_used(kind) || guest.stuck.is_some() {
            return held;
        }
        hurry();
        let waits = |guests: &mut BTreeMap<PortIndex, Guest>| {
            guests.get(&port).is_some_and(|guest| guest.is_used(kind))
        };
        let waited = self.changed.wait_timeout_while(guests, PATIENCE, waits);
        let (mut guests, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out()
            && let Some(guest) = guests.get_mut(&port)
        {
            guest.stuck = Some(kind);
            tracing::warn!(
                port,
                "a guest's memory is still with an RDMA device after {PATIENCE:?}: its front end goes on without"
            );
        }
        held
    }

    /// Ends the uses of all guests' memory as [`Kind::Lent`], and waits for it, at most two seconds: `hurry` has the thread `rdma` look
    /// at once. None begins until all are [released](Self::release_all), as often as they were held.
    ///
    /// # Errors
    /// The ports whose guests' memory is still used; this hold is released.
    pub(super) fn hold_all(&self, hurry: impl FnOnce()) -> Result<(), Vec<PortIndex>> {
        self.holds.fetch_add(1, Ordering::Relaxed);
        hurry();
        let is_lent = |guest: &Guest| guest.is_used(Kind::Lent);
        // A device that was waited for in vain is not waited for again.
        let waits = |guests: &mut BTreeMap<PortIndex, Guest>| {
            guests.values().any(|guest| is_lent(guest) && guest.stuck.is_none())
        };
        let waited = self.changed.wait_timeout_while(self.lock(), PATIENCE, waits);
        let guests = waited.unwrap_or_else(PoisonError::into_inner).0;
        let lent: Vec<_> = guests.iter().filter(|(_, guest)| is_lent(guest)).map(|(port, _)| *port).collect();
        drop(guests);
        if lent.is_empty() {
            return Ok(());
        }
        self.release_all();
        Err(lent)
    }

    /// Ends one [hold](Self::hold_all) of all guests' memory: after the last one, links may use it again.
    pub(super) fn release_all(&self) {
        self.holds.fetch_sub(1, Ordering::Relaxed);
    }

    fn are_all_held(&self) -> bool {
        self.holds.load(Ordering::Relaxed) > 0
    }

    /// Whether a device was waited for in vain, and is not done with former memory of a port's guest yet.
    pub(super) fn is_stuck(&self, port: PortIndex) -> bool {
        self.lock().get(&port).is_some_and(|guest| guest.stuck.is_some())
    }

    /// Returns the memory that a port's guest has for a device.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) fn offer(&self, port: PortIndex) -> Result<Offer, Why> {
        let guests = self.lock();
        let Some((guest, offer)) = guests.get(&port).and_then(|guest| Some((guest, guest.offer.as_ref()?)))
        else {
            return Err(Why::for_now("no front end has shared its guest's memory"));
        };
        if guest.running.is_empty() {
            return Err(Why::for_now("no queue of the guest's driver runs"));
        }
        if guest.is_logged {
            return Err(Why::for_now("the guest is migrating"));
        }
        if guest.is_in_order {
            return Err(Why::lasting(
                "the guest's driver negotiated VIRTIO_F_IN_ORDER before the contract had zero-copy: restart the VM, or load the driver anew",
            ));
        }
        Ok(Offer { is_held: guest.is_held || self.are_all_held(), ..offer.clone() })
    }

    /// Begins a use of memory that was [offered](Self::offer); `None` if it may not begin now.
    pub(super) fn begin(
        self: &Arc<Self>,
        port: PortIndex,
        memory: &Weak<GuestMemory>,
        kind: Kind,
    ) -> Option<Use> {
        let mut guests = self.lock();
        let guest = guests.get_mut(&port)?;
        let is_offered = guest.offer.as_ref().is_some_and(|offer| offer.is_same(memory));
        // While a device is not done with former memory, it gets no other: so no front end makes it keep more and more.
        let others = if kind == Kind::Lent { &guest.uses[..1] } else { &guest.uses[1..] };
        let is_held = guest.is_held || self.are_all_held();
        if !is_offered || is_held || others.iter().any(|uses| *uses > 0) {
            return None;
        }
        guest.uses[kind as usize] += 1;
        drop(guests);
        Some(Use { guests: self.clone(), port, kind })
    }
}

impl Use {
    /// Takes `bytes` of locked memory.
    ///
    /// # Errors
    /// Guests would have too much: the limit.
    pub(super) fn take_locked(&self, bytes: u64) -> Result<Locked, u64> {
        self.guests.budget.take(bytes)
    }

    /// Notes that `memory` is registered now. `false` if its front end has it no more: it is to be deregistered.
    pub(super) fn is_registered(&mut self, memory: &Weak<GuestMemory>) -> bool {
        let mut guests = self.guests.lock();
        let Some(guest) = guests.get_mut(&self.port) else { return false };
        let is_offered = guest.offer.as_ref().is_some_and(|offer| offer.is_same(memory));
        if is_offered && self.kind == Kind::Registering {
            guest.uses[Kind::Registering as usize] -= 1;
            guest.uses[Kind::Registered as usize] += 1;
            drop(guests);
            self.kind = Kind::Registered;
        }
        is_offered
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        self.guests.change(self.port, |guest| {
            let uses = &mut guest.uses[self.kind as usize];
            *uses = uses.saturating_sub(1);
            let ended = guest.stuck.is_some_and(|kind| !guest.is_used(kind));
            guest.stuck = guest.stuck.filter(|_| !ended);
        });
        self.guests.changed.notify_all();
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.guests.change(self.port, |guest| guest.is_held = false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::virtio::memory::RegionSpec;
    use std::sync::atomic::AtomicBool;
    use tidegate_frontend::memory::SharedMemory;

    const PORT: PortIndex = 3;

    fn memory() -> Arc<GuestMemory> {
        let shared = SharedMemory::new(0, 4096).unwrap();
        let fd = shared.fd().try_clone_to_owned().unwrap();
        let spec = RegionSpec { guest_addr: 0, user_addr: 0, size: 4096, mmap_offset: 0, fd };
        Arc::new(GuestMemory::map(vec![spec]).unwrap())
    }

    fn ready(memory: &Arc<GuestMemory>) -> Arc<Guests> {
        let guests = Guests::new(None);
        guests.set_memory(PORT, memory, &Errands::new("a"));
        guests.set_running(PORT, 1, true);
        guests
    }

    #[test]
    fn a_front_end_that_changes_waits_for_the_device() {
        let memory = memory();
        let guests = ready(&memory);
        let of = guests.begin(PORT, &Arc::downgrade(&memory), Kind::Lent).unwrap();
        let (done, hurried) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let device = || {
                while !hurried.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                assert!(guests.offer(PORT).unwrap().is_held);
                std::thread::sleep(Duration::from_millis(20));
                done.store(true, Ordering::Relaxed);
                drop(of);
            };
            scope.spawn(device);
            let held = guests.hold(PORT, Kind::Lent, || hurried.store(true, Ordering::Relaxed));
            assert!(done.load(Ordering::Relaxed), "it waited");
            assert!(guests.begin(PORT, &Arc::downgrade(&memory), Kind::Lent).is_none(), "held");
            drop(held);
        });
        assert!(guests.begin(PORT, &Arc::downgrade(&memory), Kind::Lent).is_some());
        // Without a use, the thread is not asked.
        drop(guests.hold(PORT, Kind::Registered, || panic!("hurried")));
        assert!(guests.offer(PORT).unwrap_err().text.contains("no front end"));
    }

    #[test]
    fn a_registration_under_way_is_not_waited_for_and_comes_to_nothing() {
        let memory = memory();
        let guests = ready(&memory);
        let weak = Arc::downgrade(&memory);
        let mut of = guests.begin(PORT, &weak, Kind::Registering).unwrap();
        assert!(guests.begin(PORT, &weak, Kind::Registering).is_none(), "one at a time");
        drop(guests.hold(PORT, Kind::Registered, || panic!("hurried")));
        assert!(!of.is_registered(&weak), "the front end has given it up");
        guests.set_memory(PORT, &memory, &Errands::new("a"));
        assert!(guests.begin(PORT, &weak, Kind::Registering).is_none(), "the former one still runs");
        drop(of);
        let mut of = guests.begin(PORT, &weak, Kind::Registering).unwrap();
        assert!(of.is_registered(&weak));
        assert!(guests.begin(PORT, &weak, Kind::Registering).is_none(), "registered already");
    }

    #[test]
    fn a_process_that_takes_over_waits_for_all_devices_and_no_use_begins_meanwhile() {
        let memory = memory();
        let (guests, weak) = (ready(&memory), Arc::downgrade(&memory));
        let of = guests.begin(PORT, &weak, Kind::Lent).unwrap();
        let registered = guests.begin(PORT, &weak, Kind::Registering).unwrap();
        let hurried = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let device = || {
                while !hurried.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                assert!(guests.offer(PORT).unwrap().is_held);
                std::thread::sleep(Duration::from_millis(20));
                drop(of);
            };
            scope.spawn(device);
            guests.hold_all(|| hurried.store(true, Ordering::Relaxed)).unwrap();
        });
        assert!(guests.begin(PORT, &weak, Kind::Lent).is_none());
        drop(registered);
        guests.release_all();
        let of = guests.begin(PORT, &weak, Kind::Lent).unwrap();
        // A device that was waited for in vain is not waited for again.
        drop(guests.hold(PORT, Kind::Lent, || ()));
        let began = std::time::Instant::now();
        assert_eq!(guests.hold_all(|| ()), Err(vec![PORT]));
        assert!(began.elapsed() < PATIENCE);
        assert!(!guests.offer(PORT).unwrap().is_held, "it may go on");
        drop(of);
        guests.hold_all(|| ()).unwrap();
    }

    /// A device that stalled for a while, and went on, is waited for like before, though it has the same memory registered.
    #[test]
    fn a_device_that_gave_memory_back_late_is_waited_for_again() {
        let memory = memory();
        let (guests, weak) = (ready(&memory), Arc::downgrade(&memory));
        let mut registered = guests.begin(PORT, &weak, Kind::Registering).unwrap();
        assert!(registered.is_registered(&weak));
        let of = guests.begin(PORT, &weak, Kind::Lent).unwrap();
        drop(guests.hold(PORT, Kind::Lent, || ()));
        drop(guests.hold(PORT, Kind::Lent, || panic!("hurried in vain")));
        drop(of);
        let of = guests.begin(PORT, &weak, Kind::Lent).unwrap();
        let hurried = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !hurried.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                drop(of);
            });
            drop(guests.hold(PORT, Kind::Lent, || hurried.store(true, Ordering::Relaxed)));
            assert!(
                hurried.swap(true, Ordering::Relaxed),
                "a front end would go on while the device has its memory"
            );
        });
    }

    /// One that gives up, or does not get them all, leaves them to no link while another one takes over.
    #[test]
    fn two_processes_that_take_over_at_once_hold_all_until_both_let_go() {
        let memory = memory();
        let (guests, weak) = (ready(&memory), Arc::downgrade(&memory));
        guests.hold_all(|| ()).unwrap();
        guests.hold_all(|| ()).unwrap();
        guests.release_all();
        assert!(guests.offer(PORT).unwrap().is_held && guests.begin(PORT, &weak, Kind::Lent).is_none());
        guests.release_all();
        assert!(!guests.offer(PORT).unwrap().is_held && guests.begin(PORT, &weak, Kind::Lent).is_some());
    }

    #[test]
    fn why_nothing_is_offered_is_told() {
        let memory = memory();
        let guests = ready(&memory);
        let why = || guests.offer(PORT).err().unwrap_or_default().text;
        assert_eq!(why(), "");
        assert!(guests.offer(PORT + 1).is_err());
        guests.set_in_order(PORT, true);
        assert!(why().contains("IN_ORDER") && !guests.offer(PORT).unwrap_err().is_temporary);
        guests.set_logged(PORT, true);
        assert!(why().contains("migrating"));
        guests.set_running(PORT, 1, false);
        assert!(why().contains("no queue"));
        guests.leave(PORT);
        assert!(why().contains("no front end"));
        guests.set_memory(PORT, &memory, &Errands::new("a"));
        guests.set_running(PORT, 0, true);
        assert_eq!(why(), "", "the next front end begins anew");
    }
}
