//! The guests of the command [`kills`](crate::commands::kills), on their own thread.

pub mod guests;

pub const MACS: [[u8; 6]; 2] = [[0x52, 0x54, 0, 0, 0, 0xa], [0x52, 0x54, 0, 0, 0, 0xb]];
