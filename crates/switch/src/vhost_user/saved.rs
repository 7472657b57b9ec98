//! A front end's state in a form that another process can store.
//!
//! ```text
//!  Connection ─ Connection::saved_state ─▶ SavedConnection + descriptors ─▶ kept by the agent
//!                                                                       │ the switch is gone
//!  Connection ◀─ Connection::restore ─ SavedConnection + descriptors ◀──┘
//! ```
//!
//! Descriptors have numbers, so that each is sent once although the state changes with every message.

use crate::quota::{Account, Amounts, Charge, Exceeded};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of a descriptor: never used twice by one process.
pub type Number = u64;

/// A descriptor of a front end, or of the process before. The session that handles its message, or
/// continues its connection, has a clone until the end, and then [gives it up](super::errands): so no
/// thread closes it because a message is refused.
pub type SharedFd = Arc<OwnedFd>;

/// A descriptor and its number. Clones share the descriptor: dropping the last one closes it, which may
/// take long.
#[derive(Clone, Debug)]
pub struct Numbered(Arc<Owned>);

#[derive(Debug)]
struct Owned {
    number: Number,
    fd: SharedFd,
    _charge: Option<Charge>,
}

impl Numbered {
    /// Gives a front end's descriptor the next number.
    ///
    /// # Errors
    /// Its port has too many.
    pub fn charged(fd: SharedFd, account: &Account) -> Result<Self, Exceeded> {
        let charge = account.charge(Amounts { descriptors: 1, ..Amounts::default() })?;
        Ok(Self::new(fd, Some(charge)))
    }

    /// Like [`charged`](Self::charged), for a descriptor of our own.
    pub fn free(fd: OwnedFd) -> Self {
        Self::new(Arc::new(fd), None)
    }

    fn new(fd: SharedFd, charge: Option<Charge>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self(Arc::new(Owned { number, fd, _charge: charge }))
    }

    /// Returns the descriptor in the form of a message's.
    pub fn shared_fd(&self) -> SharedFd {
        self.0.fd.clone()
    }

    /// Returns its number, by which messages name it.
    pub fn number(&self) -> Number {
        self.0.number
    }
}

impl AsFd for Numbered {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.fd.as_fd()
    }
}

/// Descriptors by their numbers, as they came.
pub type Descriptors = HashMap<Number, OwnedFd>;

/// A front end's state, from its first message to its last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedConnection {
    /// The connection itself.
    pub stream: Number,
    /// SET_FEATURES, with the protocol features' own bit and LOG_ALL.
    pub features: Option<u64>,
    /// SET_PROTOCOL_FEATURES.
    pub protocol_features: u64,
    /// The memory table.
    pub regions: Vec<SavedRegion>,
    /// The guest has written into it.
    pub memory_is_alive: bool,
    /// Every queue, in the protocol's order.
    pub vrings: Vec<SavedVring>,
    /// The in-flight region, once there is one.
    pub inflight: Option<Number>,
    /// SET_LOG_BASE, once a migration began.
    pub log: Option<SavedLog>,
}

/// The dirty log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedLog {
    /// Its file.
    pub file: Number,
    /// Bytes.
    pub size: u64,
    /// Offset in the file.
    pub offset: u64,
}

/// One region of the memory table, as [`RegionSpec`](crate::virtio::memory::RegionSpec).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedRegion {
    /// Guest physical address.
    pub guest_addr: u64,
    /// The front end's own address.
    pub user_addr: u64,
    /// Bytes.
    pub size: u64,
    /// Offset in the file.
    pub mmap_offset: u64,
    /// The file.
    pub file: Number,
}

/// The state of one queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedVring {
    /// SET_VRING_NUM.
    pub size: Option<u16>,
    /// SET_VRING_ADDR: descriptors, available, used.
    pub addresses: Option<(u64, u64, u64)>,
    /// SET_VRING_BASE, or where it stopped.
    pub base: Option<u32>,
    /// SET_VRING_ADDR: the used ring's address in the dirty log.
    pub log: Option<u64>,
    /// SET_VRING_KICK; `None` if it is polled.
    pub kick: Option<Number>,
    /// SET_VRING_CALL.
    pub call: Option<Number>,
    /// SET_VRING_ERR.
    pub err: Option<Number>,
    /// SET_VRING_ENABLE.
    pub enabled: bool,
    /// Started, and not stopped since.
    pub running: bool,
}

/// Most memory regions and queues of a connection, in this or a later release.
const MOST: (usize, usize) = (64, 256);

impl SavedConnection {
    /// Whether a connection can have so many memory regions and queues.
    pub fn is_possible(&self) -> bool {
        self.regions.len() <= MOST.0 && self.vrings.len() <= MOST.1
    }

    /// The numbers of all descriptors it needs.
    pub fn numbers(&self) -> impl Iterator<Item = Number> {
        let regions = self.regions.iter().map(|region| region.file);
        let vrings = self.vrings.iter().flat_map(|vring| [vring.kick, vring.call, vring.err]).flatten();
        std::iter::once(self.stream)
            .chain(regions)
            .chain(vrings)
            .chain(self.inflight)
            .chain(self.log.map(|log| log.file))
    }
}
