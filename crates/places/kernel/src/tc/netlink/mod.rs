//! Messages between the plan and the kernel: rtnetlink(7).
//!
//! ```text
//!  observe:  dump ──▶ socket ──▶ kernel ──▶ messages ──▶ decode ──▶ Network
//!  apply:    Step ──▶ encode ──▶ socket ──▶ kernel ──▶ done, or its error number and its words
//! ```
//!
//! [`tidegate_netlink`] has the socket; tc's attributes are ours: the parameters of HTB, u32, mirred and bpf
//! decide whether a rate is exact. Numbers are in the machine's byte order unless stated otherwise.
//!
//! - `bridge`: the VLANs of bridge ports, both ways
//! - `chains`: the real chain of a filter that appears in several
//! - `constants`: the kernel's numbers
//! - `decode`: from messages to objects
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
