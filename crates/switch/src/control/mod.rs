//! What the agent asks of the switch, over a Unix stream socket.
//!
//! ```text
//!  agent ──client──▶ [length][JSON] + descriptors ──server──▶ switch
//! ```
//!
//! Each request gets one reply, in order. Descriptors travel with the bytes
//! of the request or reply they belong to (SCM_RIGHTS).
//!
//! - [`message`]: requests and replies
//! - [`channel`]: bytes and descriptors on the socket
//! - [`client`]: the agent's side
//! - [`keep`]: what the switch tells unasked, for the time after it

pub mod channel;
pub mod client;
pub mod keep;
pub mod message;

pub use crate::vhost_user::conduct::{Held, Quarantine};
pub use client::{Client, Link, SwitchError};
pub use message::{Connection, Hello, PortStatus};
