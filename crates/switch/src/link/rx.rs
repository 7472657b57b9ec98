//! The receiving half of a link: frames are posted, completed, and shown.

#[cfg(test)]
use super::deferred;
pub use super::posted::{Completed, LONGEST, Posted};
use super::{Delivery, Scratch, nic, tap, vhost, vxlan};
use crate::slots::Frame;
use tidegate_evidence::DropReason;

/// The receiving half, in the VM's view.
pub enum Rx {
    /// Receive rings in a guest's memory.
    Vhost(vhost::Rx),
    /// Frames that the kernel receives from a tap.
    Tap(tap::Rx),
    /// Frames that other hosts receive.
    Vxlan(Box<vxlan::Rx>),
    /// Frames that go to the network behind a NIC.
    Nic(Box<nic::Rx>),
    /// Frames that a test completes.
    #[cfg(test)]
    Deferred(deferred::Rx),
}

impl Rx {
    /// Returns how many chains of buffers wait for `frame`; `None` if only posting it tells.
    #[inline]
    pub fn room(&mut self, frame: &Frame) -> Option<u16> {
        match self {
            Self::Vhost(rx) => rx.room(frame),
            _ => None,
        }
    }

    /// Writes the part `what` of a frame in its receiver's form: all, or segments from its beginning for
    /// which there are buffers. The caller then calls [`finish`](Self::finish). A link that [reads it
    /// later](Self::lends_memory) takes frames whole.
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
            Self::Vxlan(rx) => rx.post(frame),
            Self::Nic(rx) => rx.post(frame),
            #[cfg(test)]
            Self::Deferred(rx) => rx.post(frame),
        }
    }

    /// Writes the first of `frames`, which begin with `head`, as [`post`](Self::post) would each: returns
    /// how many are done, and the next one's result if tried. In rings, it writes frames without requests
    /// that fit into one buffer each. `scratch.waiting` frames wait: buffers may be taken for as many. The
    /// caller then calls [`finish`](Self::finish).
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
            Self::Vxlan(rx) => rx.post_run(head, frames),
            Self::Nic(rx) => rx.post_run(frames),
            #[cfg(test)]
            Self::Deferred(_) => (0, None),
        }
    }

    /// Returns the most frames that it holds; 0 if a post tells a frame's end.
    pub fn depth(&self) -> usize {
        match self {
            Self::Vhost(_) | Self::Nic(_) => 0,
            Self::Vxlan(rx) => rx.depth(),
            Self::Tap(_) => super::writer::DEPTH,
            #[cfg(test)]
            Self::Deferred(rx) => rx.depth(),
        }
    }

    /// Returns the longest time for which it holds a frame (ns).
    pub fn longest(&self) -> u64 {
        match self {
            Self::Vxlan(_) => super::rdma::outgoing::LENT,
            _ => LONGEST,
        }
    }

    /// Whether it bounds what it holds, by a post without room; otherwise its port does.
    #[inline]
    pub fn bounds_itself(&self) -> bool {
        matches!(self, Self::Vxlan(_))
    }

    /// Whether a held frame points into its sender's memory by the spans that were posted: these have to stay. A link to other
    /// hosts knows the memory by itself.
    pub fn lends_memory(&self) -> bool {
        match self {
            Self::Vhost(_) | Self::Tap(_) | Self::Vxlan(_) | Self::Nic(_) => false,
            #[cfg(test)]
            Self::Deferred(rx) => rx.lends_memory(),
        }
    }

    /// Whether a frame with a deadline passes held best effort.
    #[inline]
    pub fn lets_realtime_pass(&self) -> bool {
        matches!(self, Self::Tap(_) | Self::Vxlan(_))
    }

    /// Returns the end of its oldest held frame; `None` while that is open.
    pub fn completed(&mut self) -> Option<Completed> {
        match self {
            Self::Vhost(_) | Self::Nic(_) => None,
            Self::Vxlan(rx) => rx.completed(),
            Self::Tap(rx) => rx.completed(),
            #[cfg(test)]
            Self::Deferred(rx) => rx.completed(),
        }
    }

    /// Gives up all held frames: afterwards it neither reads nor delivers any, but for those that a
    /// [device](super::rdma) has. Does not wait for the receiver.
    pub fn cancel(&mut self) {
        match self {
            Self::Vhost(_) | Self::Nic(_) => {}
            Self::Vxlan(rx) => rx.cancel(),
            Self::Tap(rx) => rx.cancel(),
            #[cfg(test)]
            Self::Deferred(rx) => rx.cancel(),
        }
    }

    /// Waits up to 0.1 s until no other thread has its descriptor. Not for workers.
    pub fn wait_for_writer(&self) {
        if let Self::Tap(rx) = self {
            rx.wait_for_writer();
        }
    }

    /// Hands posted frames to the VM: after the last of some frames, before any other use.
    #[inline]
    pub fn finish(&mut self) {
        if let Self::Vhost(rx) = self {
            rx.finish();
        }
    }

    /// Shows posted frames to the VM, or sends them to other hosts.
    #[inline]
    pub fn flush(&mut self) {
        match self {
            Self::Vhost(rx) => rx.flush(),
            Self::Vxlan(rx) => rx.flush(),
            Self::Nic(rx) => rx.flush(),
            _ => {}
        }
    }

    /// Whether frames may wait at `now` (ns) for more that leave with them: those to other hosts, for a short time.
    #[inline]
    pub fn gathers(&mut self, now: u64) -> bool {
        match self {
            Self::Vxlan(rx) => rx.gathers(now),
            _ => false,
        }
    }

    /// Whether posted frames wait for more, and are not yet sent.
    #[inline]
    pub fn is_gathering(&self) -> bool {
        matches!(self, Self::Vxlan(rx) if rx.is_gathering())
    }

    /// Whether a flush left frames that the next one is to send: the kernel had no room for them.
    #[inline]
    pub fn has_unsent(&self) -> bool {
        match self {
            Self::Vxlan(rx) => rx.has_unsent(),
            Self::Nic(rx) => rx.has_unsent(),
            _ => false,
        }
    }

    /// Returns what a link to other hosts put on the wire since the last call; nothing of others.
    #[inline]
    pub fn take_on_wire(&mut self) -> vxlan::OnWire {
        match self {
            Self::Vxlan(rx) => rx.take_on_wire(),
            Self::Nic(rx) => rx.take_on_wire(),
            _ => vxlan::OnWire::default(),
        }
    }

    /// Calls `count` for the frames that a link to other hosts dropped after they were posted, since the last call.
    pub fn take_dropped(&mut self, count: impl FnMut((DropReason, u64))) {
        match self {
            Self::Vxlan(rx) => rx.take_dropped().for_each(count),
            Self::Nic(rx) => rx.take_dropped().for_each(count),
            _ => {}
        }
    }

    /// Refuses posts until it is made anew.
    pub fn refuse_posts(&mut self) {
        if let Self::Vhost(rx) = self {
            rx.refuse_posts();
        }
    }

    /// Asks for a kick when there is room or a frame completed; `true` if that is so already, or if unsent
    /// frames must be tried again.
    pub fn request_kicks(&mut self) -> bool {
        match self {
            Self::Vhost(rx) => rx.request_kicks(),
            Self::Tap(rx) => rx.has_completed(),
            Self::Vxlan(rx) => rx.has_unsent() || rx.has_completed(),
            Self::Nic(rx) => rx.has_unsent(),
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

    /// Whether it is a guest's receive rings without a log of writes.
    pub fn is_plain(&self) -> bool {
        self.rings_ref().is_some_and(|rings| !rings.enabled.is_empty() && !rings.is_logged())
    }

    /// Returns a guest's receive rings, for the direct way.
    #[inline]
    pub fn rings(&mut self) -> Option<&mut vhost::Rx> {
        match self {
            Self::Vhost(rx) => Some(rx),
            _ => None,
        }
    }

    /// The same, for reading.
    #[inline]
    pub fn rings_ref(&self) -> Option<&vhost::Rx> {
        match self {
            Self::Vhost(rx) => Some(rx),
            _ => None,
        }
    }
}
