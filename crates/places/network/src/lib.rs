//! The network place: paths through a network with a controller, for deadlines that leave this host.
//!
//! ```text
//!  contracts ─▶ plan (pure) ─┬▶ Registration ──▶ ┌──── link ────┐ ── PUT, each third of the lease ──▶ controller
//!  evidence: pairs, ports ───┤   terms of paths ▶│ Book: what is│ ── requests, releases ───────────▶
//!                            └▶ late frames ────▶│ asked, stands│ ── misses, once a second ────────▶
//!  vnic show, why ◀─ observe ◀───────────────────│ newest View  │ ◀─ View: long poll ───────────────
//!                                                └──────────────┘
//! ```
//!
//! No vNIC is attached here, and no frame passes: a controller that is away changes what is promised, not what flows.
//!
//! - `place`, `action`: as the agent knows it
//! - `plan`: from contracts and the newest View to actions (pure)
//! - `registration`: what this host announces (pure)
//! - `arrivals`: what this host says about senders of other hosts (pure)
//! - `offer`: what the controller tells of other hosts, as tables for the agent (pure)
//! - `offering`: the thread that gives them
//! - `keys`: keys of segments that the controller gives
//! - `unknown`: receivers that no table has (pure)
//! - `request`: from terms, View and source port to a request (pure)
//! - `book`: the paths that are wanted, and when each is asked for (pure)
//! - `standing`: how a path stands with the controller (pure)
//! - `shown`: the same in words (pure)
//! - `news`: a View with what is looked up in it (pure)
//! - `misses`: late frames, as totals of this process (pure)
//! - `duty`: what is to be asked next, and what an answer means (pure)
//! - [`link`]: the threads that ask
//! - `controller`: what is asked, and the client that does it
//! - `bounds`: what a View may have (pure)
//! - `record`: paths on disk

mod action;
mod arrivals;
mod book;
mod bounds;
mod controller;
mod duty;
mod keys;
pub mod link;
mod misses;
mod news;
mod offer;
mod offering;
mod place;
mod plan;
mod record;
mod registration;
mod request;
mod shown;
mod standing;
mod unknown;

pub use controller::{Asks, Open, Trouble};
pub use place::{NetworkPlace, install};
