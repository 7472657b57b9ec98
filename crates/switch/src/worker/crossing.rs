//! Frame references between workers, and back.
//!
//! ```text
//!  worker A ──frames──▶ worker B      (reads the payload from A's guest, copies it to its own)
//!  worker A ◀──fates─── worker B      (A completes the descriptor, counts)
//! ```
//!
//! One single-producer single-consumer ring for each ordered pair of workers. Real-time frames have a ring
//! of their own, which is always emptied: none waits behind best effort. Best effort leaves its ring within
//! the [budget](super::budget) of a loop; while that ring is full, frames wait in the sender's own ring or
//! pool.

use super::under_way::UnderWay;
use crate::fdb::PortIndex;
use crate::slots::FrameRef;
use rtrb::{Consumer, Producer, RingBuffer};
use std::collections::VecDeque;
use tidegate_evidence::DropReason;

/// Best-effort frames under way to one worker: some loops' worth.
const FRAMES: usize = 1024;
/// Real-time frames and requests under way to one worker. A full ring drops.
const URGENT: usize = 4096;
/// Most frames in one ring and taken out of it before their turn.
pub(super) const MOST: usize = 2 * if FRAMES > URGENT { FRAMES } else { URGENT };
/// Fates under way back: more than a worker's ports usually have in flight.
const FATES: usize = 1 << 14;

/// A message from one worker to the owner of an egress.
#[derive(Clone, Copy, Debug)]
pub enum Crossing {
    /// Deliver this.
    Frame {
        /// To this port.
        egress: PortIndex,
        /// The frame.
        frame: FrameRef,
    },
    /// Make room: the source has half its ring in flight, mostly here.
    Relieve {
        /// The egress.
        egress: PortIndex,
        /// The source.
        source: PortIndex,
        /// Drop its oldest frame, which holds others back; otherwise its newest.
        oldest: bool,
    },
}

/// How a frame ended.
#[derive(Clone, Copy, Debug)]
pub struct Fate {
    /// The frame.
    pub frame: FrameRef,
    /// Where it was sent.
    pub egress: PortIndex,
    /// Tr: its delivery or drop (ns).
    pub at: u64,
    /// The reason of a drop.
    pub dropped: Option<DropReason>,
    /// When the egress queued it (ns).
    pub queued: u64,
    /// Time at the head without receive buffers (ns).
    pub buffers: u64,
    /// Port whose frame left right before it, while it waited.
    pub behind: Option<PortIndex>,
}

/// Number of crossings sent to another worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SentCounts {
    urgent: u64,
    frames: u64,
}

/// One worker's ends towards another.
pub struct Peer {
    urgent_out: Producer<Crossing>,
    urgent_in: Consumer<Crossing>,
    frames_out: Producer<Crossing>,
    frames_in: Consumer<Crossing>,
    fates_out: Producer<Fate>,
    fates_in: Consumer<Fate>,
    /// Fates that did not fit the ring: late, never lost.
    fates_waiting: VecDeque<Fate>,
    /// Crossings sent into both rings.
    sent: SentCounts,
    /// Crossings taken out of both rings [before their turn](Self::extract_frames).
    urgent_waiting: VecDeque<Crossing>,
    frames_waiting: VecDeque<Crossing>,
}

impl Peer {
    /// Returns both ends of a pair of workers.
    pub fn pair() -> (Self, Self) {
        let (urgent_ab, urgent_from_a) = RingBuffer::new(URGENT);
        let (urgent_ba, urgent_from_b) = RingBuffer::new(URGENT);
        let (frames_ab, frames_from_a) = RingBuffer::new(FRAMES);
        let (frames_ba, frames_from_b) = RingBuffer::new(FRAMES);
        let (fates_ab, fates_from_a) = RingBuffer::new(FATES);
        let (fates_ba, fates_from_b) = RingBuffer::new(FATES);
        let end = |(urgent_out, urgent_in), (frames_out, frames_in), (fates_out, fates_in)| Self {
            urgent_out,
            urgent_in,
            frames_out,
            frames_in,
            fates_out,
            fates_in,
            fates_waiting: VecDeque::new(),
            sent: SentCounts::default(),
            urgent_waiting: VecDeque::new(),
            frames_waiting: VecDeque::new(),
        };
        (
            end((urgent_ab, urgent_from_b), (frames_ab, frames_from_b), (fates_ab, fates_from_b)),
            end((urgent_ba, urgent_from_a), (frames_ba, frames_from_a), (fates_ba, fates_from_a)),
        )
    }

    /// Sends; `false` if the ring is full.
    #[inline]
    pub fn send(&mut self, crossing: Crossing) -> bool {
        let (ring, sent) = match crossing {
            Crossing::Frame { frame, .. } if !frame.get().is_realtime() => {
                (&mut self.frames_out, &mut self.sent.frames)
            }
            _ => (&mut self.urgent_out, &mut self.sent.urgent),
        };
        let fits = ring.push(crossing).is_ok();
        *sent += u64::from(fits);
        fits
    }

    /// Returns the number of crossings sent so far.
    pub fn sent(&self) -> SentCounts {
        self.sent
    }

    /// Returns how many of the best-effort frames in `sent` the other worker has not taken out of its ring.
    /// `sent` counts frames to the other worker only.
    pub fn untaken_frames(&self, sent: SentCounts) -> u64 {
        let in_ring = (self.frames_out.buffer().capacity() - self.frames_out.slots()) as u64;
        in_ring.saturating_sub(self.sent.frames - sent.frames)
    }

    /// Whether the other worker has taken all crossings of `sent` out of its rings.
    pub fn has_taken(&self, sent: SentCounts) -> bool {
        let taken =
            |ring: &Producer<Crossing>, sent: u64| sent - (ring.buffer().capacity() - ring.slots()) as u64;
        taken(&self.urgent_out, self.sent.urgent) >= sent.urgent
            && taken(&self.frames_out, self.sent.frames) >= sent.frames
    }

    /// Takes the frames to a port out of both rings. Others keep their turn.
    pub fn extract_frames(&mut self, egress: PortIndex, under_way: &mut UnderWay) {
        let UnderWay { urgent, others } = under_way;
        let rings = [
            (&mut self.urgent_in, &mut self.urgent_waiting, urgent),
            (&mut self.frames_in, &mut self.frames_waiting, others),
        ];
        for (ring, waiting, parted) in rings {
            let came = ring.slots();
            waiting.extend((0..came).map_while(|_| ring.pop().ok()));
            waiting.retain(|crossing| match crossing {
                Crossing::Frame { egress: to, frame } if *to == egress => {
                    parted.push_back(*frame);
                    false
                }
                _ => true,
            });
        }
    }

    /// Whether crossings wait that were taken out of their ring before their turn.
    pub fn has_waiting(&self) -> bool {
        !self.urgent_waiting.is_empty() || !self.frames_waiting.is_empty()
    }

    /// Whether a best-effort frame can be sent.
    #[inline]
    pub fn has_room(&self) -> bool {
        !self.frames_out.is_full()
    }

    /// Takes a real-time frame or a request of the other worker.
    #[inline]
    pub fn receive_urgent(&mut self) -> Option<Crossing> {
        self.urgent_waiting.pop_front().or_else(|| self.urgent_in.pop().ok())
    }

    /// Whether a best-effort frame of the other worker waits.
    #[inline]
    pub fn has_frames(&self) -> bool {
        !self.frames_waiting.is_empty() || !self.frames_in.is_empty()
    }

    /// Takes a best-effort frame of the other worker.
    #[inline]
    pub fn receive(&mut self) -> Option<Crossing> {
        self.frames_waiting.pop_front().or_else(|| self.frames_in.pop().ok())
    }

    /// Sends a frame's fate back.
    #[inline]
    pub fn settle(&mut self, fate: Fate) {
        if !self.fates_waiting.is_empty() || self.fates_out.push(fate).is_err() {
            self.fates_waiting.push_back(fate);
        }
    }

    /// Takes the fate of a frame sent to the other worker.
    #[inline]
    pub fn receive_fate(&mut self) -> Option<Fate> {
        self.fates_in.pop().ok()
    }

    /// Sends fates that did not fit before; `true` if some fit now.
    pub fn retry(&mut self) -> bool {
        let before = self.fates_waiting.len();
        while let Some(fate) = self.fates_waiting.front() {
            if self.fates_out.push(*fate).is_err() {
                break;
            }
            self.fates_waiting.pop_front();
        }
        before != self.fates_waiting.len()
    }

    /// Whether nothing waits to be received or sent.
    pub fn is_idle(&self) -> bool {
        let nothing_came = self.urgent_in.is_empty() && self.frames_in.is_empty();
        nothing_came && !self.has_waiting() && self.fates_in.is_empty() && self.fates_waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slots::{Owner, Slots};

    const LENT: u16 = 6;

    /// For `make miri`: a frame goes from one worker to the other and back.
    #[test]
    fn a_frame_crosses_and_comes_back_once() {
        let frames: u32 = if cfg!(miri) { 100 } else { 20_000 };
        let (mut here, mut there) = Peer::pair();
        let mut slots = Slots::new(LENT, 1, 0);
        let other = std::thread::spawn(move || {
            let mut sum = 0u64;
            let mut seen = 0;
            while seen < frames {
                let Some(Crossing::Frame { egress, frame }) = there.receive() else {
                    std::thread::yield_now();
                    continue;
                };
                assert_eq!((frame.get().len, egress), (seen, 2), "in order");
                sum += frame.get().head().iter().map(|byte| u64::from(*byte)).sum::<u64>();
                seen += 1;
                let at = u64::from(seen);
                there.settle(Fate { frame, egress, at, dropped: None, queued: 0, buffers: 0, behind: None });
            }
            assert!(!there.retry() && there.is_idle());
            sum
        });
        let (mut sent, mut back, mut expected) = (0, 0, 0u64);
        while back < frames {
            if sent < frames
                && let Some(lent) = slots.take()
            {
                let frame = lent.get_mut();
                (frame.len, frame.head_len, frame.bytes[0]) = (sent, 1, sent as u8);
                frame.owner = Owner::Ring { queue: 0, head: frame.slot };
                expected += u64::from(sent as u8);
                sent += 1;
                assert!(here.send(Crossing::Frame { egress: 2, frame: lent }));
                // Only the owner writes this field; others read the rest.
                lent.get().shares.set(1);
            }
            while let Some(fate) = here.receive_fate() {
                back += 1;
                assert_eq!((fate.at, fate.frame.get().len), (u64::from(back), back - 1));
                fate.frame.get().shares.set(0);
                slots.give(fate.frame);
            }
        }
        assert_eq!(slots.in_flight(), 0);
        assert_eq!(other.join().unwrap(), expected);
    }
}
