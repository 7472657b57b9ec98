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
//! - [`attribute`]: attributes, and how they are nested
//! - `bridge`: the VLANs of bridge ports, both ways
//! - `constants`: the kernel's numbers
//! - `decode`: what a message says
//! - `encode`: the message of a step
//! - [`socket`]: requests, answers, errors

pub mod attribute;
pub(crate) mod bridge;
pub(crate) mod constants;
mod decode;
mod encode;
pub mod socket;

pub use decode::{TrafficControl, link, traffic_control};
pub use encode::{Names, Request, header, link_header, link_named, request};
pub use socket::{NetlinkError, Socket};
