//! The soft limit: what a guest asks for, through a virtio-serial port of its VM.
//!
//! ```text
//!  contracts' `guest` keys ─▶ ports ─ one task each ─▶ port: connect, read, write ─▶ Session: bounded, paced
//!                                                        │ limit: the board                  (tidegate_guest)
//!                                                        └ set: one at a time of all guests ─▶ reconciler
//!                                                                        SoftLimits: the lower of the two ◀┘
//! ```
//!
//! What a guest says is hostile input. It reaches the vNICs whose contracts name its socket, and no others; it can only
//! ever make them send less; and however much it says, the agent's other work goes on.
//!
//! - [`limits`]: the rule, `ulimit`'s. Pure
//! - [`ports`]: which sockets there are
//! - [`port`]: one of them

pub mod limits;
mod port;
pub mod ports;
