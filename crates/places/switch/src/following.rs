//! The tables of NICs follow the workers of vNICs, so that frames come in at the worker that delivers them.
//!
//! ```text
//!  look: workers of vNICs and of sockets ─▶ wanted table ─▶ kernel, where it differs
//!  sockets made, or found at their device ─▶ table of the uplink
//! ```
//!
//! Frames that come while a vNIC moves, or while no table follows, cross between workers.

use crate::place::SwitchPlace;
use crate::xdp::{self, direct::Direct};
use std::collections::BTreeMap;
use tidegate_contract::{Uplink, UplinkKind, Vnic};
use tidegate_evidence::SocketCounts;
use tidegate_switch::control::{PortStatus, UplinkStatus};

/// The table of one uplink's device.
pub(crate) struct Following {
    /// `None`: there is none at the device.
    direct: Option<Direct>,
    /// Why some workers have no sockets.
    note: Option<String>,
    /// Addresses without room.
    left: usize,
    /// Why the kernel did not take a change.
    failure: Option<String>,
}

impl Following {
    /// Begins with the table of sockets that were just made.
    pub(crate) fn made(direct: Direct, note: Option<String>) -> Self {
        Self { direct: Some(direct), note, left: 0, failure: None }
    }

    /// Looks for the table that an earlier agent made.
    fn found(uplink: &Uplink) -> Self {
        let direct = xdp::find(uplink);
        if direct.is_none() {
            tracing::warn!(
                uplink = uplink.name,
                "no table of vNICs is at its device (its switch is of an earlier release, or the agent lacks CAP_SYS_ADMIN): \
                 frames to vNICs of other workers cross"
            );
        }
        Self { direct, note: None, left: 0, failure: None }
    }

    /// Returns facts that a person would want to know.
    pub(crate) fn notes(&self) -> impl Iterator<Item = String> {
        let left = (self.left > 0).then(|| {
            format!(
                "{} addresses of vNICs have no room in the NIC's table: their frames cross between workers",
                self.left
            )
        });
        [self.note.clone(), left, self.failure.clone()].into_iter().flatten()
    }
}

impl SwitchPlace {
    /// Brings the tables of uplinks up to date, and returns the frames by queue and worker.
    pub(crate) fn follow_workers(
        &mut self,
        ports: &[PortStatus],
        uplinks: &[UplinkStatus],
    ) -> BTreeMap<String, Vec<SocketCounts>> {
        let mut counts = BTreeMap::new();
        // By our own record: the switch chooses workers, and no addresses.
        let record = &self.record;
        let vnics: Vec<(&Vnic, usize)> =
            ports.iter().filter_map(|port| Some((&record.get(&port.vnic.name)?.vnic, port.worker))).collect();
        self.following.retain(|name, _| uplinks.iter().any(|status| status.uplink.name == *name));
        for UplinkStatus { uplink, sockets, .. } in uplinks {
            let name = &uplink.name;
            // An agent that starts has the switch's word: a lie moves frames from one of its own sockets to another.
            let declared = self.declared.get(name).map_or(uplink, |declared| &declared.uplink);
            if declared.kind != UplinkKind::Xdp || sockets.len() < 2 {
                continue;
            }
            let following = self.following.entry(name.clone()).or_insert_with(|| Following::found(declared));
            let Some(direct) = &mut following.direct else { continue };
            let (table, left) =
                xdp::direct::wanted(&crate::device::vlans(declared), sockets, vnics.iter().copied());
            following.left = left;
            following.failure = direct.follow(&table).err().map(|error| {
                format!(
                    "the NIC's table of vNICs cannot follow them, and frames cross between workers: {error}"
                )
            });
            let kept = self.uplink_sockets.get(name).map_or(&[][..], |kept| &kept.sockets.receive);
            counts.insert(name.clone(), direct.counts(sockets, kept));
        }
        counts
    }
}
