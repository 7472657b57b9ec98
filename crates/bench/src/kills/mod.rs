//! The guests of the command [`kills`](crate::commands::kills).
//!
//! ```text
//!  guests: two, on a thread of their own
//! ```

pub mod guests;

/// MACs of the two guests.
pub const MACS: [[u8; 6]; 2] = [[0x52, 0x54, 0, 0, 0, 0xa], [0x52, 0x54, 0, 0, 0, 0xb]];
