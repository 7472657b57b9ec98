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
//! [`Tx`] and [`Rx`] are the two halves, each an enum of the kinds of link. Nothing outside of this folder
//! asks which kind a link is. Two capabilities are offered instead, as `Option`s: [`Tx::rings`] and
//! [`Rx::rings`] lend a guest's rings to the direct way, and [`Link::vhost`] takes what a front end changes.
//!
//! - [`tx`], [`rx`]: the halves, whichever kind they are
//! - [`vhost`]: rings in a guest's memory
//! - [`tap`]: a network interface of the kernel
//! - [`delivery`]: which segments of a frame, and how they are marked
//! - [`receiver`]: what a receiver takes as it is, and what is finished for it
//! - [`scratch`]: memory that a worker reuses for every frame
//! - `deferred`: one for tests, which completes later

#[cfg(test)]
pub mod deferred;
pub mod delivery;
mod posted;
pub mod receiver;
pub mod rx;
pub mod scratch;
mod taken;
pub mod tap;
pub mod tx;
pub mod vhost;
pub mod writer;

pub use delivery::Delivery;
pub use receiver::Receiver;
pub use rx::{Completed, Posted, Rx};
pub use scratch::Scratch;
pub use tx::{Absorbed, Pending, Taken, Tx};

use crate::fdb::PortIndex;
use std::os::fd::OwnedFd;

/// Both halves of a link.
pub struct Link {
    /// What the VM sends.
    pub tx: Tx,
    /// What the VM receives.
    pub rx: Rx,
}

impl Link {
    /// Rings of a guest whose front end is not connected yet.
    pub fn vhost_user() -> Self {
        Self { tx: Tx::Vhost(vhost::Tx::default()), rx: Rx::Vhost(vhost::Rx::default()) }
    }

    /// A tap whose descriptors the agent opened, one for each queue, for port `port` of `worker`.
    pub fn tap(files: Vec<OwnedFd>, port: PortIndex, worker: u16, now: u64) -> Self {
        let (tx, rx) = tap::halves(files, port, worker, now);
        Self { tx: Tx::Tap(Box::new(tx)), rx: Rx::Tap(rx) }
    }

    /// What a front end changes; none where there is no front end.
    pub fn vhost(&mut self) -> Option<vhost::Control<'_>> {
        match self {
            Self { tx: Tx::Vhost(tx), rx: Rx::Vhost(rx) } => Some(vhost::Control { tx, rx }),
            _ => None,
        }
    }

    /// Shows the VM what was given back and posted.
    #[inline]
    pub fn flush(&mut self) {
        self.tx.flush();
        self.rx.flush();
    }

    /// Whether memory that it lies in was lost (see [`sigbus`](crate::virtio::sigbus)).
    pub fn is_lost(&self) -> bool {
        match &self.tx {
            Tx::Vhost(tx) => tx.is_lost(),
            Tx::Tap(_) => false,
        }
    }
}
