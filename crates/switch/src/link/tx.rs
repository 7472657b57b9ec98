//! The sending half of a link: takes frames and gives them back.

use super::reading::Reads;
pub use super::taken::{Absorbed, Pending, Taken};
use super::{Scratch, nic, tap, vhost, vxlan};
use crate::fdb::PortIndex;
use crate::sched::Queued;
use crate::slots::{Frame, FrameRef};
use crate::virtio::RingError;
use std::os::fd::BorrowedFd;

/// The sending half, in the VM's view.
pub enum Tx {
    /// Transmit rings in a guest's memory.
    Vhost(vhost::Tx),
    /// Frames that the kernel sends into a tap.
    Tap(Box<tap::Tx>),
    /// Frames that other hosts send.
    Vxlan(Box<vxlan::Tx>),
    /// Frames that come from the network behind a NIC.
    Nic(Box<nic::Tx>),
}

/// Rings in a guest's memory, or frames in own memory.
macro_rules! either {
    ($half:expr, $inner:ident => $what:expr) => { either!($half, $inner => $what, $inner => $what) };
    ($half:expr, $rings:ident => $of_rings:expr, $own:ident => $of_own:expr) => {
        match $half {
            Self::Vhost($rings) => $of_rings,
            Self::Tap($own) => $of_own,
            Self::Vxlan($own) => $of_own,
            Self::Nic($own) => $of_own,
        }
    };
}

impl Tx {
    /// Returns the number of queues.
    #[inline]
    pub fn queues(&self) -> usize {
        either!(self, tx => tx.queues())
    }

    /// Looks for frames in a queue at `now`; whether there are any.
    ///
    /// # Errors
    /// A fault of the VM.
    #[inline]
    pub fn poll(&mut self, queue: usize, now: u64) -> Result<bool, RingError> {
        either!(self, tx => tx.poll(queue, now), tx => Ok(tx.poll(now)))
    }

    /// Takes the next frame of a queue: copies its headers, refers to its payload. `ahead`: it will wait
    /// with those before it.
    #[inline]
    pub fn take(&mut self, queue: usize, scratch: &mut Scratch, ahead: bool) -> Taken {
        either!(self, tx => tx.take(queue, &mut scratch.chain, ahead), tx => tx.take())
    }

    /// Whether frames of a queue may be taken while earlier ones wait: of a ring up to its entries, or half
    /// of them if the VM relies on their order; of others as long as slots remain for
    /// [pieces](Self::slot_for_piece).
    #[inline]
    pub fn may_look_ahead(&self, queue: usize) -> bool {
        either!(self, tx => tx.may_look_ahead(queue), tx => tx.store.has_room())
    }

    /// Returns the entries of a frame's ring; `None` without rings.
    pub fn entries(&self, frame: &Frame) -> Option<u16> {
        match self {
            Self::Vhost(tx) => tx.entries(frame),
            Self::Tap(_) | Self::Vxlan(_) | Self::Nic(_) => None,
        }
    }

    /// Whether waiting frames are in own memory, and lost without room there, instead of in their VM's.
    #[inline]
    pub fn holds_frames(&self) -> bool {
        matches!(self, Self::Tap(_) | Self::Vxlan(_) | Self::Nic(_))
    }

    /// Puts a frame back that waits for tokens: it is taken first next time.
    ///
    /// # Panics
    /// In debug builds, if one waits already.
    #[inline]
    pub fn put_back(&mut self, pending: Pending) {
        either!(self, tx => tx.put_back(pending), tx => tx.store.put_back(pending));
    }

    /// Takes up to `most` frames that could otherwise be lost into own memory while earlier ones wait. A
    /// ring loses none.
    pub fn absorb(&mut self, most: usize) -> Absorbed {
        either!(self, _tx => Absorbed::default(), tx => tx.absorb(most))
    }

    /// Notes that a frame taken ahead waits.
    pub fn begin_wait(&mut self, frame: &Frame) {
        if let Self::Vhost(tx) = self {
            tx.begin_wait(frame);
        }
    }

    /// Notes that it no longer waits: it is sent, or goes back.
    pub fn end_wait(&mut self, frame: &Frame) {
        if let Self::Vhost(tx) = self {
            tx.end_wait(frame);
        }
    }

    /// Whether a waiting frame, or a part of it, may be sent: the sent frames are limited, and parts
    /// leave room for a whole frame of another flow.
    pub fn may_leave(&mut self, frame: &Frame, in_parts: bool) -> bool {
        either!(self, tx => tx.may_leave(frame, in_parts), tx => tx.store.may_leave(in_parts))
    }

    /// Returns a slot for a piece of `whole`.
    pub fn slot_for_piece(&mut self, whole: &Frame) -> Option<FrameRef> {
        either!(self, tx => tx.slot_for_piece(whole), tx => tx.store.slot_for_piece())
    }

    /// Returns a frame's memory once no worker refers to it. The last piece returns the whole's.
    #[inline]
    pub fn give_back(&mut self, frame: FrameRef) {
        match self {
            Self::Vhost(tx) => tx.give_back(frame),
            Self::Tap(tx) => _ = tx.store.give_back(frame),
            Self::Vxlan(tx) => tx.give_back(frame),
            Self::Nic(tx) => tx.give_back(frame),
        }
    }

    /// Like [`give_back`](Self::give_back), for frames of one transmit ring, or of a link without rings.
    #[inline]
    pub fn give_back_all(&mut self, frames: impl Iterator<Item = FrameRef> + Clone) {
        match self {
            Self::Vhost(tx) => tx.give_back_all(frames),
            Self::Tap(tx) => frames.for_each(|frame| _ = tx.store.give_back(frame)),
            Self::Vxlan(tx) => frames.for_each(|frame| tx.give_back(frame)),
            Self::Nic(tx) => frames.for_each(|frame| tx.give_back(frame)),
        }
    }

    /// Lets `egress` hold a frame of another host, whose egress the caller then sets; `false` if that holds
    /// its [part](vxlan::share) of the link's memory. Other links bound frames in flight otherwise.
    #[inline]
    pub fn hold(&mut self, frame: &Frame, egress: PortIndex) -> bool {
        match self {
            Self::Vxlan(tx) => tx.hold(frame, egress),
            Self::Nic(tx) => tx.hold(frame, egress),
            Self::Vhost(_) | Self::Tap(_) => true,
        }
    }

    /// Whether more frames of a queue are unreturned than may be in flight: completed ones wait for [an
    /// older one](Self::holds_back).
    #[inline]
    pub fn is_crowded(&self, queue: usize) -> bool {
        match self {
            Self::Vhost(tx) => tx.is_crowded(queue),
            Self::Tap(_) | Self::Vxlan(_) | Self::Nic(_) => false,
        }
    }

    /// Returns the frame in flight that delays the return of completed ones, as the VM relies on their
    /// order.
    pub fn holds_back(&self, queue: usize) -> Option<FrameRef> {
        match self {
            Self::Vhost(tx) => tx.holds_back(queue),
            Self::Tap(_) | Self::Vxlan(_) | Self::Nic(_) => None,
        }
    }

    /// Shows the VM its returned frames.
    #[inline]
    pub fn flush(&mut self) {
        if let Self::Vhost(tx) = self {
            tx.flush();
        }
    }

    /// Takes out a frame that waits for tokens; `None` if none remains.
    pub fn take_pending(&mut self) -> Option<Pending> {
        either!(self, tx => tx.take_pending(), tx => tx.store.take_pending())
    }

    /// Puts frames that wait for tokens back for the next process, as if they had not been taken; not those
    /// that were sent in part.
    pub fn untake_pending(&mut self) {
        if let Self::Vhost(tx) = self {
            tx.untake_pending();
        }
    }

    /// The same for unsent frames in `waiting` that end their rings. They are removed from `waiting`; the
    /// others stay in order.
    pub fn untake(&mut self, waiting: &mut Vec<Queued<Pending>>) {
        if let Self::Vhost(tx) = self {
            tx.untake(waiting);
        }
    }

    /// Returns the number of frames taken and not given back.
    pub fn in_flight(&self) -> usize {
        either!(self, tx => tx.in_flight(), tx => tx.store.in_flight())
    }

    /// Returns how many of these wait for tokens, unsent.
    pub fn waiting(&self) -> usize {
        either!(self, tx => tx.waiting(), tx => tx.store.waiting())
    }

    /// Counts frames in its rings as arrived at `now`: nothing was taken until then. Frames already read
    /// into own memory keep their arrival.
    pub fn count_as_arrived(&mut self, now: u64) {
        either!(self, tx => tx.count_as_arrived(now), tx => tx.readiness.restart(now));
    }

    /// Notes that it was empty at `since`, by a poll or a silent descriptor; the worker slept after that
    /// until `woke`, unless the two are equal.
    #[inline]
    pub fn note_sleep(&mut self, since: u64, woke: u64) {
        either!(self, tx => tx.note_sleep(since, woke), tx => tx.readiness.note_sleep(since, woke));
    }

    /// Returns descriptors that become readable with its frames, by queue. A link without any uses kicks.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let queues = match self {
            Self::Vhost(_) => &[][..],
            Self::Tap(tx) => tx.files(),
            Self::Vxlan(tx) => tx.sockets(),
            Self::Nic(tx) => tx.sockets(),
        };
        let lane = match self {
            Self::Vxlan(tx) => tx.rdma_descriptor(),
            Self::Vhost(_) | Self::Tap(_) | Self::Nic(_) => None,
        };
        queues.iter().map(|file| std::os::fd::AsFd::as_fd(&**file)).chain(lane)
    }

    /// Notes that a descriptor became readable after `since`, from when on the worker slept until `woke`,
    /// unless the two are equal.
    #[inline]
    pub fn note_readable(&mut self, queue: usize, since: u64, woke: u64) {
        either!(self, _tx => (), tx => tx.readiness.note_readable(queue, since, woke));
    }

    /// Notes that none of its [descriptors](Self::descriptors) is readable at `now`.
    #[inline]
    pub fn note_empty(&mut self, now: u64) {
        either!(self, _tx => (), tx => tx.readiness.note_empty(now));
    }

    /// Whether it may stay unpolled until it announces frames: each queue has a kick or a descriptor, and
    /// no frame waits for tokens.
    pub fn can_be_quiet(&self) -> bool {
        either!(self, tx => tx.can_be_quiet())
    }

    /// Whether [descriptors](Self::descriptors) announce its frames: polled or not, and without a system
    /// call of the VM.
    #[inline]
    pub fn has_descriptors(&self) -> bool {
        match self {
            Self::Vhost(_) => false,
            Self::Tap(_) | Self::Vxlan(_) | Self::Nic(_) => true,
        }
    }

    /// Asks for kicks; `true` if unannounced frames came. While `throttled`, only unseen ones count.
    pub fn request_kicks(&mut self, throttled: bool) -> bool {
        match self {
            Self::Vhost(tx) => tx.request_kicks(throttled),
            Self::Tap(_) | Self::Vxlan(_) | Self::Nic(_) => false,
        }
    }

    /// Declines kicks.
    #[inline]
    pub fn suppress_kicks(&mut self) {
        if let Self::Vhost(tx) = self {
            tx.suppress_kicks();
        }
    }

    /// Returns the pairs whose frames arrive with a deadline; `None` of a link that leads to no other host.
    #[inline]
    pub fn pairs(&self) -> Option<&vxlan::pairs::IncomingPairs> {
        match self {
            Self::Vxlan(tx) => Some(tx.pairs()),
            Self::Vhost(_) | Self::Tap(_) | Self::Nic(_) => None,
        }
    }

    /// Whether it [gives the kernel memory](Self::collect).
    pub fn collects(&self) -> bool {
        matches!(self, Self::Nic(tx) if tx.is_owner())
    }

    /// Gives the kernel the memory that other workers [gave back](Self::tells), and calls it if its driver waits for that.
    #[inline]
    pub fn collect(&mut self) {
        if let Self::Nic(tx) = self {
            tx.collect();
        }
    }

    /// Returns the worker that has to [collect](Self::collect) memory given back here; it is told once of each.
    #[inline]
    pub fn tells(&mut self) -> Option<u16> {
        match self {
            Self::Nic(tx) => tx.tells(),
            Self::Vhost(_) | Self::Tap(_) | Self::Vxlan(_) => None,
        }
    }

    /// Returns a guest's transmit rings, for the direct way.
    #[inline]
    pub fn rings(&mut self) -> Option<&mut vhost::Tx> {
        match self {
            Self::Vhost(tx) => Some(tx),
            Self::Tap(_) | Self::Vxlan(_) | Self::Nic(_) => None,
        }
    }
}
