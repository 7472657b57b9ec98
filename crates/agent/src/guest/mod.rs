//! The soft limit: what a guest asks for, through a virtio-serial port of its VM.
//!
//! ```text
//!  contracts' `guest` keys ─▶ ports ─ one task each ─▶ port: connect, read, write ─▶ Session: bounded, paced
//!                                                        │ limit: the board                  (tidegate_guest)
//!                                                        └ set: one at a time of all guests ─▶ reconciler
//!                                                                        SoftLimits: the lower of the two ◀┘
//! ```
//!
//! A guest's input is hostile. It affects only vNICs whose contracts name the guest's socket, can only make them
//! send less, and does not stop the agent's other work.
//!
//! - [`limits`]: the rule between the limits, as in `ulimit`. Pure
//! - [`ports`]: the sockets that contracts name
//! - [`port`]: one socket

pub mod limits;
mod port;
pub mod ports;
