//! What is fuzzed: functions of bytes that panic where something that must hold does not.
//!
//! ```text
//!  libFuzzer ─▶ fuzz_targets ─┐
//!                             ├─▶ run(bytes) ─▶ the project's own code
//!  corpus ────▶ tests/corpus ─┘
//! ```
//!
//! - [`ring`]: a device's work on rings that their driver changes between any two steps
//! - [`messages`]: what a front end says on its socket
//! - [`frame`]: headers, offload requests, segments and checksums
//! - [`contract`]: contracts, read and written
//! - [`guest`]: what a guest says on its limit port
//! - [`switch`]: what a switch says to the agent

mod bytes;
pub mod contract;
mod files;
pub mod frame;
pub mod guest;
pub mod messages;
pub mod ring;
mod said_place;
pub mod switch;

use files::{Files, send};

/// Takes any bytes; panics where something is wrong with what they led to.
pub type Target = fn(&[u8]);

/// The targets by name.
pub const TARGETS: [(&str, Target); 6] = [
    ("ring", ring::run),
    ("messages", messages::run),
    ("frame", frame::run),
    ("contract", contract::run),
    ("guest", guest::run),
    ("switch", switch::run),
];
