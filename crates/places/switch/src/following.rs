//! The tables of NICs follow the workers of vNICs, so that frames come in at the worker that delivers them.
//!
//! ```text
//!  look: workers of vNICs and of sockets ─▶ wanted table ─▶ kernel, where it differs
//!  sockets made, or found at their device ─▶ table of the uplink
//! ```
//!
//! Only uplinks that this agent declared have a table: an agent that starts looks for tables once it has its contract. Frames that come while a
//! vNIC moves, or while no table follows, cross between workers.

use crate::device;
use crate::xdp::{self, direct::Direct};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use tidegate_contract::{Uplink, UplinkKind, Vnic};
use tidegate_evidence::SocketCounts;

/// The tables, by uplink.
#[derive(Default)]
pub(crate) struct NicTables(HashMap<String, Following>);

/// The table of one uplink's device.
struct Following {
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
    fn notes(&self) -> impl Iterator<Item = String> {
        let left = (self.left > 0).then(|| {
            format!(
                "{} addresses of vNICs have no room in the NIC's table: their frames cross between workers",
                self.left
            )
        });
        [self.note.clone(), left, self.failure.clone()].into_iter().flatten()
    }
}

impl NicTables {
    /// Begins with the table of sockets that were just made, in place of an earlier one. `note`: why some workers have none.
    pub(crate) fn made(&mut self, uplink: &str, direct: Direct, note: Option<String>) {
        self.0.insert(uplink.into(), Following { direct: Some(direct), note, left: 0, failure: None });
    }

    /// Forgets the table of an uplink.
    pub(crate) fn forget(&mut self, uplink: &str) {
        self.0.remove(uplink);
    }

    /// Keeps the tables of these uplinks.
    pub(crate) fn retain(&mut self, is_there: impl Fn(&str) -> bool) {
        self.0.retain(|name, _| is_there(name));
    }

    /// Returns what a person would want to know of an uplink's table.
    pub(crate) fn notes(&self, uplink: &str) -> impl Iterator<Item = String> {
        self.0.get(uplink).into_iter().flat_map(Following::notes)
    }

    /// Brings the table of an uplink up to date, and returns its frames by queue and worker; `None` if it has no table. `workers` are the workers of
    /// a queue's sockets, in order; `sockets` those that this agent made.
    pub(crate) fn follow(
        &mut self,
        uplink: &Uplink,
        workers: &[usize],
        vnics: &[(&Vnic, usize)],
        sockets: &[OwnedFd],
    ) -> Option<Vec<SocketCounts>> {
        if uplink.kind != UplinkKind::Xdp || workers.len() < 2 {
            return None;
        }
        let following = self.0.entry(uplink.name.clone()).or_insert_with(|| Following::found(uplink));
        let direct = following.direct.as_mut()?;
        let (table, left) = xdp::direct::wanted(&device::vlans(uplink), workers, vnics.iter().copied());
        following.left = left;
        following.failure = direct.follow(&table).err().map(|error| {
            format!("the NIC's table of vNICs cannot follow them, and frames cross between workers: {error}")
        });
        Some(direct.counts(workers, sockets))
    }
}
