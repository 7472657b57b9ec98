//! Memory that a worker reuses for every frame, and copying a frame into it.

use super::Delivery;
use super::writer::Hand;
use crate::frame::Payload;
use crate::slots::Frame;
use crate::virtio::{Chain, Span};

/// Most chains one frame may fill.
const MAX_CHAINS: usize = 1024;

/// Memory a worker reuses for every frame.
pub struct Scratch {
    /// The transmit chain being looked at.
    pub(super) chain: Chain,
    /// The receive chains being filled.
    pub(super) chains: Box<[Chain]>,
    /// Segments of one super-frame: their chains.
    pub(super) parts: Vec<Part>,
    /// How many frames wait for the receiver that is posted to: it may take buffers for so many.
    pub waiting: usize,
    /// Descriptors of the chains that the last frame filled, or was tried to, but for one of each chain that has several.
    pub filled: usize,
    /// Gives best effort into taps to another thread; none where there is no such thread.
    pub hand: Option<Hand>,
    /// It is to.
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
            hand: None,
            hands_over: false,
        }
    }
}

/// What is to be delivered of a frame, as one whose payload is in `buffer`, where it fits.
pub fn staged(frame: &Frame, what: Delivery, buffer: &mut [u8]) -> Option<Frame> {
    let mut staged = what.cut(frame)?;
    // SAFETY: the source's memory is mapped for as long as its frame is in our hands.
    let payload = unsafe { Payload::new(staged.payload()) };
    if payload.len() > buffer.len() {
        return None;
    }
    let len = payload.copy_to(0, buffer);
    staged.spans[0] = Span { ptr: buffer.as_mut_ptr(), len: len as u32 };
    staged.span_count = u16::from(len > 0);
    Some(staged)
}
