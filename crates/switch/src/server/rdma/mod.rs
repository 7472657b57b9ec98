//! RDMA: devices that the switch was told to use, and the queue pairs of vNICs.
//!
//! ```text
//!  --rdma NAME ─▶ Devices ─▶ facts ─▶ Hello
//!                   └▶ Lane of an uplink (`server::lane`) ─▶ link
//!
//!  table of ports ── Wished ─┐                            ┌▶ Tables ─▶ link ── the former ones ─▶ retired
//!  peers' announcements ─────┼▶ thread `rdma`: Making ────┼▶ numbers of queue pairs ─▶ announcements
//!  failed queue pairs, time ─┘                            └▶ RdmaStatus ─▶ agent
//!  devices that offer more than a lane takes ─▶ Anew ─▶ uplink to be made anew ─▶ agent
//! ```
//!
//! One thread makes and destroys everything of a device but the lanes and the registrations of guests' memory: the kernel may take
//! milliseconds, and for an address handle a second. No lock is held meanwhile that a worker, a session or the thread of notices takes. Reasons: `docs/decisions/rdma-switch.md`.
//!
//! - [`devices`]: opens devices, and tells their state
//! - `wanted`: which queue pairs and members a link should have, by the table of ports
//! - [`plan`]: which queue pairs to make, replace and destroy
//! - [`handles`]: address handles of peers
//! - `guests`: guests' memory that a device may use, and who uses it; `locked`: how much of it
//! - `registering`: registers it
//! - `lending`: lends it to a link, and takes it back
//! - `landings`: where frames land in it; `land`: begins and ends that
//! - `making`: makes all these
//! - `anew`: uplinks for which a device could do more now
//! - `turn`: the thread
//! - `status`: the state of an uplink's RDMA

mod anew;
pub mod devices;
mod guests;
pub mod handles;
mod land;
mod landings;
mod lending;
mod locked;
mod making;
pub mod plan;
mod registering;
mod status;
mod turn;
mod wanted;

#[cfg(test)]
mod tests;

pub use devices::{Devices, Loaded};
pub(super) use guests::Kind;
pub(super) use status::of as status_of;
pub use turn::Rdma;
pub(super) use turn::spawn;
