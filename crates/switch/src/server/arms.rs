//! Arms of an uplink: ports at other workers, which take in its frames to their vNICs.
//!
//! ```text
//!  NIC's queue ─┬─ a vNIC of worker W ─▶ W's socket ─▶ arm ─▶ W's vNICs, or by crossing
//!               └─ all others ─────────▶ the uplink's socket ─▶ uplink ─▶ vNICs
//! ```
//!
//! An arm is the uplink's for all others: the FDB learns addresses behind the uplink, and it is no member of a segment, so no frame leaves by it. It has
//! memory, counters and a share of its worker's time of its own.

use super::Switch;
use super::table::Table;
use super::uplink::{Arm, UplinkEntry};
use crate::capacity::VNICS;
use crate::clock::clock;
use crate::fdb::{PortIndex, SegmentIndex};
use crate::link::nic::xdp::form;
use crate::link::{Link, nic, vxlan};
use crate::port::{Port, PortInfo};
use crate::stats::arms;
use std::sync::Arc;

impl Switch {
    /// Gives an uplink that is not in the table yet an arm for each of `devices`.
    ///
    /// # Errors
    /// There are more than other workers, too few ports, or the uplink's name is too long for their counters.
    pub(super) fn plan_arms(
        &self,
        table: &Table,
        entry: &mut UplinkEntry,
        devices: usize,
    ) -> Result<(), String> {
        let (name, workers) = (&entry.uplink.name, self.workers.len());
        if devices >= workers {
            return Err(format!(
                "uplink {name}: {} sockets of each queue for {workers} workers",
                devices + 1
            ));
        }
        if devices > 0 && name.len() > arms::UPLINK_NAME {
            let most = arms::UPLINK_NAME;
            return Err(format!(
                "uplink {name}: with several sockets of a queue its name has at most {most} bytes"
            ));
        }
        for worker in form::workers(entry.worker, workers, devices + 1).skip(1) {
            let taken: Vec<_> = entry.indices().collect();
            let wanted =
                self.region.inherited_index(&arms::name(name, worker)).map(|index| index as PortIndex);
            let reserved = |index| self.region.is_reserved(usize::from(index));
            let index = table.free_index(wanted, &taken, reserved).ok_or_else(|| {
                format!(
                    "uplink {name}: a switch has at most {VNICS} ports, and an uplink has one at each worker"
                )
            })?;
            entry.arms.push(Arm { index, worker });
        }
        Ok(())
    }

    /// Makes the planned arms.
    pub(super) fn add_arms(
        &self,
        table: &Table,
        entry: &UplinkEntry,
        devices: Vec<nic::Device>,
        peers: &Arc<vxlan::Peers>,
    ) {
        for (Arm { index, worker }, device) in entry.arms.iter().copied().zip(devices) {
            let setup = nic::Setup {
                device,
                longest: entry.uplink.largest_inner_frame() as u32,
                peers: peers.clone(),
                fdb: self.fdb.clone(),
                owner: Some(entry.worker as u16),
            };
            let link = Link::nic(setup, index, worker as u16, clock());
            let stats = self.region.claim(usize::from(index), &arms::name(&entry.uplink.name, worker));
            let contract = entry.contract(&table.host);
            let mut port = Box::new(Port::new(index, SegmentIndex::OF_EACH_FRAME, contract, stats, link));
            port.uplink = entry.index;
            port.pauses = u32::from(self.new_ports_wait.load(std::sync::atomic::Ordering::Relaxed));
            // They settle its frames, and must know where.
            for other in self.workers.iter() {
                let info = Some(PortInfo::of_uplink(worker as u16));
                other.call(move |other| other.set_info(index, info));
            }
            self.workers[worker].call(move |worker| worker.add_port(port));
        }
    }

    /// Removes the arms of an uplink; their frames in flight are dropped.
    pub(super) fn remove_arms(&self, entry: &UplinkEntry) {
        for Arm { index, worker } in &entry.arms {
            self.quiesce_port(*index, *worker);
            self.forget(*index, *worker);
        }
    }
}
