//! The thread that makes queue pairs.
//!
//! ```text
//!  table or members changed ─ ring ─▶ turn ─▶ Wished of each uplink ─▶ Making ─▶ its link's worker, look of notices
//!  each 0.2 s, for failures ─────────┘                            └▶ each 2 s: devices that offer more ─▶ uplink made anew
//! ```

use super::anew::Anew;
use super::devices::Devices;
use super::guests::{Guests, Held, Kind};
use super::making::Making;
use super::wanted::Wished;
use crate::clock::clock;
use crate::fdb::PortIndex;
use crate::hosts::notices::Heard;
use crate::link::rdma::Tables;
use crate::server::Switch;
use crate::server::uplink::UplinkEntry;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tidegate_service::housekeeping;

/// Time between two looks at queue pairs.
const PAUSE: Duration = Duration::from_millis(200);
/// The same while a device completes what was sent by former tables.
const SHORT_PAUSE: Duration = Duration::from_millis(1);
/// Longest wait for the device of a link that goes, which brings sends to an end in microseconds if it works.
const END: Duration = Duration::from_millis(100);
/// Pause between two looks meanwhile.
const LOOK: Duration = Duration::from_micros(50);

/// The devices, and what the thread has to know.
#[derive(Default)]
pub struct Rdma {
    /// The devices.
    pub devices: Devices,
    /// Guests' memory that they may use.
    pub(in crate::server) guests: Arc<Guests>,
    state: Mutex<State>,
    bell: Condvar,
}

#[derive(Default)]
struct State {
    /// What peers announced.
    heard: Vec<Heard>,
    /// Something changed since the last turn.
    rung: bool,
    /// Another thread waits for the device.
    hurried: bool,
}

impl Rdma {
    /// Returns that of a switch with these devices.
    pub fn new(devices: Devices) -> Self {
        Self { guests: Guests::new(devices.lockable), devices, ..Self::default() }
    }

    /// Sets what peers announced.
    pub(in crate::server) fn set_heard(&self, heard: Vec<Heard>) {
        self.state().heard = heard;
        self.ring();
    }

    /// Makes the thread look at the table of ports.
    pub(in crate::server) fn ring(&self) {
        self.state().rung = true;
        self.bell.notify_one();
    }

    /// Takes the memory of a port's guest back from links, and with [`Kind::Registered`] from the device as well. Waits for it, at
    /// most two seconds; no link has it until the result is dropped. For the port's thread.
    pub(in crate::server) fn hold(&self, port: PortIndex, kind: Kind) -> Held<'_> {
        self.guests.hold(port, kind, || self.hurry())
    }

    /// Takes the memory of all guests back from links, since another process takes over the guests' rings: no device reads a frame out of
    /// it, and none writes there. Waits for it, at most two seconds; no link has it until it is [released](Self::release_all).
    ///
    /// # Errors
    /// The ports of guests whose memory a device does not give back.
    pub(in crate::server) fn hold_all(&self) -> Result<(), Vec<PortIndex>> {
        self.guests.hold_all(|| self.hurry())
    }

    /// Lets links have guests' memory again.
    pub(in crate::server) fn release_all(&self) {
        self.guests.release_all();
    }

    /// Has the thread look at once: another one waits for the device.
    fn hurry(&self) {
        self.state().hurried = true;
        self.bell.notify_one();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a change, at most `pause`. Returns what peers announced if there was a change.
    fn wait(&self, pause: Option<Duration>) -> Option<Vec<Heard>> {
        let state = self.state();
        let waits = |state: &mut State| !state.rung && !state.hurried;
        let mut state = match pause {
            Some(pause) => {
                let woken = self.bell.wait_timeout_while(state, pause, waits);
                woken.unwrap_or_else(PoisonError::into_inner).0
            }
            None => self.bell.wait_while(state, waits).unwrap_or_else(PoisonError::into_inner),
        };
        state.hurried = false;
        std::mem::take(&mut state.rung).then(|| state.heard.clone())
    }
}

/// What links have.
#[derive(Default)]
struct Makings {
    /// By their uplinks.
    there: BTreeMap<String, Making>,
    /// Of links that are being removed: the device may not be done yet.
    leaving: Vec<Making>,
}

/// Starts the thread, if a device is open.
///
/// # Errors
/// The thread cannot start.
pub(in crate::server) fn spawn(switch: &Arc<Switch>) -> io::Result<()> {
    if !switch.rdma.devices.is_any_open() {
        return Ok(());
    }
    let switch = switch.clone();
    let work = move || {
        let (mut wished, mut makings, mut anew, mut pause) =
            (vec![], Makings::default(), Anew::default(), None);
        loop {
            let heard = switch.rdma.wait(pause);
            if let Some(heard) = &heard {
                let table = switch.lock();
                wished = Wished::all(&table, heard);
                anew.set(&table);
            }
            housekeeping::follow();
            let next = switch.make(&wished, heard.is_some(), &mut makings);
            pause = next.into_iter().chain(switch.look_for_more(&mut anew, clock())).min();
        }
    };
    std::thread::Builder::new().name("rdma".into()).spawn(work).map(drop)
}

impl Switch {
    /// Brings the links of uplinks to what is wished (`is_new`: other than before), and returns the pause until the next turn; `None`
    /// if nothing is wished. A turn makes the address handles of one host at most: the other work waits no longer for hosts that
    /// do not answer.
    fn make(
        &self,
        wished: &[Wished],
        is_new: bool,
        Makings { there: makings, leaving }: &mut Makings,
    ) -> Option<Duration> {
        let is_there = |(name, making): &(String, Making)| {
            wished.iter().any(|wished| wished.name == *name && Arc::ptr_eq(&wished.lane, &making.lane))
        };
        makings.values().for_each(Making::end_failed);
        let gone: BTreeMap<_, _>;
        (*makings, gone) = std::mem::take(makings).into_iter().partition(is_there);
        leaving.extend(gone.into_values());
        leaving.retain_mut(|making| {
            self.end_landings(making, true);
            if making.landings.count() > 0 {
                // The device is to be done with them, whatever the link still sends.
                making.leave();
            }
            // Asked in any case: it frees what retired, which may have the queue pairs of landings.
            let has_left = making.has_left(clock());
            making.landings.count() > 0 && !making.lane.is_stuck() || !has_left
        });
        let (mut changed, mut pause) = (false, PAUSE);
        for wished in wished {
            let new = || Making::new(wished.lane.clone(), self.rdma.guests.clone());
            let making = makings.entry(wished.name.clone()).or_insert_with(new);
            self.end_landings(making, false);
            let is_settled = making.is_settled(clock());
            if let Some(why) = wished.lane.broken() {
                self.tell_broken(wished, why);
            } else if !is_settled {
                pause = SHORT_PAUSE;
            }
            if !is_settled {
                making.put_off(is_new);
                continue;
            }
            match making.step(wished, is_new, clock()) {
                Some(tables) => {
                    if let Some(former) = self.put_in_force(wished, &tables) {
                        making.retire(former, &tables, clock());
                        pause = SHORT_PAUSE;
                    }
                }
                None => self.begin_landings(wished, making),
            }
            if making.landings.are_ending() && !making.lane.is_stuck() {
                pause = SHORT_PAUSE;
            }
            // A peer may send as soon as it is told: the link knows the queue pair by then.
            changed |= making.show(wished);
        }
        if changed {
            self.notices.look();
        }
        if !leaving.is_empty() {
            return Some(SHORT_PAUSE);
        }
        if pause == SHORT_PAUSE {
            // Ports' threads may wait for what retires, and a host may take a second to answer.
            return Some(pause);
        }
        let now = clock();
        let due = |making: &&mut Making| making.handles_due().filter(|due| *due <= now);
        if let Some(making) = makings.values_mut().filter(|making| due(making).is_some()).min_by_key(due) {
            making.make_handles(now);
            pause = Duration::ZERO;
        }
        (!wished.is_empty()).then_some(pause)
    }

    /// Has the agent make an uplink anew.
    fn tell_broken(&self, wished: &Wished, why: &str) {
        let mut table = self.lock();
        let Some(entry) = table.uplinks.get_mut(&wished.name).filter(|entry| wished.is_of(entry)) else {
            return;
        };
        if entry.broken.is_none() {
            tracing::error!(uplink = wished.name, device = wished.lane.device, "{why}");
            entry.broken = Some(why.into());
        }
    }

    /// Ends what the device has of an uplink whose link is about to go, so that it reads no buffer that a guest has back. Waits for
    /// the device, for a bounded time. The result has to stay until the link is gone: queue pairs use it.
    #[must_use = "the device may use it until the link is gone"]
    pub(in crate::server) fn end_rdma(&self, entry: &UplinkEntry) -> Option<Arc<Tables>> {
        let lane = entry.rdma.as_ref()?.as_ref().ok()?;
        let (index, none) = (entry.index, Arc::new(Tables::default()));
        let former = self.workers[entry.worker].call_on(index, move |worker| worker.set_rdma(index, none))?;
        // A device that is gone reads nothing.
        former.pairs().iter().for_each(|pair| drop(pair.fail()));
        let end = Instant::now() + END;
        while lane.setup.counters.replaced.get() > 0 && Instant::now() < end {
            std::thread::sleep(LOOK);
        }
        Some(former)
    }

    /// Gives a link its tables, and returns the former ones.
    fn put_in_force(&self, wished: &Wished, tables: &Arc<Tables>) -> Option<Arc<Tables>> {
        let table = self.lock();
        let entry = table.uplinks.get(&wished.name).filter(|entry| wished.is_of(entry))?;
        let (index, new) = (entry.index, tables.clone());
        self.workers[entry.worker].call_on(index, move |worker| worker.set_rdma(index, new))
    }
}
