//! Values without a device: what a port is, what became of a request.

use std::net::IpAddr;

/// Bytes before each received datagram: the GRH (RoCE v2: the IPv4 header in the last 20 bytes of them, or the IPv6
/// header).
pub const GRH: usize = 40;

/// How many datagrams, or buffers, leave by one write to the device: longer lists take several.
pub const BATCH: usize = 64;

/// Most pieces of memory of one request that this crate posts; a device may take fewer (`Device::pieces`).
pub const PIECES: u32 = 16;

/// Pieces of memory that leave by one write to the device: a list with more takes several.
pub const ELEMENTS: usize = 8 * BATCH;

/// What a port's link is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// RoCE.
    Ethernet,
    /// InfiniBand.
    InfiniBand,
    /// Another one.
    Other(u8),
}

/// The state of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// Whether it carries datagrams.
    pub is_active: bool,
    /// Most bytes of a datagram: 256 to 4096.
    pub mtu: u32,
    /// Its link.
    pub link: Link,
}

/// One GID of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gid {
    /// Its index in the port's table.
    pub index: u8,
    /// Its address: an IPv4 address is mapped in the GID (RFC 4291, 2.5.5.2).
    pub address: IpAddr,
    /// Whether datagrams from it are RoCE v2.
    pub is_roce_v2: bool,
}

/// What the device does with registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It reads: such memory is of use for sends alone.
    Read,
    /// It reads and writes.
    Write,
}

/// How many requests a queue pair holds, and how large they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depths {
    /// Sends.
    pub send: u32,
    /// Receives.
    pub receive: u32,
    /// Most pieces of one request, of both directions: 1 to what the device takes (`Device::pieces`).
    pub pieces: u32,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Done.
    Success,
    /// The queue pair is in the error state, or left it: the request was flushed (IBV_WC_WR_FLUSH_ERR).
    Flushed,
    /// Another error, by its number (ibv_wc_status).
    Failed(u32),
}

/// The completion of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The request's `id`.
    pub id: u64,
    /// What became of it. On failure only `id` and `queue_pair` are valid, and the others 0: devices tell no more.
    pub status: Status,
    /// Of a receive; else of a send.
    pub is_receive: bool,
    /// Bytes received, with the [`GRH`](crate::GRH).
    pub bytes: u32,
    /// Number of the queue pair here.
    pub queue_pair: u32,
    /// Number of the sending queue pair.
    pub source: u32,
}

impl Default for Completion {
    fn default() -> Self {
        Self { id: 0, status: Status::Success, is_receive: false, bytes: 0, queue_pair: 0, source: 0 }
    }
}
