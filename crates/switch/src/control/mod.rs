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
//! - `answer`: what the agent takes for an answer
//! - [`notes`]: what the switch tells unasked, for the time after it
//! - [`handover`]: all of that, as it is kept
//!
//! An intruder may control a switch: it reads what guests write. So what it says is bounded here, on the
//! agent's side, in bytes, entries, descriptors and time, and checked; statistics are mapped only where they can never
//! fault ([`Reader::open`](crate::stats::Reader::open)).

mod answer;
pub mod channel;
pub mod client;
pub mod handover;
pub mod message;
pub mod notes;

pub use client::{Attachment, Client, SwitchError};
pub use message::{Hello, PortStatus};

/// `text`, cut to whole characters within `room` bytes.
fn clip(mut text: String, room: usize) -> String {
    text.truncate(tidegate_visible::beginning(&text, room).len());
    text
}
