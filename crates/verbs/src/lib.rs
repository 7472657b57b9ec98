//! RDMA devices through libibverbs, as far as unreliable datagrams need it.
//!
//! ```text
//!  Library ─ open ─▶ Device ─┬▶ Region: memory that the device reads and writes
//!  (dlopen)                  ├▶ CompletionQueue ◀─ completions ─┐
//!                            ├▶ QueuePair ─ post_send, post_receive ─▶ device ─▶ RoCE v2
//!                            └▶ Address: another host, with a traffic class
//! ```
//!
//! libibverbs is loaded when it is asked for: a host without RDMA needs none. The library is safe for several threads,
//! and so are these types; each keeps what it needs alive, so they may be dropped in any order.
//!
//! - [`library`]: loads libibverbs
//! - [`device`]: an open device: port, GIDs
//! - [`region`]: registered memory
//! - [`completion`]: completion queues
//! - [`queue_pair`]: queue pairs of unreliable datagrams
//! - [`address`]: address handles
//! - `mapping`: pages of memory
//! - `real`: all of these over libibverbs
//! - [`simulated`]: all of these in memory, for tests

pub mod address;
pub mod completion;
pub mod device;
pub mod library;
mod mapping;
pub mod queue_pair;
mod real;
pub mod region;
#[cfg(feature = "simulated")]
pub mod simulated;

pub use address::Address;
pub use completion::{Completion, CompletionQueue, Status};
pub use device::{Device, Gid, Link, Port};
pub use library::Library;
pub use queue_pair::{BATCH, Depths, LARGEST_Q_KEY, QueuePair, Receive, Send};
pub use region::Region;

/// Bytes before each received datagram: the GRH (RoCE v2: the IPv4 header in the last 20 bytes of them, or the IPv6
/// header).
pub const GRH: usize = 40;

/// Why a call of the library failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no library, or not the one that is needed.
    #[error(
        "libibverbs cannot be loaded: {0}; Debian has it in the package libibverbs1, and drivers in ibverbs-providers"
    )]
    Library(String),
    /// No such device.
    #[error("there is no RDMA device {name}; there are: {}", if there.is_empty() { "none".into() } else { there.join(", ") })]
    NoDevice {
        /// The name asked for.
        name: String,
        /// Names of those that are there.
        there: Vec<String>,
    },
    /// A Q_Key of the privileged ones.
    #[error(
        "Q_Key {0:#010x} has its top bit set: only privileged processes may use such keys (the kernel answers EPERM); \
         keys from 0 to 0x7fffffff are free"
    )]
    QKey(u32),
    /// A call failed.
    #[error("{call}: {error}")]
    Call {
        /// The call.
        call: &'static str,
        /// What it answered.
        error: std::io::Error,
    },
}

impl Error {
    /// Returns the error of a `call` whose parts do not fit together.
    pub(crate) fn invalid(call: &'static str) -> Self {
        Self::Call { call, error: std::io::Error::from_raw_os_error(libc::EINVAL) }
    }
}
