//! A link: how frames get from a VM into the switch, and out to it.
//!
//! ```text
//!            ┌ poll ─▶ take ─▶ Frame ─▶ (worker decides) ─┬▶ put back: waits for tokens
//!  VM ─▶ Tx ─┤                                            └▶ egress ... fate ─▶ give back
//!            └ flush: what was given back is shown
//!
//!            ┌ room? ─▶ post ─┬▶ Posted::Done, Part, NoBuffers, Dropped, Broken
//!  VM ◀─ Rx ─┤                └▶ Posted::Later: held ─▶ completed, the oldest first
//!            └ flush: what was posted is shown    └▶ cancelled
//!
//!  both: readiness (descriptors, kicks), restart, loss of memory
//! ```
//!
//! [`Tx`] and [`Rx`] are the two halves, each an enum of the kinds of link. Code outside of this folder
//! does not ask for the kind. It uses two capabilities, which are `Option`s: [`Tx::rings`] and
//! [`Rx::rings`] lend a guest's rings to the direct way, and [`Link::vhost`] takes a front end's changes.
//!
//! - [`tx`], [`rx`]: the halves, of any kind
//! - `taken`, `posted`: the results of taking and posting a frame
//! - [`vhost`]: rings in a guest's memory
//! - [`tap`]: a network interface of the kernel
//! - [`vxlan`]: other hosts
//! - [`rdma`]: queue pairs, by which frames get to other hosts' vNICs
//! - [`nic`]: the network behind a plain NIC
//! - [`reading`]: frames that are read into own memory
//! - [`store`], [`pool`]: frames that wait in own memory
//! - [`readiness`]: which descriptors may have frames
//! - [`delivery`]: the segments of a frame to deliver, and their marks
//! - [`receiver`]: the frames that a receiver takes unchanged; others are finished for it
//! - [`scratch`]: memory that a worker reuses for every frame
//! - [`writer`]: a thread that writes frames into taps for a worker
//! - `deferred`: a link for tests, which completes frames later

#[cfg(test)]
pub mod deferred;
pub mod delivery;
pub mod nic;
pub mod pool;
mod posted;
pub mod rdma;
pub mod readiness;
pub mod reading;
pub mod receiver;
pub mod rx;
pub mod scratch;
pub mod store;
mod taken;
pub mod tap;
pub mod tx;
pub mod vhost;
pub mod vxlan;
pub mod writer;

pub use delivery::Delivery;
pub use receiver::Receiver;
pub use rx::{Completed, LONGEST, Posted, Rx};
pub use scratch::Scratch;
pub use tx::{Absorbed, Pending, Taken, Tx};

use crate::fdb::PortIndex;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Both halves of a link.
pub struct Link {
    /// Frames that the VM sends.
    pub tx: Tx,
    /// Frames that the VM receives.
    pub rx: Rx,
}

impl Link {
    /// Returns the link of a guest whose front end is not connected yet.
    pub fn vhost_user() -> Self {
        Self { tx: Tx::Vhost(vhost::Tx::default()), rx: Rx::Vhost(vhost::Rx::default()) }
    }

    /// Returns the link of a tap whose descriptors the agent opened, one for each queue, for port `port` of
    /// `worker`.
    pub fn tap(files: Vec<OwnedFd>, port: PortIndex, worker: u16, now: u64) -> Self {
        let (tx, rx) = tap::halves(files, port, worker, now);
        Self { tx: Tx::Tap(Box::new(tx)), rx: Rx::Tap(rx) }
    }

    /// Returns the link to other hosts over sockets that the agent made, for port `port` of `worker`.
    pub fn vxlan(setup: vxlan::Setup, port: PortIndex, worker: u16, now: u64) -> Self {
        let (tx, rx) = vxlan::halves(setup, port, worker, now);
        Self { tx: Tx::Vxlan(Box::new(tx)), rx: Rx::Vxlan(Box::new(rx)) }
    }

    /// Returns the link to the network behind a NIC, for port `port` of `worker`.
    pub fn nic(setup: nic::Setup, port: PortIndex, worker: u16, now: u64) -> Self {
        let (tx, rx) = nic::halves(setup, port, worker, now);
        Self { tx: Tx::Nic(Box::new(tx)), rx: Rx::Nic(Box::new(rx)) }
    }

    /// Returns the front end's access; `None` for a link without one.
    pub fn vhost(&mut self) -> Option<vhost::Control<'_>> {
        match self {
            Self { tx: Tx::Vhost(tx), rx: Rx::Vhost(rx) } => Some(vhost::Control { tx, rx }),
            _ => None,
        }
    }

    /// Sets the peers of a link to other hosts, and returns those before.
    pub fn set_peers(&mut self, peers: Arc<vxlan::Peers>) -> Option<Arc<vxlan::Peers>> {
        match self {
            Self { tx: Tx::Vxlan(tx), rx: Rx::Vxlan(rx) } => {
                tx.set_peers(peers.clone());
                Some(rx.set_peers(peers))
            }
            Self { tx: Tx::Nic(tx), rx: Rx::Nic(rx) } => {
                tx.set_peers(peers.clone());
                Some(rx.set_peers(peers))
            }
            _ => None,
        }
    }

    /// Sets the pairs of a link to other hosts whose frames have stamps, and returns those before.
    pub fn set_pairs(
        &mut self,
        outgoing: vxlan::pairs::OutgoingPairs,
        incoming: vxlan::pairs::IncomingPairs,
    ) -> Option<(vxlan::pairs::OutgoingPairs, vxlan::pairs::IncomingPairs)> {
        match self {
            Self { tx: Tx::Vxlan(tx), rx: Rx::Vxlan(rx) } => {
                Some((rx.set_pairs(outgoing), tx.set_pairs(incoming)))
            }
            _ => None,
        }
    }

    /// Sets the queue pairs of a link to other hosts, and returns those before, for [`rdma::Retiring`]; `None` without
    /// RDMA.
    pub fn set_rdma(&mut self, tables: Arc<rdma::Tables>) -> Option<Arc<rdma::Tables>> {
        match self {
            Self { tx: Tx::Vxlan(tx), rx: Rx::Vxlan(rx) } => {
                tx.set_rdma(tables.clone());
                rx.set_rdma(tables)
            }
            _ => None,
        }
    }

    /// Returns the peers of a link to other hosts; `None` of others.
    pub fn peers(&self) -> Option<&Arc<vxlan::Peers>> {
        match &self.rx {
            Rx::Vxlan(rx) => Some(rx.peers()),
            Rx::Nic(rx) => Some(rx.peers()),
            _ => None,
        }
    }

    /// Shows the VM its returned and posted frames.
    #[inline]
    pub fn flush(&mut self) {
        self.tx.flush();
        self.rx.flush();
    }

    /// Whether its memory was lost (see [`sigbus`](crate::virtio::sigbus)).
    pub fn is_lost(&self) -> bool {
        match &self.tx {
            Tx::Vhost(tx) => tx.is_lost(),
            Tx::Tap(_) | Tx::Vxlan(_) | Tx::Nic(_) => false,
        }
    }
}
