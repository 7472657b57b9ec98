//! The agent's requests to the switch, over a Unix stream socket.
//!
//! ```text
//!  agent ──client──▶ [length][JSON] + descriptors ──server──▶ switch
//! ```
//!
//! Each request gets one reply, in order. Descriptors travel with the bytes of their request or reply (SCM_RIGHTS).
//!
//! - [`message`]: requests and replies
//! - [`channel`]: bytes and descriptors on the socket
//! - [`client`]: the agent's side
//! - `answer`: receives and checks answers
//! - [`notes`]: state that the switch sends unasked, for its successor
//! - [`handover`]: collects that state
//! - `rdma`: checks what a switch says of RDMA
//!
//! An intruder may control a switch, which reads guests' frames. So the agent's side bounds all it receives
//! in bytes, entries, descriptors and time, and checks it; it maps statistics only if they can never fault
//! ([`Reader::open`](crate::stats::Reader::open)).

mod answer;
pub mod channel;
pub mod client;
pub mod handover;
pub mod message;
pub mod notes;
mod rdma;

pub use client::{Attachment, Client, SwitchError, UplinkSockets};
pub use message::{Hello, KeyPrint, PairPort, PortOrders, PortStatus, UplinkStatus, WorkStatus};

/// Longest text of a switch that is passed on (bytes).
const TEXT: usize = 1000;

/// Makes a text of a switch visible, and cuts it.
fn visible_text(text: String) -> String {
    clip(tidegate_visible::visible(&text).into_owned(), TEXT)
}

/// Cuts `text` to whole characters within `room` bytes.
fn clip(mut text: String, room: usize) -> String {
    text.truncate(tidegate_visible::beginning(&text, room).len());
    text
}
