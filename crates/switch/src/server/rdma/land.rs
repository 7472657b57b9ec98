//! Begins and ends landings of frames in guests' buffers.
//!
//! ```text
//!  vNIC whose memory is lent, its queue pair in force ─▶ Landing ─▶ uplink's worker, then the port's
//!  held, other memory, failed, no zero copy ─▶ nothing more is posted ─▶ another queue pair ─▶ the device is done, frames are back
//!                                                                          ─▶ buffers are the guest's ─▶ its memory is free
//! ```
//!
//! A landing uses the memory like the link does: who [holds](super::guests) the memory, a port's thread or a live upgrade, waits for this
//! end, too.

use super::landings::{Entry, LINGER, TRY_EVERY, UNFIT};
use super::making::Making;
use super::wanted::Wished;
use crate::clock::clock;
use crate::fdb::PortIndex;
use crate::link::rdma::{Feed, GuestRegions, LocalPair, PortHalf};
use crate::server::Switch;
use crate::worker::Worker;
use std::sync::Arc;

impl Switch {
    /// Ends the landings of a link that are not to be any more, or of one that `is_leaving` all, and goes on with the ends of
    /// others. Before the link's [step](Making::step), which replaces their queue pairs.
    pub(super) fn end_landings(&self, making: &mut Making, is_leaving: bool) {
        let now = clock();
        for port in making.landings.by_port.keys().copied().collect::<Vec<_>>() {
            let Some(entry) = making.landings.by_port.get(&port) else { continue };
            let (number, queue_pair) = (entry.landing.number, entry.queue_pair);
            // The device would have few buffers of the switch's, and those of the guest would be kept for nothing.
            let is_unfit = entry.landing.is_unfit();
            let stays = !is_leaving && !is_unfit && making.keeps(port, queue_pair, &entry.guest);
            if !stays && entry.closed_at.is_none() {
                tracing::info!(port, "frames land in the guest's buffers no more");
                self.close_landing(making, port, now);
                if is_unfit {
                    // Each end costs a queue pair, and a guest may go to and fro.
                    making.landings.try_at.insert(port, now + UNFIT);
                }
            }
            let Some(entry) = making.landings.by_port.get_mut(&port) else { continue };
            let Some(since) = entry.closed_at else { continue };
            if entry.landing.are_out() && now.saturating_sub(since.max(entry.cleared_at)) > LINGER {
                // Again, until none is left: one may land until the queue pair is gone, and wait for its rate after that.
                entry.cleared_at = now;
                self.at_port(port, move |worker| worker.drop_to(port));
            }
            if entry.landing.is_kept() {
                // Its buffers do not come back: nothing is waited for.
                making.landings.by_port.remove(&port);
                making.note_news();
                continue;
            }
            // A port that is gone has nothing left.
            if entry.landing.is_over()
                && self
                    .at_port(port, move |worker| worker.end_landing(port, number))
                    .is_none_or(|(is_done, _)| is_done)
            {
                making.landings.by_port.remove(&port);
                making.landings.ended.push(number);
                making.note_news();
            }
        }
    }

    /// Lets a port post no buffers any more, and another queue pair take the place of the one that has them.
    fn close_landing(&self, making: &mut Making, port: PortIndex, now: u64) {
        let Some(entry) = making.landings.by_port.get_mut(&port) else { return };
        entry.closed_at = Some(now);
        let (number, queue_pair) = (entry.landing.number, entry.queue_pair);
        // Dropped here: it may be the last owner of the queue pair.
        drop(self.at_port(port, move |worker| worker.close_landing(port, number)));
        making.replace(port, queue_pair);
        making.landings.try_at.insert(port, now + TRY_EVERY);
    }

    /// Begins landings of a link whose tables are in force, and lets it forget those that ended.
    pub(super) fn begin_landings(&self, wished: &Wished, making: &mut Making) {
        let now = clock();
        for number in std::mem::take(&mut making.landings.ended) {
            drop(self.at_uplink(wished, move |worker, index| worker.forget_landing(index, number)));
        }
        for (port, pair, guest) in making.may_land() {
            let is_due = making.landings.try_at.get(&port).is_none_or(|at| *at <= now);
            if making.landings.by_port.contains_key(&port) || !is_due {
                continue;
            }
            making.landings.try_at.insert(port, now + TRY_EVERY);
            match self.begin_landing(wished, making, (port, pair, guest)) {
                Ok(()) => {
                    tracing::info!(port, "frames land in the guest's buffers");
                    making.note_news();
                }
                Err(why) => making.note_not_landing(port, why),
            }
        }
    }

    fn begin_landing(
        &self,
        wished: &Wished,
        making: &mut Making,
        (port, pair, guest): (PortIndex, Arc<LocalPair>, Arc<GuestRegions>),
    ) -> Result<(), String> {
        self.at_port(port, move |worker| worker.can_land(port)).unwrap_or(Err("its port is gone"))?;
        let queue_pair = pair.number();
        let feed = Feed { pair, guest: guest.clone() };
        let (landing, half) = PortHalf::new(&making.lane.setup, feed).map_err(|error| error.to_string())?;
        let of_link = landing.clone();
        let knows =
            self.at_uplink(wished, move |worker, index| worker.set_landing(index, &of_link, queue_pair));
        if knows != Some(true) {
            return Err("the link has another queue pair".into());
        }
        let entry = Entry { landing, queue_pair, guest, closed_at: None, cleared_at: 0 };
        making.landings.by_port.insert(port, entry);
        let refused = self.at_port(port, move |worker| worker.land(port, half).err());
        let is_begun = matches!(refused, Some(None));
        // Who holds the memory waits for the end, even if that was asked for just now.
        if !is_begun || making.is_held(port) {
            self.close_landing(making, port, clock());
            return Err("the guest changes its rings or memory".into());
        }
        Ok(())
    }

    /// Has the worker of a port do something; `None` if the port is gone.
    fn at_port<T: Send + 'static>(
        &self,
        port: PortIndex,
        work: impl FnOnce(&mut Worker) -> T + Send + 'static,
    ) -> Option<T> {
        // The port moves to no other worker meanwhile.
        let table = self.lock();
        let entry = table.entries.values().find(|entry| entry.index == port).map(|entry| entry.worker);
        // One that is being removed waits for the device, which waits for its worker.
        let removing = || table.removing.iter().find(|(index, _)| *index == port).map(|(_, worker)| *worker);
        Some(self.workers[entry.or_else(removing)?].call_on(port, work))
    }

    /// The same of the worker of an uplink.
    fn at_uplink<T: Send + 'static>(
        &self,
        wished: &Wished,
        work: impl FnOnce(&mut Worker, PortIndex) -> T + Send + 'static,
    ) -> Option<T> {
        let table = self.lock();
        let entry = table.uplinks.get(&wished.name).filter(|entry| wished.is_of(entry))?;
        let index = entry.index;
        Some(self.workers[entry.worker].call_on(index, move |worker| work(worker, index)))
    }
}
