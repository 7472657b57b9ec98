//! What every place that talks to the kernel by netlink(7) needs: a socket, attributes, the headers of links and of
//! generic netlink.
//!
//! ```text
//!  request: kind, Attributes ──▶ Socket ──▶ kernel
//!                                  │
//!  answers: kind, attribute::read ◀┴─────── done, or its error number and its words
//! ```
//!
//! Framing and the system calls are libraries'. Numbers are in the machine's byte order.
//!
//! - [`attribute`]: attributes, and how they are nested
//! - [`socket`]: requests, answers, errors
//! - [`link`]: what messages of links begin with
//! - [`generic`]: generic netlink, where families of messages have names
//! - [`netfilter`]: the subsystems of Netfilter, such as nftables

pub mod attribute;
pub mod generic;
pub mod link;
pub mod netfilter;
pub mod socket;

pub use attribute::Attributes;
pub use generic::Generic;
pub use netfilter::Netfilter;
pub use socket::{NetlinkError, Socket};
