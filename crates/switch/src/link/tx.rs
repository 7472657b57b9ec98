//! The sending half of a link: frames are polled, taken, and given back.

pub use super::taken::{Absorbed, Pending, Taken};
use super::{Scratch, tap, vhost};
use crate::sched::Queued;
use crate::slots::{Frame, FrameRef};
use crate::virtio::RingError;
use std::os::fd::BorrowedFd;

/// The sending half, in the VM's view.
pub enum Tx {
    /// Transmit rings in a guest's memory.
    Vhost(vhost::Tx),
    /// What the kernel sends into a tap.
    Tap(Box<tap::Tx>),
}

macro_rules! either {
    ($half:expr, $inner:ident => $what:expr) => {
        match $half {
            Self::Vhost($inner) => $what,
            Self::Tap($inner) => $what,
        }
    };
}

impl Tx {
    /// Queues that are taken from one after the other.
    #[inline]
    pub fn queues(&self) -> usize {
        either!(self, tx => tx.queues())
    }

    /// Looks for frames in a queue at `now`; whether there is any to take.
    ///
    /// # Errors
    /// What the VM got wrong.
    #[inline]
    pub fn poll(&mut self, queue: usize, now: u64) -> Result<bool, RingError> {
        match self {
            Self::Vhost(tx) => tx.poll(queue, now),
            Self::Tap(tx) => Ok(tx.poll(now)),
        }
    }

    /// Takes the next frame of a queue: its headers are copied, its payload is referred to. `ahead`: it is to wait with
    /// those before it.
    #[inline]
    pub fn take(&mut self, queue: usize, scratch: &mut Scratch, ahead: bool) -> Taken {
        match self {
            Self::Vhost(tx) => tx.take(queue, &mut scratch.chain, ahead),
            Self::Tap(tx) => tx.take(),
        }
    }

    /// Whether frames of a queue may be taken although those before them wait: of a ring not more than its entries, or half
    /// of those where the VM relies on their order; of a tap not so many that no slot is left for
    /// [pieces](Self::slot_for_piece).
    #[inline]
    pub fn may_look_ahead(&self, queue: usize) -> bool {
        match self {
            Self::Vhost(tx) => tx.may_look_ahead(queue),
            Self::Tap(tx) => tx.may_look_ahead(),
        }
    }

    /// Entries of the ring that a frame was taken from; none of a tap.
    pub fn entries(&self, frame: &Frame) -> Option<u16> {
        match self {
            Self::Vhost(tx) => tx.entries(frame),
            Self::Tap(_) => None,
        }
    }

    /// Whether frames that wait do so in own memory, and are lost where there is no room: not in their VM's.
    #[inline]
    pub fn holds_frames(&self) -> bool {
        matches!(self, Self::Tap(_))
    }

    /// Puts a frame back that is taken again first: it waits for tokens.
    ///
    /// # Panics
    /// In debug builds, if one waits already.
    #[inline]
    pub fn put_back(&mut self, pending: Pending) {
        either!(self, tx => tx.put_back(pending));
    }

    /// Takes at most `most` frames that could otherwise be lost into own memory, while those before them wait. A
    /// ring keeps what is in it.
    pub fn absorb(&mut self, most: usize) -> Absorbed {
        match self {
            Self::Vhost(_) => Absorbed::default(),
            Self::Tap(tx) => tx.absorb(most),
        }
    }

    /// A frame was taken ahead, and waits.
    pub fn begin_wait(&mut self, frame: &Frame) {
        if let Self::Vhost(tx) = self {
            tx.begin_wait(frame);
        }
    }

    /// It waits no more: it is sent, or goes back.
    pub fn end_wait(&mut self, frame: &Frame) {
        if let Self::Vhost(tx) = self {
            tx.end_wait(frame);
        }
    }

    /// Whether a frame that waits, or a part of it, may be sent: not more are sent and not back than may be, and so many of
    /// these are parts that a whole frame of another flow still may.
    pub fn may_leave(&mut self, frame: &Frame, in_parts: bool) -> bool {
        either!(self, tx => tx.may_leave(frame, in_parts))
    }

    /// A slot for a piece of `whole`.
    pub fn slot_for_piece(&mut self, whole: &Frame) -> Option<FrameRef> {
        either!(self, tx => tx.slot_for_piece(whole))
    }

    /// Returns a frame's memory, once no worker refers to it. Of a piece, that of the whole goes back with the last.
    #[inline]
    pub fn give_back(&mut self, frame: FrameRef) {
        either!(self, tx => tx.give_back(frame));
    }

    /// As [`give_back`](Self::give_back), of frames of one transmit ring, or of a tap.
    #[inline]
    pub fn give_back_all(&mut self, frames: impl Iterator<Item = FrameRef> + Clone) {
        match self {
            Self::Vhost(tx) => tx.give_back_all(frames),
            Self::Tap(tx) => frames.for_each(|frame| tx.give_back(frame)),
        }
    }

    /// Whether more frames of a queue are not shown to the VM than may be in flight: those that are done wait for
    /// [an older one](Self::holds_back).
    #[inline]
    pub fn is_crowded(&self, queue: usize) -> bool {
        match self {
            Self::Vhost(tx) => tx.is_crowded(queue),
            Self::Tap(_) => false,
        }
    }

    /// The frame in flight that keeps frames that are done from being given back: the VM relies on their order.
    pub fn holds_back(&self, queue: usize) -> Option<FrameRef> {
        match self {
            Self::Vhost(tx) => tx.holds_back(queue),
            Self::Tap(_) => None,
        }
    }

    /// Shows the VM what was given back.
    #[inline]
    pub fn flush(&mut self) {
        if let Self::Vhost(tx) = self {
            tx.flush();
        }
    }

    /// Takes a frame that waits for tokens out for good; `None` when none is left.
    pub fn take_pending(&mut self) -> Option<Pending> {
        either!(self, tx => tx.take_pending())
    }

    /// Puts frames that wait for tokens back to where the process finds them that goes on, as if they had not been
    /// taken; not those of which a part was sent.
    pub fn untake_pending(&mut self) {
        if let Self::Vhost(tx) = self {
            tx.untake_pending();
        }
    }

    /// The same with frames that wait elsewhere, of which nothing was sent: those with which the rings end. They are taken out
    /// of `waiting`; the others stay in it, in their order.
    pub fn untake(&mut self, waiting: &mut Vec<Queued<Pending>>) {
        if let Self::Vhost(tx) = self {
            tx.untake(waiting);
        }
    }

    /// Frames that were taken and not given back.
    pub fn in_flight(&self) -> usize {
        either!(self, tx => tx.in_flight())
    }

    /// Of those, the ones that wait for tokens and of which no part was sent.
    pub fn waiting(&self) -> usize {
        either!(self, tx => tx.waiting())
    }

    /// It was not taken from until `now`: what its rings hold counts as arrived now. Frames that were read from a tap before
    /// keep their arrival.
    pub fn restart(&mut self, now: u64) {
        either!(self, tx => tx.restart(now));
    }

    /// It was seen empty at `since`, by a poll or because it told of nothing; the worker slept after that, until `woke`,
    /// unless the two are the same.
    #[inline]
    pub fn woke(&mut self, since: u64, woke: u64) {
        either!(self, tx => tx.woke(since, woke));
    }

    /// Descriptors that become readable when it has frames, by queue. A link without any tells by kicks.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let queues = match self {
            Self::Vhost(_) => &[][..],
            Self::Tap(tx) => tx.files(),
        };
        queues.iter().map(|file| std::os::fd::AsFd::as_fd(&**file))
    }

    /// Such a descriptor became readable: after `since`, from when on the worker slept until `woke`, unless the two are
    /// the same.
    #[inline]
    pub fn is_readable(&mut self, queue: usize, since: u64, woke: u64) {
        if let Self::Tap(tx) = self {
            tx.is_readable(queue, since, woke);
        }
    }

    /// None of its [descriptors](Self::descriptors) is readable at `now`.
    #[inline]
    pub fn note_empty(&mut self, now: u64) {
        if let Self::Tap(tx) = self {
            tx.note_empty(now);
        }
    }

    /// Whether it may be left unpolled until it tells of frames: it tells by a kick or a descriptor for each queue, and
    /// nothing waits for tokens.
    pub fn can_be_quiet(&self) -> bool {
        either!(self, tx => tx.can_be_quiet())
    }

    /// Whether [descriptors](Self::descriptors) tell of frames: they do so whether it is polled or not, and without a
    /// system call of the VM.
    #[inline]
    pub fn has_descriptors(&self) -> bool {
        match self {
            Self::Vhost(_) => false,
            Self::Tap(_) => true,
        }
    }

    /// Asks for kicks; `true` where frames came that no kick tells of. While it is `throttled`, only those that were
    /// not seen before count.
    pub fn request_kicks(&mut self, throttled: bool) -> bool {
        match self {
            Self::Vhost(tx) => tx.request_kicks(throttled),
            Self::Tap(_) => false,
        }
    }

    /// No kicks are needed.
    #[inline]
    pub fn suppress_kicks(&mut self) {
        if let Self::Vhost(tx) = self {
            tx.suppress_kicks();
        }
    }

    /// A guest's transmit rings, for the direct way.
    #[inline]
    pub fn rings(&mut self) -> Option<&mut vhost::Tx> {
        match self {
            Self::Vhost(tx) => Some(tx),
            Self::Tap(_) => None,
        }
    }
}
