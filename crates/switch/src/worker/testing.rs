//! A worker without a thread, for tests.

use super::{Worker, WorkerHandle, mailbox};
use crate::fdb::{Fdb, PortIndex, SegmentIndex};
use crate::port::vhost::VhostPort;
use crate::port::{Link, Port, PortContract, PortInfo, PortSet};
use crate::stats::Region;
use std::cell::Cell;
use std::sync::Arc;
use tidegate_contract::{Host, Vnic};

thread_local! {
    static TIME: Cell<Option<u64>> = const { Cell::new(None) };
}

/// The time of this thread's workers, where a test sets it, ns.
pub fn time() -> Option<u64> {
    TIME.get()
}

/// Sets the time of this thread's workers, ns; it stands still until it is set again.
pub fn set_time(now: u64) {
    TIME.set(Some(now));
}

/// A worker that is alone, and how to reach it.
pub fn worker() -> (Worker, WorkerHandle) {
    let (handle, inbox) = mailbox().unwrap();
    let stats = &Region::create().unwrap().layout().workers[0];
    let (faults, _) = std::sync::mpsc::channel();
    (Worker::new(0, inbox, Arc::new(Fdb::new()), vec![None], stats, faults).unwrap(), handle)
}

/// Gives it a vhost-user port, with no front end and no limits.
pub fn add_port(worker: &mut Worker, index: PortIndex) {
    let text = format!(
        "[vnic.v{index}]\nattach = {{ vhost-user = \"/tmp/v{index}\" }}\n\
         mac = \"52:54:00:00:00:{index:02x}\"\nsegment = 7\n"
    );
    let vnic: Vnic = tidegate_contract::parse(&text, "test").unwrap().vnics.remove(0).value;
    let stats = &Region::create().unwrap().layout().vnics[usize::from(index)];
    let (segment, link) = (SegmentIndex(0), Link::Vhost(VhostPort::default()));
    let contract = PortContract::new(&vnic, &Host::default());
    worker.add_port(Box::new(Port::new(index, segment, contract, stats, link)));
    worker.set_info(index, Some(PortInfo::new(&vnic, 0, segment, PortSet::EMPTY)));
}
