//! The connection between a port's vhost-user thread and its worker.

use super::Switch;
use super::pace::Pace;
use super::rdma::Kind;
use super::retire::DRAIN;
use crate::clock::clock;
use crate::fdb::PortIndex;
use crate::moved::Outcome;
use crate::vhost_user::errands::Errands;
use crate::vhost_user::features::F_IN_ORDER;
use crate::vhost_user::kick::Kick;
use crate::vhost_user::notifier::Call;
use crate::vhost_user::{PortControl, VringSetup};
use crate::virtio::{DirtyLog, GuestMemory};
use crate::worker::Worker;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_contract::Mac;

/// Pause between two questions whether a port is quiet.
const PAUSE: Duration = Duration::from_micros(50);

/// Applies the changes of a connection on the port's worker.
pub struct PortLink {
    /// The switch.
    pub switch: Arc<Switch>,
    /// The port.
    pub index: PortIndex,
    /// The worker that owns it.
    pub worker: usize,
    /// Whether the contract's addresses were announced since the port came up.
    pub announced: bool,
    /// Executes work that may take long.
    pub errands: Errands,
    /// Limits the workers' time that the front end's messages use.
    pub pace: Pace,
}

impl PortLink {
    /// Runs a change while no frame of this port is in flight anywhere.
    fn while_quiet<T: Send + 'static>(
        &mut self,
        change: impl FnOnce(&mut Worker) -> T + Send + 'static,
    ) -> T {
        let quieting = self.switch.quiesce_port(self.index, self.worker);
        let index = self.index;
        let change = move |worker: &mut Worker| {
            let result = worker.on_behalf(index, change);
            worker.resume(index);
            result
        };
        let (result, took) = self.switch.workers[self.worker].call(timed(change));
        self.pay(quieting + took);
        result
    }

    fn on_worker<T: Send + 'static>(&mut self, change: impl FnOnce(&mut Worker) -> T + Send + 'static) -> T {
        let index = self.index;
        let change = move |worker: &mut Worker| worker.on_behalf(index, change);
        let (result, took) = self.switch.workers[self.worker].call_on(index, timed(change));
        self.pay(took);
        result
    }

    /// Charges `took` ns of workers' time; waits if the front end has used too much.
    fn pay(&mut self, took: u64) {
        let pause = self.pace.take(took, clock());
        if pause > 0 {
            std::thread::sleep(Duration::from_nanos(pause));
        }
    }
}

/// Wraps a change so that it also returns its duration (ns).
fn timed<T>(change: impl FnOnce(&mut Worker) -> T) -> impl FnOnce(&mut Worker) -> (T, u64) {
    |worker| {
        let began = clock();
        let result = change(worker);
        (result, clock().saturating_sub(began))
    }
}

impl Switch {
    /// Pauses a port and waits until all its frames are back. Returns the busy time of the workers (ns).
    pub fn quiesce_port(&self, index: PortIndex, owner: usize) -> u64 {
        let mut took = 0;
        let mut at_owner = |change: fn(&mut Worker, PortIndex) -> bool| {
            let (done, ns) = self.workers[owner].call(timed(move |worker| change(worker, index)));
            took += ns;
            done
        };
        let mut drains = at_owner(|worker, index| {
            worker.pause(index);
            worker.drain(index)
        });
        // Frames that wait for tokens by flow may leave, for a short time.
        let end = Instant::now() + DRAIN;
        while drains && Instant::now() < end {
            std::thread::sleep(PAUSE);
            drains = at_owner(Worker::drain);
        }
        // Frames of a moving port may be at no worker.
        let still = self.nothing_moves();
        let drop_source = || timed(move |worker: &mut Worker| worker.drop_source(index));
        let dropping: u64 = self.workers.iter().map(|worker| worker.call(drop_source()).1).sum();
        drop(still);
        // Fates are still on their way; a full ring of them takes another loop.
        while !at_owner(Worker::is_quiet) {
            std::thread::sleep(PAUSE);
        }
        took + dropping
    }
}

impl PortControl for PortLink {
    fn set_features(&mut self, features: u64) {
        let index = self.index;
        self.switch.rdma.guests.set_in_order(index, features & F_IN_ORDER != 0);
        self.on_worker(move |worker| worker.set_features(index, features));
    }

    fn set_memory(&mut self, memory: Arc<GuestMemory>) -> Result<(), String> {
        let (index, preallocated, disk) = (self.index, memory.preallocated(), memory.disk());
        let (switch, new) = (self.switch.clone(), memory.clone());
        let _held = switch.rdma.hold(index, Kind::Registered);
        let before = self.while_quiet(move |worker| worker.set_memory(index, &memory))?;
        self.errands.give_up(before);
        switch.rdma.guests.set_memory(index, &new, &self.errands);
        self.switch.memory_arrived(index, preallocated, disk);
        Ok(())
    }

    fn set_log(&mut self, log: Option<DirtyLog>) {
        let (index, switch, is_logged) = (self.index, self.switch.clone(), log.is_some());
        let _held = switch.rdma.hold(index, Kind::Lent);
        let before = self.on_worker(move |worker| worker.set_log(index, log));
        self.errands.give_up(before);
        switch.rdma.guests.set_logged(index, is_logged);
    }

    fn set_used_log(&mut self, queue: u16, log: Option<u64>) {
        let index = self.index;
        self.on_worker(move |worker| worker.set_used_log(index, queue, log));
    }

    fn announce(&mut self, mac: Mac) -> bool {
        let index = self.index;
        let own = self.switch.macs_of(index).contains(&mac);
        if own {
            self.on_worker(move |worker| worker.announce(index, &[mac]));
        }
        own
    }

    fn listen(&mut self, kick: &Kick) -> Result<(), String> {
        self.listen_at(self.worker, kick)
    }

    fn listen_at(&mut self, worker: usize, kick: &Kick) -> Result<(), String> {
        let listened = self.switch.workers[worker].listen(self.index, kick);
        listened.map_err(|error| format!("the worker cannot listen to the driver's kicks: {error}"))
    }

    fn move_to(&mut self, worker: usize, kicks: Vec<(u16, Kick)>) -> Outcome {
        self.switch.relocate(self.index, worker, kicks).inspect(|_| self.worker = worker)
    }

    fn forget(&mut self, kick: &Kick) {
        // Two workers listen after the port has just moved, or failed to.
        self.switch.workers.iter().for_each(|worker| worker.forget(kick));
    }

    fn start_queue(&mut self, queue: u16, setup: VringSetup) -> Result<(), String> {
        let index = self.index;
        self.on_worker(move |worker| worker.start_queue(index, queue, setup))?;
        self.switch.rdma.guests.set_running(index, queue, true);
        Ok(())
    }

    fn stop_queue(&mut self, queue: u16) -> Option<u32> {
        let (index, switch) = (self.index, self.switch.clone());
        let _held = switch.rdma.hold(index, Kind::Lent);
        switch.rdma.guests.set_running(index, queue, false);
        let (base, notifications) = self.while_quiet(move |worker| worker.stop_queue(index, queue))?;
        if let Some(kick) = &notifications.0 {
            self.forget(kick);
        }
        self.errands.give_up(notifications);
        Some(base)
    }

    fn enable_queue(&mut self, queue: u16, enabled: bool) {
        let index = self.index;
        if enabled {
            self.on_worker(move |worker| worker.enable_queue(index, queue, true));
        } else {
            self.while_quiet(move |worker| worker.enable_queue(index, queue, false));
        }
        if enabled && queue % 2 == 1 && !std::mem::replace(&mut self.announced, true) {
            let macs = self.switch.macs_of(index);
            self.on_worker(move |worker| worker.announce(index, &macs));
            self.switch.notices.look();
        }
    }

    fn set_call(&mut self, queue: u16, call: Option<Call>) {
        let index = self.index;
        let before = self.on_worker(move |worker| worker.set_call(index, queue, call));
        self.errands.give_up(before);
    }

    fn set_kick(&mut self, queue: u16, kick: Option<Kick>) {
        let index = self.index;
        let before = self.on_worker(move |worker| worker.set_kick(index, queue, kick));
        if let Some(kick) = &before {
            self.forget(kick);
        }
        self.errands.give_up(before);
    }

    fn disconnect(&mut self, reason: &str) {
        let index = self.index;
        tracing::debug!(port = index, reason, "front end disconnected");
        let switch = self.switch.clone();
        let _held = switch.rdma.hold(index, Kind::Registered);
        switch.rdma.guests.leave(index);
        let mut before = self.while_quiet(move |worker| worker.disconnect(index));
        for kick in before.iter_mut().flat_map(|vhost| vhost.rings()).filter_map(|ring| ring.kick.as_ref()) {
            self.forget(kick);
        }
        self.errands.give_up(before);
        self.switch.memory_left(index);
        self.announced = false;
        self.switch.notices.look();
    }
}
