//! Messages between a guest and its host about the guest's soft limit, over a virtio-serial port.
//!
//! ```text
//!  guest: tidegate limit 400mbit                                     host: the agent
//!    Request ─ "1 7f3a set * 400mbit" ──▶ Lines ─▶ Session ─▶ Request ─▶ its own vNICs
//!    Reply ◀──────────── "1 7f3a vnic web 52:54:00:00:00:01 500mbit 400mbit 400mbit", "1 7f3a ok" ─┘
//! ```
//!
//! Only the standard library: the guest's program is small, static, and runs in any Linux guest. Pure: the
//! caller reads, writes and waits.
//!
//! - [`lines`]: bytes to lines of bounded length
//! - [`message`]: requests and replies
//! - [`session`]: the host's side of one port, against any guest
//! - [`pace`]: limits events per second

pub mod lines;
pub mod message;
pub mod pace;
pub mod session;

/// Name of the virtio-serial port.
pub const PORT: &str = "org.tidegate.limit.0";
