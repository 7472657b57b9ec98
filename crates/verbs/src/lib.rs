//! RDMA devices through libibverbs: unreliable datagrams.
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
//! - [`error`]: why a call failed
//! - [`values`]: values without a device: completions, states of ports
//! - [`library`]: loads libibverbs
//! - [`device`]: an open device: port, GIDs
//! - [`region`]: registered memory
//! - [`completion`]: completion queues
//! - [`queue_pair`]: queue pairs of unreliable datagrams
//! - [`address`]: address handles
//! - [`conformance`]: what every device has to do, as checks
//! - `mapping`: pages of memory
//! - `real`: all of these over libibverbs
//! - [`simulated`]: all of these in memory, for tests

pub mod address;
pub mod completion;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod device;
pub mod error;
pub mod library;
mod mapping;
pub mod queue_pair;
mod real;
pub mod region;
#[cfg(feature = "simulated")]
pub mod simulated;
pub mod values;

pub use address::Address;
pub use completion::CompletionQueue;
pub use device::Device;
pub use error::Error;
pub use library::Library;
pub use queue_pair::{LARGEST_Q_KEY, Piece, QueuePair, Receive, Send};
pub use region::Region;
pub use values::{Access, BATCH, Completion, Depths, ELEMENTS, GRH, Gid, Link, PIECES, Port, Status};
