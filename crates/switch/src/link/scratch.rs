//! Memory that a worker reuses for every frame.

use super::Delivery;
use super::writer::TapWriter;
use crate::frame::Payload;
use crate::slots::Frame;
use crate::virtio::{Chain, Span};

/// Most chains one frame may fill.
const MAX_CHAINS: usize = 1024;

/// Memory a worker reuses for every frame.
pub struct Scratch {
    /// The transmit chain being read.
    pub(super) chain: Chain,
    /// The receive chains being filled.
    pub(super) chains: Box<[Chain]>,
    /// The chains of a super-frame's segments.
    pub(super) parts: Vec<Part>,
    /// Frames that wait for the receiver: it may take buffers for so many.
    pub waiting: usize,
    /// Descriptors of the last frame's chains, filled or tried, without one of each chain that has several.
    pub filled: usize,
    /// Passes best effort for taps to another thread, if there is one.
    pub writer: Option<TapWriter>,
    /// That thread is to be used.
    pub hands_over: bool,
}

/// The chains of one segment.
pub(super) struct Part {
    pub first: usize,
    pub chains: usize,
}

impl Default for Scratch {
    fn default() -> Self {
        Self {
            chain: Chain::new(),
            chains: vec![Chain::new(); MAX_CHAINS].into_boxed_slice(),
            parts: Vec::with_capacity(256),
            waiting: 1,
            filled: 0,
            writer: None,
            hands_over: false,
        }
    }
}

/// Returns the part of a frame to deliver, as a frame with its payload in `buffer`, if it fits.
pub fn staged(frame: &Frame, what: Delivery, buffer: &mut [u8]) -> Option<Frame> {
    let mut staged = what.cut(frame)?;
    // SAFETY: the source's memory stays mapped while this worker holds its frame.
    let payload = unsafe { Payload::new(staged.payload()) };
    if payload.len() > buffer.len() {
        return None;
    }
    let len = payload.copy_to(0, buffer);
    staged.spans[0] = Span { ptr: buffer.as_mut_ptr(), len: len as u32 };
    staged.span_count = u16::from(len > 0);
    Some(staged)
}
