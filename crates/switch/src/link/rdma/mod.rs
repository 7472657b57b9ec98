//! RDMA as a lane of the link to other hosts: a frame is one unreliable datagram between two vNICs' queue pairs.
//!
//! ```text
//!  frame ─ Tables: of a local pair, to a member ─▶ Outgoing: send buffer ─ flush ─▶ one write per queue pair ─▶ device
//!     └ with zero copy: the head in a send buffer, the rest stays with the guest, whose frame is held ─────────┤
//!                                                     ▲ free ◀────── completions of sends ◀───────────────────────┘
//!
//!  device ─ completions of receives ─▶ Incoming: GRH, sender: a member? ─▶ header, frame ─▶ copied by the link, posted anew
//!     └ with zero copy, in the guest's own buffers: Landing ─▶ the head is copied, the rest shown where it lies
//! ```
//!
//! Members come from authenticated notices alone, never from data. What the device and the wire say is checked
//! before use. Nothing here allocates, locks or waits, but [`setup`], [`pair`] and [`retire`], which are no work for
//! workers.
//!
//! - [`setup`]: what a link's lane is made of
//! - [`pair`]: the queue pair of a vNIC of this host
//! - [`guest`]: memory of guests that the device reads and writes
//! - [`members`]: which queue pairs there are, here and at other hosts
//! - [`outgoing`]: the sending half; [`pool`]: its buffers; `posting`: what is written to the device
//! - [`waiting`]: datagrams that are not yet posted
//! - [`gather`]: the places of a datagram's bytes, in a buffer and in a guest's memory
//! - [`held`]: which frames these were, until the device has read them
//! - [`incoming`]: the receiving half; [`grh`]: where a datagram came from
//! - [`landing`]: frames that land in a guest's buffers; [`port_half`]: its port's part; [`stages`]: who has these
//! - [`numbers`]: what both remember of pairs of queue pairs
//! - [`memory`]: bytes of registered memory
//! - [`retire`]: the end of replaced tables; `over`: of a queue pair
//! - [`counters`]: what went, came, and was refused

pub mod counters;
pub mod gather;
pub mod grh;
pub mod guest;
pub mod held;
pub mod incoming;
pub mod landing;
pub mod members;
pub mod memory;
pub mod numbers;
pub mod outgoing;
mod over;
pub mod pair;
pub mod pool;
pub mod port_half;
mod posting;
pub mod retire;
pub mod setup;
pub mod stages;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
pub mod waiting;

pub use counters::{Counters, GuestCounters};
pub use guest::{GuestRegions, Registered};
pub use incoming::Incoming;
pub use landing::Landing;
pub use members::{MemberEntry, Tables};
pub use outgoing::Outgoing;
pub use pair::LocalPair;
pub use port_half::{Feed, PortHalf};
pub use retire::{Retired, Retiring};
pub use setup::{Setup, longest_frame};
