//! The state of ports, for the agent.

use super::Switch;
use super::table::{End, Entry, Table};
use crate::control::message::PortStatus;
use crate::stats::ThrownOut;
use crate::vhost_user::status::State;
use std::collections::BTreeMap;
use std::time::Instant;
use tidegate_contract::SharedAddress;
use tidegate_evidence::HeldUp;
use tidegate_evidence::{Connection, SharedStatus};

impl Switch {
    /// Returns the state of all ports.
    pub fn ports(&self) -> Vec<PortStatus> {
        statuses(&self.lock())
    }
}

pub(super) fn statuses(table: &Table) -> Vec<PortStatus> {
    table.entries.values().map(|entry| status(table, entry)).collect()
}

fn status(table: &Table, entry: &Entry) -> PortStatus {
    let mut status = PortStatus {
        vnic: entry.vnic.clone(),
        index: entry.index as usize,
        worker: entry.worker,
        connection: Connection::Up,
        features: 0,
        queue_pairs: 0,
        deadline_suspended: entry.suspended().map(str::to_owned),
        last_error: entry.broken.clone(),
        refused_connections: 0,
        heir: false,
        thrown_out: BTreeMap::new(),
        held: HeldUp::default(),
        shared: shared(table, entry),
        closing: false,
    };
    match &entry.end {
        End::Tap { queues } => {
            status.queue_pairs = queues.len() as u16;
            if entry.broken.is_some() {
                status.connection = Connection::Disconnected;
            }
        }
        End::Vhost { thread, status: connection, listener } => {
            let now = connection.snapshot();
            status.held = thread.conduct().delays(Instant::now());
            status.closing = now.closing;
            status.connection = match now.state {
                // No front end can connect while none is accepted.
                State::Waiting if listener.is_none() && status.held.quarantine.is_none() => {
                    Connection::Disconnected
                }
                State::Waiting => Connection::Waiting,
                State::Connected => Connection::Connected,
                State::Ready => Connection::Up,
            };
            status.features = now.features;
            status.queue_pairs = now.queue_pairs;
            status.last_error = status.last_error.or(now.last_error);
            status.refused_connections = now.refused;
            status.heir = now.heir;
            let counts = ThrownOut::ALL.iter().map(|kind| (kind.label(), now.thrown_out[*kind as usize]));
            let counts = counts.filter(|(_, count)| *count > 0);
            status.thrown_out = counts.map(|(label, count)| (label.to_owned(), count)).collect();
        }
    }
    status
}

/// Returns the holders of the addresses that a vNIC shares.
fn shared(table: &Table, entry: &Entry) -> Vec<SharedStatus> {
    let of_port = |port| table.entries.values().find(|entry| entry.index == port);
    let one = |address: &SharedAddress| {
        let holder = table.shares.holder(entry.segment, *address)?;
        let name = holder.port().and_then(of_port).map(|entry| entry.vnic.name.clone());
        let (moves, refused) = holder.moves();
        Some(SharedStatus { address: *address, holder: name, moves, refused })
    };
    entry.vnic.allowed.shared.iter().filter_map(one).collect()
}
