//! Best effort into taps, written by a thread that is no worker: a write of 64 kB runs the receiver's
//! network stack for up to 0.4 ms, during which no real-time frame would be seen.
//!
//! ```text
//!  worker ─ copies ─▶ buffer ─ job ─▶ writer: writes into the tap ─▶ how it ended: Progress of the tap's link
//!    ▲ 32 buffers                        │                                 │
//!    └──────────── back ◀────────────────┴── rings the worker's bell       └─▶ completed, the oldest first
//! ```
//!
//! Each worker has a writer, since a worker waits for no other. A frame is copied, so the writer never
//! reads a VM's memory, and a frame given up during its write leaves only a write of our own memory.

use super::Rx;
use super::receiver::RECEIVER;
use crate::clock::clock;
use crate::frame::offload::receiver_hdr;
use crate::frame::{HEADER_MAX, Payload, VnetHdr};
use crate::link::receiver::{Form, finished};
use crate::link::writer::DEPTH;
use crate::link::writer::Progress;
use crate::link::writer::TapWriter;
use crate::link::writer::{DOWN, Job, PART, WRITTEN};
use crate::link::{Completed, Posted};
use crate::slots::Frame;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tidegate_evidence::DropReason;

/// Rest of a tap whose writes exceed [`PART`], in durations of its last write.
const REST: u64 = 4;
/// How long a worker writes for a tap itself after the writer did not reach a frame (ns).
const ALONE: u64 = 1_000_000_000;
/// Refused buffers of an empty tap before the worker writes for it.
const REFUSED_MOST: u32 = 8;
/// A tap's frames at a writer: its link's end.
#[derive(Default)]
pub(super) struct WriterFrames {
    progress: Arc<Progress>,
    /// Frames given to a writer.
    posted: u64,
    /// Of these, the concluded or given-up ones.
    concluded: u64,
    /// The worker whose writer has them.
    worker: u16,
    /// End of the worker's own writing (ns); 0 if the writer reached all frames.
    alone_until: u64,
    /// Consecutive refused buffers.
    refused: u32,
}

impl WriterFrames {
    /// Whether a writer has a frame, or one whose end is not concluded.
    pub(super) fn any(&self) -> bool {
        self.concluded < self.posted || self.under_way() > 0
    }

    /// Waits up to `most` until a writer has none of its frames. Frames that must not be written are [given
    /// up](Rx::cancel) before.
    fn wait(&self, most: Duration) {
        let end = Instant::now() + most;
        while self.under_way() > 0 && Instant::now() < end {
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Returns the number of frames at a writer.
    fn under_way(&self) -> u64 {
        self.posted - self.progress.ended.load(Ordering::Acquire)
    }
}

impl Drop for WriterFrames {
    /// Writes nothing for a removed port.
    fn drop(&mut self) {
        self.progress.given_up.store(self.posted, Ordering::Relaxed);
    }
}

impl Rx {
    /// Passes a frame to the writer of the worker with this `hand`; `None` if the worker must write it.
    /// Frames at a writer are not overtaken: further ones wait if it takes no more.
    pub(super) fn hand_over(&mut self, frame: &Frame, hand: Option<&mut TapWriter>) -> Option<Posted> {
        if self.at_writer.alone_until > 0 {
            if clock() < self.at_writer.alone_until && self.at_writer.concluded == self.at_writer.posted {
                // Only the frame that was being written may come later than this one.
                return self.is_slow().then_some(Posted::NoBuffers);
            }
            self.at_writer.alone_until = 0;
        }
        let held = self.at_writer.any();
        let Some(hand) = hand else { return held.then_some(Posted::NoBuffers) };
        let form = RECEIVER.form(frame);
        if form == Form::Segments || held && self.at_writer.worker != hand.worker {
            return held.then_some(Posted::NoBuffers);
        }
        if self.is_slow() {
            return Some(Posted::NoBuffers);
        }
        let write_time = self.at_writer.progress.write_time.load(Ordering::Relaxed);
        let Some(mut buffer) = hand.buffer(self.at_writer.under_way(), write_time) else {
            self.at_writer.refused += u32::from(!held);
            return (held || self.at_writer.refused <= REFUSED_MOST).then_some(Posted::NoBuffers);
        };
        self.at_writer.refused = 0;
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
        let progress = self.at_writer.progress.clone();
        let job = Job { file, progress, number: self.at_writer.posted, buffer, len };
        let fits = hand.jobs.push(job).is_ok();
        debug_assert!(fits, "there is a place for each buffer");
        self.at_writer.posted += 1;
        self.at_writer.worker = hand.worker;
        hand.thread.unpark();
        Some(Posted::Later)
    }

    /// Whether this tap's writes take so long that it must leave the writer to others now.
    fn is_slow(&self) -> bool {
        let Progress { write_time, ended_at: at, .. } = &*self.at_writer.progress;
        let write_time = write_time.load(Ordering::Relaxed);
        write_time > PART
            && clock() < at.load(Ordering::Relaxed).saturating_add(write_time.saturating_mul(REST))
    }

    /// Waits for a short time until no thread has a descriptor of the tap.
    pub(in crate::link) fn wait_for_writer(&self) {
        self.at_writer.wait(Duration::from_millis(100));
    }

    /// Whether the oldest frame at a writer has ended.
    pub(in crate::link) fn has_completed(&self) -> bool {
        self.at_writer.concluded < self.at_writer.progress.ended.load(Ordering::Acquire)
    }

    /// Takes its result.
    pub(in crate::link) fn completed(&mut self) -> Option<Completed> {
        if !self.has_completed() {
            return None;
        }
        let outcome = self.at_writer.progress.outcomes[self.at_writer.concluded as usize % DEPTH]
            .load(Ordering::Relaxed);
        self.at_writer.concluded += 1;
        Some(match outcome {
            WRITTEN => Completed::Done,
            DOWN => Completed::Dropped(DropReason::ReceiverDown),
            _ => Completed::Dropped(DropReason::TapRefused),
        })
    }

    /// Gives up frames that a writer has not begun to write.
    pub(in crate::link) fn cancel(&mut self) {
        self.at_writer.progress.given_up.store(self.at_writer.posted, Ordering::Relaxed);
        self.at_writer.concluded = self.at_writer.posted;
        if self.at_writer.under_way() > 0 {
            self.at_writer.alone_until = clock() + ALONE;
        }
    }
}

/// Writes the frame in the kernel's form into `buffer`; returns its length if it fits.
fn fill(buffer: &mut [u8], vnet: &VnetHdr, head: &[u8], frame: &Frame) -> Option<usize> {
    // SAFETY: the source's memory stays mapped while this worker holds its frame.
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
