//! Foreign objects on a netdev: qdiscs, classes and filters that other software made. They are remembered when a contract takes the
//! netdev over, and restored when the contract goes.
//!
//! ```text
//!  kernel ── dump ──▶ Object … ─ settings ─▶ TakenOver ─▶ state file
//!                                              │
//!            rehearse: made in another namespace, read back: equal?    before the netdev is touched
//!                                              │
//!  kernel ◀── Step::Restore ◀── restore (pure) ◀┘ ◀── the netdev at that time
//! ```
//!
//! The attributes that the kernel reports of an object are those that make such an object, apart from counters and derived values. So
//! this code need not understand each kind. The rehearsal shows whether that holds for the objects at hand.
//!
//! - `taken_over`: the objects to restore
//! - `settings`: the attributes of a kind that are settings
//! - `options`: the options that make the kernel report the same settings
//! - `filter`: both, for filters and their policers
//! - `read`: from the kernel to objects
//! - `bridge_port`: the VLANs of a bridge port
//! - `rewrite`: netlink attributes, rewritten
//! - `restore`: from objects to steps
//! - `rehearse`: whether objects can be restored

mod bridge_port;
mod filter;
mod options;
mod read;
#[cfg(test)]
mod recorded;
mod rehearse;
mod restore;
mod rewrite;
mod settings;
mod taken_over;

pub use crate::tc::object::{Layer, Object};
pub use bridge_port::BridgePort;
pub use rehearse::rehearse;
pub use taken_over::{TakenOver, Unrestorable};
