//! A link for tests: it holds posted frames, and completes them as its test says.

use super::delivery::payload;
use super::{Completed, Posted};
use crate::slots::Frame;
use crate::virtio::RingError;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use tidegate_evidence::DropReason;

/// Frames that it holds.
pub const DEPTH: usize = 24;

/// The receiving half.
pub struct Rx {
    held: VecDeque<DeferredFrame>,
    /// Polls that found the oldest frame open.
    polls: usize,
    script: Arc<Mutex<Script>>,
}

/// A frame; and a copy if its sender's memory is not lent.
struct DeferredFrame(Frame, Option<Vec<u8>>);

// SAFETY: it refers to its sender's memory, which belongs to the test's process while the frame is held.
unsafe impl Send for DeferredFrame {}

/// The answer of a post.
#[derive(Clone, Copy, Debug)]
pub enum Answer {
    /// It is delivered.
    Done,
    /// This many segments are delivered, if it has more; otherwise all.
    Part(u32),
    /// There is no buffer.
    NoBuffers,
    /// It can never be delivered.
    Dropped,
    /// The link is broken.
    Broken,
    /// The link holds it.
    Later,
}

/// How the link treats frames, and a record of them.
#[derive(Default)]
pub struct Script {
    /// Polls that find a frame open before one completes it.
    pub polls: usize,
    /// The next frame that ends is dropped for this.
    pub failure: Option<DropReason>,
    /// The link breaks at the next poll.
    pub breaks: bool,
    /// No buffers.
    pub full: bool,
    /// Answers of the next posts; afterwards the link holds posted frames.
    pub answers: VecDeque<Answer>,
    /// The link holds copies, and lends no sender's memory.
    pub copies: bool,
    /// Delivered frames with their memory at that time: head and payload.
    pub delivered: Vec<Vec<u8>>,
    /// Frames that were cancelled.
    pub cancelled: usize,
    /// Most bytes held, on the wire, and the number of those frames.
    pub most: (u64, usize),
}

impl Rx {
    /// Returns a link, and the control of its frames.
    pub fn new() -> (Self, Arc<Mutex<Script>>) {
        let script = Arc::<Mutex<Script>>::default();
        (Self { held: VecDeque::new(), polls: 0, script: script.clone() }, script)
    }

    fn script(&self) -> MutexGuard<'_, Script> {
        self.script.lock().unwrap()
    }

    pub(super) fn depth(&self) -> usize {
        DEPTH
    }

    pub(super) fn lends_memory(&self) -> bool {
        !self.script().copies
    }

    pub(super) fn post(&mut self, frame: &Frame) -> Posted {
        let mut script = self.script.lock().unwrap();
        if script.full {
            return Posted::NoBuffers;
        }
        match script.answers.pop_front().unwrap_or(Answer::Later) {
            Answer::Done => return Posted::Done,
            Answer::Part(segments) => {
                let part = frame.offload.gso_size().map(|size| segments * u32::from(size));
                return part.filter(|part| *part < payload(frame)).map_or(Posted::Done, Posted::Part);
            }
            Answer::NoBuffers => return Posted::NoBuffers,
            Answer::Dropped => return Posted::Dropped(DropReason::Unacceptable),
            Answer::Broken => return Posted::Broken(RingError::Size(0)),
            Answer::Later => {}
        }
        let copy = script.copies.then(|| bytes(frame));
        self.held.push_back(DeferredFrame(frame.clone(), copy));
        let bytes = self.held.iter().map(|held| u64::from(held.0.wire_bytes)).sum();
        script.most = script.most.max((bytes, self.held.len()));
        Posted::Later
    }

    pub(super) fn has_completed(&self) -> bool {
        let script = self.script();
        script.breaks || self.polls >= script.polls
    }

    pub(super) fn completed(&mut self) -> Option<Completed> {
        if !self.has_completed() {
            self.polls += 1;
            return None;
        }
        self.polls = 0;
        let mut script = self.script.lock().unwrap();
        if std::mem::take(&mut script.breaks) {
            return Some(Completed::Broken("its test broke it".into()));
        }
        let DeferredFrame(frame, copy) =
            self.held.pop_front().expect("nobody asks a link that holds nothing");
        if let Some(reason) = script.failure.take() {
            return Some(Completed::Dropped(reason));
        }
        script.delivered.push(copy.unwrap_or_else(|| bytes(&frame)));
        Some(Completed::Done)
    }

    pub(super) fn cancel(&mut self) {
        self.script.lock().unwrap().cancelled += self.held.len();
        self.held.clear();
        self.polls = 0;
    }
}

/// Returns a frame's head and payload.
fn bytes(frame: &Frame) -> Vec<u8> {
    let mut bytes = frame.head().to_vec();
    for span in frame.payload() {
        // SAFETY: the sender's memory is lent while the frame is held or posted.
        bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(span.ptr, span.len as usize) });
    }
    bytes
}
