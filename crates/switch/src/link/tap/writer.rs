//! Best effort into taps, written by a thread that is no worker: a write of 64 kB runs the receiver's network stack, and takes
//! up to 0.4 ms in which no real-time frame is looked at.
//!
//! ```text
//!  worker ─ copies ─▶ buffer ─ job ─▶ writer: writes into the tap ─▶ how it ended: Progress of the tap's link
//!    ▲ 32 buffers                        │                                 │
//!    └──────────── back ◀────────────────┴── rings the worker's bell       └─▶ completed, the oldest first
//! ```
//!
//! Each worker has a writer, since a worker waits for no other. A frame is copied, so the writer never reads a VM's memory, and
//! a frame that is given up while it is written leaves nothing behind but a write of our own memory.

use super::{RECEIVER, Rx};
use crate::frame::offload::receiver_hdr;
use crate::frame::{FRAME_MAX, HEADER_MAX, Payload, VnetHdr};
use crate::link::receiver::{Form, finished};
use crate::link::{Completed, Posted};
use crate::port::Frame;
use crate::vhost_user::notifier::cpu_time;
use crate::worker::clock;
use rtrb::{Consumer, Producer, RingBuffer};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::thread::Thread;
use std::time::{Duration, Instant};
use tidegate_evidence::DropReason;
use tidegate_service::housekeeping;

/// Frames of one worker that may be with its writer.
const BUFFERS: usize = 32;
/// Frames of one tap that may be.
pub(in crate::link) const DEPTH: usize = 8;
/// What one of them holds.
const BUFFER: usize = VnetHdr::LEN + FRAME_MAX;
/// How long a tap's frames may take that are with the writer, ns of CPU time, as its last ones tell; one may be there in any case.
const PART: u64 = 1_000_000;
/// A tap with writes longer than that has one part in so many of the writer's time, beside the others.
const REST: u64 = 4;
/// For how long a worker writes for a tap itself, ns, after the writer did not come to a frame.
const ALONE: u64 = 1_000_000_000;
/// A tap that holds nothing is refused a buffer so often before the worker writes for it.
const REFUSED_MOST: u32 = 8;
/// A write is tried again so often where the kernel has no memory for it, and after this time.
const AGAIN: (u32, Duration) = (5, Duration::from_micros(200));

/// How a write ended.
const WRITTEN: u8 = 0;
const DOWN: u8 = 1;
const REFUSED: u8 = 2;

/// How far the writer is with the frames of one tap. They are counted from 0 on.
#[derive(Default)]
pub(super) struct Progress {
    /// Frames before this one ended.
    ended: AtomicU64,
    /// Frames before this one are not to be written any more.
    given_up: AtomicU64,
    /// How each of the last ended.
    outcomes: [AtomicU8; DEPTH],
    /// How long the last write took, or half of what the one before is known for, ns of CPU time.
    took: AtomicU64,
    /// When it ended, ns.
    at: AtomicU64,
}

/// What of a tap's frames is with a writer: its link's end.
#[derive(Default)]
pub(super) struct Held {
    progress: Arc<Progress>,
    /// Frames that were given to a writer.
    posted: u64,
    /// Of these, whose end was told or that were given up.
    told: u64,
    /// The worker whose writer has them.
    worker: u16,
    /// Until when the worker writes itself, ns; 0 where the writer came to all frames.
    alone_until: u64,
    /// How often there was no buffer for it, on end.
    refused: u32,
}

impl Held {
    /// Whether a writer has a frame, or had one whose end was not told.
    pub(super) fn any(&self) -> bool {
        self.told < self.posted || self.under_way() > 0
    }

    /// Waits until a writer has nothing more of it, for `most` at most. What is to be written no more is to be
    /// [given up](Rx::cancel) before.
    fn wait(&self, most: Duration) {
        let end = Instant::now() + most;
        while self.under_way() > 0 && Instant::now() < end {
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// How many frames a writer has.
    fn under_way(&self) -> u64 {
        self.posted - self.progress.ended.load(Ordering::Acquire)
    }
}

impl Drop for Held {
    /// Nothing is written for a port that is gone.
    fn drop(&mut self) {
        self.progress.given_up.store(self.posted, Ordering::Relaxed);
    }
}

/// One frame to be written.
struct Job {
    file: Arc<OwnedFd>,
    progress: Arc<Progress>,
    /// Its number at its tap.
    number: u64,
    buffer: Box<[u8]>,
    len: usize,
}

/// A worker's end.
pub struct Hand {
    worker: u16,
    jobs: Producer<Job>,
    back: Consumer<Box<[u8]>>,
    free: Vec<Box<[u8]>>,
    thread: Thread,
}

/// The writer of a worker: what its thread [runs](Self::run).
pub struct Writer {
    jobs: Consumer<Job>,
    back: Producer<Box<[u8]>>,
}

impl Writer {
    /// One, and what makes its worker's [`Hand`] once its thread is there.
    pub fn new() -> (Self, impl FnOnce(u16, Thread) -> Hand) {
        let (jobs, jobs_in) = RingBuffer::new(BUFFERS);
        let (back, back_in) = RingBuffer::new(BUFFERS);
        let hand = move |worker, thread| {
            // Memory that is not written takes no page.
            let free = (0..BUFFERS).map(|_| vec![0; BUFFER].into_boxed_slice()).collect();
            Hand { worker, jobs, back: back_in, free, thread }
        };
        (Self { jobs: jobs_in, back }, hand)
    }

    /// Writes what comes, and calls `ring` after each frame, until the worker is gone.
    pub fn run(mut self, ring: impl Fn()) {
        loop {
            housekeeping::follow();
            while self.write_one() {
                ring();
                housekeeping::follow();
            }
            if self.jobs.is_abandoned() {
                return;
            }
            std::thread::park();
        }
    }
}

impl Writer {
    /// Writes the next frame; `false` where there is none.
    pub fn write_one(&mut self) -> bool {
        let Ok(job) = self.jobs.pop() else { return false };
        let buffer = job.write();
        let fits = self.back.push(buffer).is_ok();
        debug_assert!(fits, "there is a place for each buffer");
        true
    }

    /// The same, and it took so many ns.
    #[cfg(test)]
    pub fn write_one_as_if_it_took(&mut self, ns: u64) {
        let progress = self.jobs.peek().unwrap().progress.clone();
        assert!(self.write_one());
        progress.took.store(ns, Ordering::Relaxed);
        progress.at.store(clock(), Ordering::Relaxed);
    }
}

impl Job {
    fn is_given_up(&self) -> bool {
        self.number < self.progress.given_up.load(Ordering::Relaxed)
    }

    /// Returns the buffer.
    fn write(self) -> Box<[u8]> {
        let Progress { ended, outcomes, took, at, .. } = &*self.progress;
        if !self.is_given_up() {
            let began = cpu_time();
            let outcome = self.outcome();
            let last = took.load(Ordering::Relaxed);
            took.store(cpu_time().saturating_sub(began).max(last / 2), Ordering::Relaxed);
            at.store(clock(), Ordering::Relaxed);
            outcomes[self.number as usize % DEPTH].store(outcome, Ordering::Relaxed);
        }
        ended.store(self.number + 1, Ordering::Release);
        self.buffer
    }

    fn outcome(&self) -> u8 {
        let (tries, pause) = AGAIN;
        for _ in 0..tries {
            match rustix::io::retry_on_intr(|| rustix::io::write(&self.file, &self.buffer[..self.len])) {
                Ok(_) => return WRITTEN,
                Err(Errno::AGAIN | Errno::NOBUFS) if !self.is_given_up() => std::thread::sleep(pause),
                Err(Errno::IO | Errno::BADFD | Errno::NODEV) => return DOWN,
                Err(_) => return REFUSED,
            }
        }
        REFUSED
    }
}

impl Hand {
    /// A buffer for a tap that has `held`, each of which takes `took` ns: no tap takes all buffers, or all of the time.
    fn buffer(&mut self, held: u64, took: u64) -> Option<Box<[u8]>> {
        while let Ok(buffer) = self.back.pop() {
            self.free.push(buffer);
        }
        let has_part = held == 0 || (held + 1).saturating_mul(took) <= PART;
        let has_share = held < self.free.len().min(DEPTH) as u64;
        if has_part && has_share { self.free.pop() } else { None }
    }
}

impl Drop for Hand {
    fn drop(&mut self) {
        // The writer ends where it finds its worker gone.
        let (gone, _) = RingBuffer::new(1);
        self.jobs = gone;
        self.thread.unpark();
    }
}

impl Rx {
    /// Gives a frame to the writer of the worker whose `hand` this is; `None` where the worker is to write it. Frames that a
    /// writer has are not overtaken: more of them wait where it takes no more.
    pub(super) fn hand_over(&mut self, frame: &Frame, hand: Option<&mut Hand>) -> Option<Posted> {
        if self.held.alone_until > 0 {
            if clock() < self.held.alone_until && self.held.told == self.held.posted {
                // The frame that was being written may come later than this one; no other.
                return self.is_slow().then_some(Posted::NoBuffers);
            }
            self.held.alone_until = 0;
        }
        let held = self.held.any();
        let Some(hand) = hand else { return held.then_some(Posted::NoBuffers) };
        let form = RECEIVER.form(frame);
        if form == Form::Segments || held && self.held.worker != hand.worker {
            return held.then_some(Posted::NoBuffers);
        }
        if self.is_slow() {
            return Some(Posted::NoBuffers);
        }
        let took = self.held.progress.took.load(Ordering::Relaxed);
        let Some(mut buffer) = hand.buffer(self.held.under_way(), took) else {
            self.held.refused += u32::from(!held);
            return (held || self.held.refused <= REFUSED_MOST).then_some(Posted::NoBuffers);
        };
        self.held.refused = 0;
        let len = match form {
            Form::AsIs => {
                let vnet = receiver_hdr(&frame.vnet, &frame.headers, frame.offload);
                fill(&mut buffer, &vnet, frame.head(), frame)
            }
            _ => {
                let (head, vnet): ([u8; HEADER_MAX], _) = finished(frame);
                fill(&mut buffer, &vnet, &head[..frame.head_len as usize], frame)
            }
        };
        let Some(len) = len else {
            hand.free.push(buffer);
            return Some(Posted::Dropped(DropReason::TapRefused));
        };
        let file = self.file(frame).clone();
        let progress = self.held.progress.clone();
        let job = Job { file, progress, number: self.held.posted, buffer, len };
        let fits = hand.jobs.push(job).is_ok();
        debug_assert!(fits, "there is a place for each buffer");
        self.held.posted += 1;
        self.held.worker = hand.worker;
        hand.thread.unpark();
        Some(Posted::Later)
    }

    /// Whether writes into this tap take that long that it has to leave the writer to others now.
    fn is_slow(&self) -> bool {
        let Progress { took, at, .. } = &*self.held.progress;
        let took = took.load(Ordering::Relaxed);
        took > PART && clock() < at.load(Ordering::Relaxed).saturating_add(took.saturating_mul(REST))
    }

    /// Waits, not for long, until no thread has a descriptor of the tap any more.
    pub(in crate::link) fn wait_for_writer(&self) {
        self.held.wait(Duration::from_millis(100));
    }

    /// Whether what became of the oldest frame that a writer has is known.
    pub(in crate::link) fn has_completed(&self) -> bool {
        self.held.told < self.held.progress.ended.load(Ordering::Acquire)
    }

    /// What became of it.
    pub(in crate::link) fn completed(&mut self) -> Option<Completed> {
        if !self.has_completed() {
            return None;
        }
        let outcome = self.held.progress.outcomes[self.held.told as usize % DEPTH].load(Ordering::Relaxed);
        self.held.told += 1;
        Some(match outcome {
            WRITTEN => Completed::Done,
            DOWN => Completed::Dropped(DropReason::ReceiverDown),
            _ => Completed::Dropped(DropReason::TapRefused),
        })
    }

    /// Gives up what a writer has and did not begin to write.
    pub(in crate::link) fn cancel(&mut self) {
        self.held.progress.given_up.store(self.held.posted, Ordering::Relaxed);
        self.held.told = self.held.posted;
        if self.held.under_way() > 0 {
            self.held.alone_until = clock() + ALONE;
        }
    }
}

/// The frame as the kernel takes it, in `buffer`: how long it is, where it fits.
fn fill(buffer: &mut [u8], vnet: &VnetHdr, head: &[u8], frame: &Frame) -> Option<usize> {
    // SAFETY: the source's memory is mapped for as long as its frame is in our hands.
    let payload = unsafe { Payload::new(frame.payload()) };
    let (header, rest) = buffer.split_first_chunk_mut::<{ VnetHdr::LEN }>()?;
    vnet.write(header);
    let (to, rest) = rest.split_at_mut_checked(head.len())?;
    to.copy_from_slice(head);
    if payload.len() > rest.len() {
        return None;
    }
    Some(VnetHdr::LEN + head.len() + payload.copy_to(0, rest))
}
