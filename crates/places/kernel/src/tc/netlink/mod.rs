//! What the plan and the kernel say to each other: rtnetlink(7).
//!
//! ```text
//!  observe:  dump ──▶ socket ──▶ kernel ──▶ messages ──▶ decode ──▶ Network
//!  apply:    Step ──▶ encode ──▶ socket ──▶ kernel ──▶ done, or its error number and its words
//! ```
//!
//! Framing and the socket are libraries'; the attributes of tc are ours: what HTB, u32, mirred and bpf are told decides
//! whether a rate is exact. Numbers are in the machine's byte order unless said otherwise.
//!
//! - [`tidegate_netlink`]: the socket, and attributes
//! - `bridge`: the VLANs of bridge ports, both ways
//! - `chains`: which chain a filter is in, where the kernel says several
//! - `constants`: the kernel's numbers
//! - `decode`: what a message says
//! - `encode`: the message of a step

pub(crate) mod bridge;
pub(crate) mod chains;
pub(crate) mod constants;
mod decode;
mod encode;

pub use decode::{QueueDrops, TrafficControl, link, traffic_control};
pub use encode::{Names, Request, header, request};
pub use tidegate_netlink::link::{header as link_header, named as link_named};
pub use tidegate_netlink::{NetlinkError, Socket, attribute};
