//! netlink(7): the socket, attributes, and the messages that name no place's types.
//!
//! ```text
//!  request: kind, Attributes ──▶ Socket ──▶ kernel
//!                                  │
//!  answers: kind, attribute::read ◀┴─────── done, or its error number and its words
//! ```
//!
//! Messages that encode the steps of a place's plan, or decode into its observed state, are in that place.
//! Libraries do the framing and the system calls. Numbers are in the machine's byte order.
//!
//! - [`attribute`]: attributes, and how they are nested
//! - [`socket`]: requests, answers, errors
//! - [`link`]: the header of link messages
//! - [`vf`]: link messages with SR-IOV virtual functions
//! - [`generic`]: generic netlink, where families of messages have names
//! - [`devlink`], [`ethtool`]: two of these families
//! - [`netfilter`]: the subsystems of Netfilter, such as nftables

pub mod attribute;
pub mod devlink;
pub mod ethtool;
pub mod generic;
pub mod link;
pub mod netfilter;
#[cfg(test)]
mod recorded_tests;
pub mod socket;
pub mod vf;

pub use attribute::Attributes;
pub use generic::Generic;
pub use netfilter::Netfilter;
pub use socket::{NetlinkError, Socket};
