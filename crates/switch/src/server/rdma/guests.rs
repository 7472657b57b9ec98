//! Guests' memory that a device may read: what front ends have, and who uses it.
//!
//! ```text
//!  a port's thread: memory, rings, log ─▶ Guest ── offer ─▶ thread `rdma`: registers it, lends it to a link
//!      │ hold: no new use                   ▲                  │
//!      └───── waits, at most 2 s ───────────┴── Use dropped ◀──┘ the device is done
//! ```
//!
//! A port's thread changes what the guest or its front end relies on (memory, rings, log) only while it holds the memory: then no
//! device uses that. What a front end does costs no other thread more than a lock for a moment.

use crate::fdb::PortIndex;
use crate::vhost_user::errands::Errands;
use crate::virtio::GuestMemory;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// Longest wait until no device uses a guest's memory. A device that is not done by then is [stuck](super::turn).
const PATIENCE: Duration = Duration::from_secs(2);

/// The guests of all ports.
#[derive(Debug, Default)]
pub(in crate::server) struct Guests {
    guests: Mutex<BTreeMap<PortIndex, Guest>>,
    changed: Condvar,
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
    /// A wait for their end was in vain.
    is_stuck: bool,
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
            let Guest { is_held, uses, is_stuck, .. } = *guest;
            *guest = Guest { is_held, uses, is_stuck, ..Guest::default() };
        });
    }

    /// Ends the uses of a port's memory as [`Kind::Lent`], and with [`Kind::Registered`] the memory's registration as well, and
    /// waits for it, at most two seconds: `hurry` has the thread `rdma` look at once. None begins until the result is dropped.
    pub(in crate::server) fn hold(&self, port: PortIndex, kind: Kind, hurry: impl FnOnce()) -> Held<'_> {
        let held = Held { guests: self, port };
        let is_used = move |guest: &Guest| guest.uses[..=kind as usize].iter().any(|uses| *uses > 0);
        let mut guests = self.lock();
        let guest = guests.entry(port).or_default();
        guest.is_held = true;
        if kind == Kind::Registered {
            guest.offer = None;
        }
        // Once is enough: it would be in vain again.
        if !is_used(guest) || guest.is_stuck {
            return held;
        }
        hurry();
        let waits = |guests: &mut BTreeMap<PortIndex, Guest>| guests.get(&port).is_some_and(is_used);
        let waited = self.changed.wait_timeout_while(guests, PATIENCE, waits);
        let (mut guests, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out()
            && let Some(guest) = guests.get_mut(&port)
        {
            guest.is_stuck = true;
            tracing::warn!(
                port,
                "a guest's memory is still with an RDMA device after {PATIENCE:?}: its front end goes on without"
            );
        }
        held
    }

    /// Returns the memory that a port's guest has for a device.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) fn offer(&self, port: PortIndex) -> Result<Offer, &'static str> {
        let guests = self.lock();
        let Some((guest, offer)) = guests.get(&port).and_then(|guest| Some((guest, guest.offer.as_ref()?)))
        else {
            return Err("no front end has shared its guest's memory");
        };
        if guest.running.is_empty() {
            return Err("no queue of the guest's driver runs");
        }
        if guest.is_logged {
            return Err("the guest is migrating");
        }
        if guest.is_in_order {
            return Err(
                "the front end negotiated VIRTIO_F_IN_ORDER before the contract had zero-copy: connect it anew",
            );
        }
        Ok(Offer { is_held: guest.is_held, ..offer.clone() })
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
        if !is_offered || guest.is_held || others.iter().any(|uses| *uses > 0) {
            return None;
        }
        guest.uses[kind as usize] += 1;
        drop(guests);
        Some(Use { guests: self.clone(), port, kind })
    }
}

impl Use {
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
            guest.is_stuck &= guest.uses != [0; 3];
        });
        self.guests.changed.notify_all();
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.guests.change(self.port, |guest| guest.is_held = false);
    }
}
