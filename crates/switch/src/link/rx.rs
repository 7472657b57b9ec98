//! The receiving half of a link: frames are posted, completed, and shown.

#[cfg(test)]
use super::deferred;
pub use super::posted::{Completed, Posted};
use super::{Delivery, Scratch, tap, vhost};
use crate::slots::Frame;
use tidegate_evidence::DropReason;

/// The receiving half, in the VM's view.
pub enum Rx {
    /// Receive rings in a guest's memory.
    Vhost(vhost::Rx),
    /// What the kernel receives from a tap.
    Tap(tap::Rx),
    /// What a test completes.
    #[cfg(test)]
    Deferred(deferred::Rx),
}

impl Rx {
    /// How many chains of buffers wait where `frame` would go; `None` where only posting it tells whether there is room.
    #[inline]
    pub fn room(&mut self, frame: &Frame) -> Option<u16> {
        match self {
            Self::Vhost(rx) => rx.room(frame),
            _ => None,
        }
    }

    /// Writes what is to be delivered of a frame, as its receiver takes it: all of that, or segments from its beginning for
    /// which there are buffers. [`finish`](Self::finish) is to follow. A link that [reads it later](Self::lends_memory) takes
    /// frames whole.
    #[inline]
    pub fn post(&mut self, frame: &Frame, what: Delivery, scratch: &mut Scratch) -> Posted {
        scratch.filled = 0;
        if what != Delivery::WHOLE {
            self.post_part(frame, what, scratch)
        } else {
            self.post_whole(frame, scratch)
        }
    }

    #[inline(never)]
    fn post_part(&mut self, frame: &Frame, what: Delivery, scratch: &mut Scratch) -> Posted {
        debug_assert!(!self.lends_memory(), "the part is gone when it is read");
        match what.cut(frame) {
            Some(part) => self.post_whole(&part, scratch),
            None => Posted::Dropped(DropReason::Malformed),
        }
    }

    #[inline]
    fn post_whole(&mut self, frame: &Frame, scratch: &mut Scratch) -> Posted {
        match self {
            Self::Vhost(rx) => rx.post(frame, scratch),
            Self::Tap(rx) => rx.post(frame, scratch),
            #[cfg(test)]
            Self::Deferred(rx) => rx.post(frame),
        }
    }

    /// Writes the first of `frames`, which begin with `head`, as [`post`](Self::post) would each: how many are done, and what came
    /// of the next, where that was tried. Into rings, it writes those that ask for nothing and fit into one buffer each.
    /// `scratch.waiting` says how many wait, for which buffers may be taken. [`finish`](Self::finish) is to follow.
    #[inline]
    pub fn post_run<'a>(
        &mut self,
        head: &Frame,
        frames: impl Iterator<Item = &'a Frame>,
        scratch: &Scratch,
    ) -> (u32, Option<Posted>) {
        match self {
            Self::Vhost(rx) => (rx.post_run(head, frames, scratch.waiting), None),
            Self::Tap(rx) => rx.post_run(head, frames, scratch.hands_over),
            #[cfg(test)]
            Self::Deferred(_) => (0, None),
        }
    }

    /// Most frames that it holds; 0 where a post tells what became of the frame.
    pub fn depth(&self) -> usize {
        match self {
            Self::Vhost(_) => 0,
            Self::Tap(_) => super::writer::DEPTH,
            #[cfg(test)]
            Self::Deferred(rx) => rx.depth(),
        }
    }

    /// Whether a frame that it holds leads into its sender's memory.
    pub fn lends_memory(&self) -> bool {
        match self {
            Self::Vhost(_) | Self::Tap(_) => false,
            #[cfg(test)]
            Self::Deferred(rx) => rx.lends_memory(),
        }
    }

    /// Whether a frame with a deadline passes the best effort that it holds.
    #[inline]
    pub fn lets_pass(&self) -> bool {
        matches!(self, Self::Tap(_))
    }

    /// What became of the oldest frame that it holds; `None` while that is open.
    pub fn completed(&mut self) -> Option<Completed> {
        match self {
            Self::Vhost(_) => None,
            Self::Tap(rx) => rx.completed(),
            #[cfg(test)]
            Self::Deferred(rx) => rx.completed(),
        }
    }

    /// Gives up all that it holds: it neither reads nor delivers any of that when this returns. Does not wait for the
    /// receiver.
    pub fn cancel(&mut self) {
        match self {
            Self::Vhost(_) => {}
            Self::Tap(rx) => rx.cancel(),
            #[cfg(test)]
            Self::Deferred(rx) => rx.cancel(),
        }
    }

    /// Waits, for 0.1 s at most, until no other thread has a descriptor of it. Not for workers.
    pub fn wait_for_writer(&self) {
        if let Self::Tap(rx) = self {
            rx.wait_for_writer();
        }
    }

    /// What was posted is the VM's from now on: after the last of some frames, before anything else is done with it.
    #[inline]
    pub fn finish(&mut self) {
        if let Self::Vhost(rx) = self {
            rx.finish();
        }
    }

    /// Shows the VM what was posted.
    #[inline]
    pub fn flush(&mut self) {
        if let Self::Vhost(rx) = self {
            rx.flush();
        }
    }

    /// Nothing is posted until it is made anew.
    pub fn shut(&mut self) {
        if let Self::Vhost(rx) = self {
            rx.shut();
        }
    }

    /// Asks to be told when there is room again, or a frame completed; `true` where that is so already.
    pub fn request_kicks(&mut self) -> bool {
        match self {
            Self::Vhost(rx) => rx.request_kicks(),
            Self::Tap(rx) => rx.has_completed(),
            #[cfg(test)]
            Self::Deferred(rx) => rx.has_completed(),
        }
    }

    /// No kicks are needed.
    #[inline]
    pub fn suppress_kicks(&mut self) {
        if let Self::Vhost(rx) = self {
            rx.suppress_kicks();
        }
    }

    /// Whether it is a guest's receive rings that may be written without noting it.
    pub fn is_plain(&self) -> bool {
        self.rings_ref().is_some_and(|rings| !rings.enabled.is_empty() && !rings.is_logged())
    }

    /// A guest's receive rings, for the direct way.
    #[inline]
    pub fn rings(&mut self) -> Option<&mut vhost::Rx> {
        match self {
            Self::Vhost(rx) => Some(rx),
            _ => None,
        }
    }

    /// The same, to look at.
    #[inline]
    pub fn rings_ref(&self) -> Option<&vhost::Rx> {
        match self {
            Self::Vhost(rx) => Some(rx),
            _ => None,
        }
    }
}
