//! Handles the faults that workers find in ports.

use super::Switch;
use super::table::{End, Entry};
use super::uplink::UplinkEntry;
use crate::fdb::PortIndex;
use crate::port::PortSet;
use crate::stats::ThrownOut;
use crate::virtio::sigbus;
use crate::worker::trouble::Trouble;

impl Switch {
    /// Handles a fault of a port that a worker found.
    pub fn handle_trouble(&self, index: PortIndex, trouble: Trouble) {
        match trouble {
            Trouble::Broken(reason) => self.broken(index, &reason),
            Trouble::Delayed { event, began } => {
                let table = self.lock();
                let is_it = |entry: &&Entry| entry.index == index && entry.since <= began;
                let entry = table.entries.values().find(is_it);
                if let Some(End::Vhost { thread, .. }) = entry.map(|entry| &entry.end) {
                    (thread.report())(event);
                }
            }
            Trouble::DelayedByUnknown { by_another } => self.watch_suspects(by_another),
        }
    }

    /// Makes all workers watch for the port whose memory delayed one. Only memory with missing pages can;
    /// `all` ports if it was none of those.
    fn watch_suspects(&self, all: bool) {
        let (mut ports, mut disks) = (PortSet::EMPTY, PortSet::EMPTY);
        for entry in self.lock().entries.values() {
            let End::Vhost { thread, .. } = &entry.end else { continue };
            let (holes, disk) = thread.has_holes();
            if all || holes {
                ports.insert(entry.index);
            }
            if disk {
                disks.insert(entry.index);
            }
        }
        for worker in self.workers.iter() {
            let (ports, disks) = (ports.clone(), disks.clone());
            worker.call(move |worker| worker.watch(ports, disks));
        }
    }

    /// Handles a broken link that a worker found.
    fn broken(&self, index: PortIndex, reason: &str) {
        let mut table = self.lock();
        let port = |entry: &UplinkEntry| entry.ports().find(|(port, _)| *port == index);
        let uplink = table.uplinks.iter_mut().find_map(|(name, entry)| Some((name, port(entry)?, entry)));
        if let Some((name, (_, worker), entry)) = uplink {
            if self.workers[worker].call(move |worker| worker.is_broken(index)) {
                tracing::error!(
                    uplink = name,
                    reason,
                    "uplink broken: no frame passes until the agent makes it anew"
                );
                entry.broken = Some(reason.to_owned());
            }
            return;
        }
        let Some(entry) = table.entries.values_mut().find(|entry| entry.index == index) else { return };
        if !self.workers[entry.worker].call(move |worker| worker.is_broken(index)) {
            // The guilty front end has left; the next one keeps its connection.
            return;
        }
        entry.broken = Some(reason.to_owned());
        let kind = if reason == sigbus::REASON { ThrownOut::Memory } else { ThrownOut::Ring };
        match &entry.end {
            // The port's thread logs it, at a limited rate.
            End::Vhost { thread, .. } => thread.throw_out(kind, reason.to_owned()),
            End::Tap { .. } => tracing::warn!(vnic = entry.vnic.name, reason, "link broken"),
        }
    }
}
