//! The thread that makes queue pairs.
//!
//! ```text
//!  table or members changed ─ ring ─▶ turn ─▶ Wished of each uplink ─▶ Making ─▶ its link's worker, look of notices
//!  each 0.2 s, for failures ─────────┘
//! ```

use super::devices::Devices;
use super::making::Making;
use super::wanted::Wished;
use crate::clock::clock;
use crate::hosts::notices::Heard;
use crate::link::rdma::{Tables, retire};
use crate::server::Switch;
use crate::server::lane::BROKEN;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tidegate_service::housekeeping;

/// Time between two looks at queue pairs.
const PAUSE: Duration = Duration::from_millis(200);

/// The devices, and what the thread has to know.
#[derive(Default)]
pub struct Rdma {
    /// The devices.
    pub devices: Devices,
    state: Mutex<State>,
    bell: Condvar,
}

#[derive(Default)]
struct State {
    /// What peers announced.
    heard: Vec<Heard>,
    /// Something changed since the last turn.
    rung: bool,
}

impl Rdma {
    /// Returns that of a switch with these devices.
    pub fn new(devices: Devices) -> Self {
        Self { devices, ..Self::default() }
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

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a change, or for a while if `looks`. Returns what peers announced if there was a change.
    fn wait(&self, looks: bool) -> Option<Vec<Heard>> {
        let state = self.state();
        let waits = |state: &mut State| !state.rung;
        let mut state = if looks {
            let woken = self.bell.wait_timeout_while(state, PAUSE, waits);
            woken.unwrap_or_else(PoisonError::into_inner).0
        } else {
            self.bell.wait_while(state, waits).unwrap_or_else(PoisonError::into_inner)
        };
        std::mem::take(&mut state.rung).then(|| state.heard.clone())
    }
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
        let (mut wished, mut makings) = (vec![], BTreeMap::new());
        loop {
            if let Some(heard) = switch.rdma.wait(!makings.is_empty()) {
                wished = Wished::all(&switch.lock(), &heard);
            }
            housekeeping::follow();
            switch.make(&wished, &mut makings);
        }
    };
    std::thread::Builder::new().name("rdma".into()).spawn(work).map(drop)
}

impl Switch {
    /// Brings the links of uplinks to what is wished.
    fn make(&self, wished: &[Wished], makings: &mut BTreeMap<String, Making>) {
        let is_there = |name: &String, making: &mut Making| {
            wished.iter().any(|wished| wished.name == *name && Arc::ptr_eq(&wished.lane, &making.lane))
        };
        makings.retain(is_there);
        let mut changed = false;
        for wished in wished {
            let new = || Making::new(wished.lane.clone());
            let making = makings.entry(wished.name.clone()).or_insert_with(new);
            if wished.lane.is_broken() {
                self.tell_broken(wished);
            }
            let tables = making.step(wished, clock());
            if let Some(tables) = tables {
                self.put_in_force(wished, &tables);
            }
            // A peer may send as soon as it is told: the link knows the queue pair by then.
            changed |= making.show(wished);
        }
        if changed {
            self.notices.look();
        }
    }

    /// Has the agent make an uplink anew.
    fn tell_broken(&self, wished: &Wished) {
        let mut table = self.lock();
        let Some(entry) = table.uplinks.get_mut(&wished.name).filter(|entry| wished.is_of(entry)) else {
            return;
        };
        if entry.broken.is_none() {
            tracing::error!(uplink = wished.name, "{BROKEN}");
            entry.broken = Some(BROKEN.into());
        }
    }

    /// Gives a link its tables, and frees the former ones.
    fn put_in_force(&self, wished: &Wished, tables: &Arc<Tables>) {
        let table = self.lock();
        let entry = table.uplinks.get(&wished.name);
        let Some(entry) = entry.filter(|entry| wished.is_of(entry)) else { return };
        let (index, new) = (entry.index, tables.clone());
        let former = self.workers[entry.worker].call_on(index, move |worker| worker.set_rdma(index, new));
        drop(table);
        if let Some(former) = former
            && !retire(former, tables, &wished.lane.setup.counters)
        {
            tracing::error!(
                uplink = wished.name,
                device = wished.lane.device,
                "the device does not complete what was sent: its memory stays in use until the switch ends"
            );
        }
    }
}
