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

pub mod address;
pub mod completion;
pub mod device;
pub mod library;
pub mod queue_pair;
pub mod region;

pub use address::Address;
pub use completion::{Completion, CompletionQueue, Status};
pub use device::{Device, Gid, Link, Port};
pub use library::Library;
pub use queue_pair::{Depths, QueuePair, Receive, Send};
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
    /// A call failed.
    #[error("{call}: {error}")]
    Call {
        /// The call.
        call: &'static str,
        /// What it answered.
        error: std::io::Error,
    },
}
