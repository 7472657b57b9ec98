//! Frames in flight and their memory.
//!
//! ```text
//!  link: taken ─▶ Slots ─▶ FrameRef: header, addresses of the body, arrival ─▶ worker ─▶ receiver ─▶ given back
//!                 Buffers: bodies of the switch's own, such as copies of floods
//! ```
//!
//! - [`slot`]: frames and their slots
//! - [`body`]: parts of a frame's body
//! - [`buffers`]: the switch's own memory for bodies
//! - [`arrival`]: when a frame arrived: an interval
//! - `leaks`: slots and buffers that were never given back

pub mod arrival;
pub mod body;
pub mod buffers;
mod leaks;
pub mod slot;

pub use arrival::Arrival;
pub use body::{body_spans, slice_spans};
pub use leaks::leaked;
pub use slot::{Frame, FrameRef, NEVER, NOWHERE, Owner, Slots, Stamped};
