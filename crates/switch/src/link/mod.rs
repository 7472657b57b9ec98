//! A link: how frames get from a VM into the switch, and out to it.
//!
//! ```text
//!            ┌ poll ─▶ take ─▶ Frame ─▶ (worker decides) ─┬▶ put back: waits for tokens
//!  VM ─▶ Tx ─┤                                            └▶ egress ... fate ─▶ give back
//!            └ flush: what was given back is shown
//!
//!            ┌ room? ─▶ post ─┬▶ Posted::Done, NoBuffers, Dropped, Broken
//!  VM ◀─ Rx ─┤                └▶ Posted::Later: held ─▶ completed, the oldest first
//!            └ flush: what was posted is shown    └▶ cancelled
//!
//!  both: readiness (descriptors, kicks), restart, loss of memory
//! ```
//!
//! [`Tx`] and [`Rx`] are the two halves, each an enum of the kinds of link. Nothing outside of this folder
//! asks which kind a link is. Two capabilities are offered instead, as `Option`s: [`Tx::rings`] and
//! [`Rx::rings`] lend a guest's rings to the direct way, and [`Link::vhost`] takes what a front end changes.
//!
//! - [`vhost`]: rings in a guest's memory
//! - [`tap`]: a network interface of the kernel
//! - [`receiver`]: what a receiver takes as it is, and what is finished for it
//! - [`scratch`]: memory that a worker reuses for every frame
//! - `deferred`: one for tests, which completes later

#[cfg(test)]
pub mod deferred;
pub mod receiver;
pub mod scratch;
pub mod tap;
pub mod vhost;

pub use receiver::Receiver;
pub use scratch::Scratch;

use crate::fdb::PortIndex;
use crate::port::{Frame, FrameRef};
use crate::stats::DropReason;
use crate::virtio::RingError;
use std::os::fd::{BorrowedFd, OwnedFd};

/// Both halves of a link.
pub struct Link {
    /// What the VM sends.
    pub tx: Tx,
    /// What the VM receives.
    pub rx: Rx,
}

/// The sending half, in the VM's view.
pub enum Tx {
    /// Transmit rings in a guest's memory.
    Vhost(vhost::Tx),
    /// What the kernel sends into a tap.
    Tap(Box<tap::Tx>),
}

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

/// A frame that was taken and waits for tokens.
#[derive(Clone, Copy, Debug)]
pub struct Pending {
    /// The frame.
    pub frame: FrameRef,
    /// When it arrived, ns.
    pub arrival: u64,
    /// Payload bytes already sent in pieces.
    pub sent: u32,
}

/// What came of taking one frame.
#[derive(Debug)]
pub enum Taken {
    /// A frame that was not looked at yet, and how many descriptors it was in.
    New(Pending, usize),
    /// The frame that was [put back](Tx::put_back).
    Again(Pending),
    /// Not a frame, or one there is no room for: dropped, and how many descriptors it was in.
    Dropped(DropReason, usize),
    /// There is none.
    Nothing,
    /// As many are in flight as may be.
    Full,
    /// The link lies, or is gone: why.
    Broken(String),
}

/// What came of posting one frame.
#[derive(Debug, PartialEq, Eq)]
pub enum Posted {
    /// It is in the receiver's buffers. A link that holds a frame does not answer this: the later frame would overtake.
    Done,
    /// The link holds it, and reads the sender's memory until the frame is [completed](Rx::completed) or
    /// [cancelled](Rx::cancel).
    Later,
    /// The receiver gave too few buffers; nothing was written.
    NoBuffers,
    /// It can never be delivered.
    Dropped(DropReason),
    /// The receiver's ring lies.
    Broken(RingError),
}

/// What became of the oldest frame that a link held. It does not say which: no frame can overtake another.
#[derive(Debug, PartialEq, Eq)]
pub enum Completed {
    /// It is with the receiver.
    Done,
    /// It was not delivered.
    Dropped(DropReason),
    /// The link is gone, with all that it held: why.
    Broken(String),
}

/// What was taken into own memory while frames before it waited.
#[derive(Debug, Default)]
pub struct Absorbed {
    /// Frames that wait now, or were dropped.
    pub frames: usize,
    /// Bytes of those that wait.
    pub bytes: usize,
    /// How many there was no room for.
    pub full: u64,
    /// How many were no frames.
    pub malformed: u64,
    /// The link is gone: why.
    pub broken: Option<String>,
}

macro_rules! either {
    ($half:expr, $inner:ident => $what:expr) => {
        match $half {
            Self::Vhost($inner) => $what,
            Self::Tap($inner) => $what,
        }
    };
}

impl Link {
    /// Rings of a guest whose front end is not connected yet.
    pub fn vhost_user() -> Self {
        Self { tx: Tx::Vhost(vhost::Tx::default()), rx: Rx::Vhost(vhost::Rx::default()) }
    }

    /// A tap whose descriptors the agent opened, one for each queue, for port `port` of `worker`.
    pub fn tap(files: Vec<OwnedFd>, port: PortIndex, worker: u16, now: u64) -> Self {
        let (tx, rx) = tap::halves(files, port, worker, now);
        Self { tx: Tx::Tap(Box::new(tx)), rx: Rx::Tap(rx) }
    }

    /// What a front end changes; none where there is no front end.
    pub fn vhost(&mut self) -> Option<vhost::Control<'_>> {
        match self {
            Self { tx: Tx::Vhost(tx), rx: Rx::Vhost(rx) } => Some(vhost::Control { tx, rx }),
            _ => None,
        }
    }

    /// Shows the VM what was given back and posted.
    #[inline]
    pub fn flush(&mut self) {
        self.tx.flush();
        self.rx.flush();
    }

    /// Whether memory that it lies in was lost (see [`sigbus`](crate::virtio::sigbus)).
    pub fn is_lost(&self) -> bool {
        match &self.tx {
            Tx::Vhost(tx) => tx.is_lost(),
            Tx::Tap(_) => false,
        }
    }
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

    /// Takes the next frame of a queue: its headers are copied, its payload is referred to.
    #[inline]
    pub fn take(&mut self, queue: usize, scratch: &mut Scratch) -> Taken {
        match self {
            Self::Vhost(tx) => tx.take(queue, &mut scratch.chain),
            Self::Tap(tx) => tx.take(),
        }
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

    /// The worker slept, or saw it empty by other means, until `now`: what comes from now on arrived at `now` or later.
    #[inline]
    pub fn woke(&mut self, now: u64) {
        either!(self, tx => tx.woke(now));
    }

    /// Descriptors that become readable when it has frames, by queue. A link without any tells by kicks.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let queues = match self {
            Self::Vhost(_) => &[][..],
            Self::Tap(tx) => tx.files(),
        };
        queues.iter().map(|file| std::os::fd::AsFd::as_fd(&**file))
    }

    /// Such a descriptor became readable.
    #[inline]
    pub fn is_readable(&mut self, queue: usize) {
        if let Self::Tap(tx) = self {
            tx.is_readable(queue);
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

impl Rx {
    /// How many chains of buffers wait where `frame` would go; `None` where only posting it tells whether there is room.
    #[inline]
    pub fn room(&mut self, frame: &Frame) -> Option<u16> {
        match self {
            Self::Vhost(rx) => rx.room(frame),
            _ => None,
        }
    }

    /// Writes a frame, as its receiver takes it. [`finish`](Self::finish) is to follow.
    #[inline]
    pub fn post(&mut self, frame: &Frame, scratch: &mut Scratch) -> Posted {
        scratch.filled = 0;
        match self {
            Self::Vhost(rx) => rx.post(frame, scratch),
            Self::Tap(rx) => rx.post(frame),
            #[cfg(test)]
            Self::Deferred(rx) => rx.post(frame),
        }
    }

    /// Writes the first of `frames`, which begin with `head`, as [`post`](Self::post) would each: how many are done, and what came
    /// of the next, where that was tried. Into rings, it writes those that ask for nothing and fit into one buffer each.
    /// `waiting`: how many wait, for which buffers may be taken. [`finish`](Self::finish) is to follow.
    #[inline]
    pub fn post_run<'a>(
        &mut self,
        head: &Frame,
        frames: impl Iterator<Item = &'a Frame>,
        waiting: usize,
    ) -> (u32, Option<Posted>) {
        match self {
            Self::Vhost(rx) => (rx.post_run(head, frames, waiting), None),
            Self::Tap(rx) => rx.post_run(frames),
            #[cfg(test)]
            Self::Deferred(_) => (0, None),
        }
    }

    /// Most frames that it holds; 0 where a post tells what became of the frame.
    pub fn depth(&self) -> usize {
        match self {
            Self::Vhost(_) | Self::Tap(_) => 0,
            #[cfg(test)]
            Self::Deferred(rx) => rx.depth(),
        }
    }

    /// What became of the oldest frame that it holds; `None` while that is open.
    pub fn completed(&mut self) -> Option<Completed> {
        match self {
            Self::Vhost(_) | Self::Tap(_) => None,
            #[cfg(test)]
            Self::Deferred(rx) => rx.completed(),
        }
    }

    /// Gives up all that it holds: it neither reads nor delivers any of that when this returns. Does not wait for the
    /// receiver.
    pub fn cancel(&mut self) {
        match self {
            Self::Vhost(_) | Self::Tap(_) => {}
            #[cfg(test)]
            Self::Deferred(rx) => rx.cancel(),
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
            Self::Tap(_) => false,
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
