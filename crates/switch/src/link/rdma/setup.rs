//! What a link's RDMA lane is made of. Not for workers.
//!
//! ```text
//!  Device, GID ─▶ Setup: completion queues, send buffers ─┬▶ the link
//!                                                         └─ pair ─▶ LocalPair, for each vNIC
//! ```

use super::counters::Counters;
use crate::fdb::PortIndex;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidegate_uplink::{rdma, stamp};
use tidegate_verbs::{CompletionQueue, Device, Error, Region};

/// Receive buffers of a queue pair: a burst of so many datagrams, while its worker has other work.
pub const RECEIVES: u32 = 256;
/// Send buffers of a link.
pub const SENDS: u32 = 512;
/// Most queue pairs of a link: the completions of all their buffers fit into one queue.
pub const PAIRS: usize = 63;
/// Longest datagram (bytes) that is read, whatever the port's MTU is: the largest MTU of RoCE. The port's MTU may be raised, or be
/// smaller than the sender's.
pub const LONGEST: usize = 4096;
/// Where the rest of a datagram goes that is longer than its buffer (bytes): all that one IP packet holds.
const OVERFLOW: usize = 1 << 16;
/// Completions of receives that the queue holds: those of all pairs, and of one that is replaced.
const RECEIVE_ENTRIES: u32 = (PAIRS as u32 + 1) * RECEIVES;

/// The parts of a lane. A clone is the same lane.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The device.
    pub device: Arc<Device>,
    /// Completions of sends.
    pub sends: Arc<CompletionQueue>,
    /// Completions of receives.
    pub receives: Arc<CompletionQueue>,
    /// Memory of send buffers.
    pub pool: Arc<Region>,
    /// Second piece of each receive, of all queue pairs: a datagram that is longer than its buffer would cost the queue pair. Never
    /// read. `None` if the device takes one piece alone.
    pub(super) overflow: Option<Arc<Region>>,
    /// Index of this host's GID.
    pub gid: u8,
    /// Its address.
    pub local: IpAddr,
    /// Most bytes of a datagram.
    pub mtu: u32,
    /// What the link counts.
    pub counters: Arc<Counters>,
    places: Arc<Places>,
}

/// The places for a lane's queue pairs.
#[derive(Debug, Default)]
struct Places {
    /// The ports of those that are not destroyed.
    taken: Mutex<Vec<PortIndex>>,
    /// Queue pairs made so far.
    made: AtomicU64,
}

/// The place of a queue pair, as long as that is not destroyed.
#[derive(Debug)]
pub struct Place {
    places: Arc<Places>,
    port: PortIndex,
}

impl Places {
    fn taken(&self) -> MutexGuard<'_, Vec<PortIndex>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// Returns a number that the lane's other queue pairs neither have nor had, unlike the device's number.
    pub fn tag(&self) -> u64 {
        self.places.made.fetch_add(1, Ordering::Relaxed)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
        if let Some(at) = taken.iter().position(|port| *port == self.port) {
            taken.swap_remove(at);
        }
    }
}

/// Returns the longest frame (bytes) in a datagram of at most `mtu` bytes; `stamped`: one with a deadline, which
/// carries a stamp. 0 if none fits.
pub const fn longest_frame(mtu: u32, stamped: bool) -> u32 {
    let more = rdma::header::LEN + if stamped { stamp::LEN } else { 0 };
    mtu.saturating_sub(more as u32)
}

impl Setup {
    /// Makes the lane of a device's GID: completion queues, and registered memory for sends (2 MiB at the largest
    /// MTU).
    ///
    /// # Errors
    /// The port is gone, has no such GID, or the device has no more of these.
    pub fn new(device: &Arc<Device>, gid: u8) -> Result<Self, Error> {
        let mtu = device.port()?.mtu;
        let local = device.gids()?.into_iter().find(|entry| entry.index == gid);
        let local = local.ok_or_else(|| {
            let what = format!("{} has no GID with index {gid}: its addresses changed", device.name());
            Error::Call { call: "GID", error: std::io::Error::other(what) }
        })?;
        Ok(Self {
            device: device.clone(),
            sends: CompletionQueue::new(device, SENDS)?,
            receives: CompletionQueue::new(device, RECEIVE_ENTRIES)?,
            pool: Region::new(device, SENDS as usize * mtu as usize)?,
            overflow: (device.pieces() > 1).then(|| Region::new(device, OVERFLOW)).transpose()?,
            gid,
            local: local.address.to_canonical(),
            mtu,
            counters: Arc::default(),
            places: Arc::default(),
        })
    }

    /// Takes a place for a queue pair of `port`; `None` if [as many other ports](PAIRS) have one. One place more is for a
    /// queue pair that replaces another, which the tables in force still have.
    pub(super) fn place(&self, port: PortIndex) -> Option<Place> {
        let mut taken = self.places.taken();
        let others: BTreeSet<_> = taken.iter().filter(|other| **other != port).collect();
        if others.len() >= PAIRS || taken.len() > PAIRS {
            return None;
        }
        taken.push(port);
        Some(Place { places: self.places.clone(), port })
    }
}
