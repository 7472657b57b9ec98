//! Queues frames of a batch that do not go directly, with the decisions on them.

use super::batch::{Batch, BatchFrame, StoredDecision};
use super::{conform, note_tokens};
use crate::frame::{Headers, Offload, VnetHdr};
use crate::link::vhost::copy::HEAD;
use crate::port::Port;
use crate::slots::{Frame, NEVER, Owner, Slots};
use crate::virtio::Span;
use crate::worker::{Worker, budget};
use std::ops::Range;
use tidegate_contract::Mac;

impl Worker {
    /// Queues `frames` of the batch for this worker's egresses while there are slots, tokens and `budget`;
    /// returns the end of those queued.
    #[inline(never)]
    pub(super) fn queue(
        &mut self,
        port: &mut Port,
        pair: usize,
        batch: &mut Batch,
        frames: Range<usize>,
        header_len: usize,
        budget: &mut i64,
    ) -> usize {
        let mut next = frames.start;
        let mut all = 0;
        while next < frames.end {
            let egress = batch.frames[next].egress;
            let most = slots(port, pair).map_or(0, |slots| slots.available());
            let left = if port.contract.deadline.is_some() { i64::MAX } else { *budget };
            let (count, mut bytes) = run(&batch.frames[next..frames.end], most, left);
            let these = &mut batch.frames[next..next + count];
            let arrival = batch.arrivals.first.earliest;
            let (conforming, together) = conform(port, these, bytes, arrival, self.now);
            if conforming < count {
                bytes = these[..conforming].iter().map(|frame| u64::from(frame.len)).sum();
            }
            if conforming == 0 {
                break;
            }
            note_tokens(port, &these[..conforming], &batch.arrivals, next, together);
            self.take_slots(port, pair, batch, next..next + conforming, header_len);
            *budget -= bytes as i64 + conforming as i64 * budget::queued(0);
            self.hand_on(port, &batch.queued, egress, bytes);
            next += conforming;
            all += bytes;
        }
        let count = (next - frames.start) as u64;
        if count > 0 {
            port.stats.tx.frames.add(count);
            port.stats.tx.wire_frames.add(count);
            port.stats.tx.wire_bytes.add(all);
        }
        next
    }

    /// Gives each frame to one egress a slot.
    #[inline]
    fn take_slots(
        &self,
        port: &mut Port,
        pair: usize,
        batch: &mut Batch,
        frames: Range<usize>,
        header_len: usize,
    ) {
        let info = self.infos[port.index as usize].as_ref();
        let deadline = info.and_then(|info| info.deadline_to(batch.frames[frames.start].egress));
        let (source, segment) = (port.index, port.segment);
        batch.queued.clear();
        let Some(slots) = slots(port, pair) else { return };
        for i in frames {
            let (sent, seen, single, head) =
                (&batch.frames[i], &batch.decisions[i], &batch.tx[i], &batch.heads[i]);
            let Some(reference) = slots.take() else { break };
            let frame = reference.get_mut();
            frame.owner = Owner::Ring { queue: pair as u16, head: single.head };
            (frame.source, frame.segment, frame.egress) = (source, segment, sent.egress);
            frame.start(&batch.arrivals.of(i), sent.started);
            frame.deadline = deadline.map_or(NEVER, |deadline| sent.started + deadline);
            fill(frame, sent, seen, &head.0, single.ptr.wrapping_add(header_len));
            batch.queued.push(reference);
        }
    }
}

/// Returns how many of the first frames go to one egress, at most `most` and within `budget`, and their
/// bytes.
#[inline]
fn run(frames: &[BatchFrame], most: usize, mut budget: i64) -> (usize, u64) {
    let Some(egress) = frames.first().map(|first| first.egress) else { return (0, 0) };
    let (mut count, mut bytes) = (0, 0);
    for frame in &frames[..most.min(frames.len())] {
        if frame.egress != egress || budget <= 0 {
            break;
        }
        budget -= budget::queued(frame.len);
        bytes += u64::from(frame.len);
        count += 1;
    }
    (count, bytes)
}

/// Returns the slots of a transmit queue.
#[inline]
fn slots(port: &mut Port, pair: usize) -> Option<&mut Slots> {
    Some(&mut port.link.tx.rings()?.queue(pair)?.slots)
}

/// Fills in a frame's decision and place: its head was read once, the rest not yet.
#[inline]
fn fill(frame: &mut Frame, sent: &BatchFrame, seen: &StoredDecision, head: &[u8; HEAD], from: *mut u8) {
    if sent.has_decision {
        let StoredDecision { decision, vnet } = *seen;
        (frame.headers, frame.offload, frame.vnet) = (decision.headers, decision.offload, vnet);
    } else {
        let [mut dst, mut src] = [[0; 6]; 2];
        dst.copy_from_slice(&head[..6]);
        src.copy_from_slice(&head[6..12]);
        frame.headers = Headers { dst: Mac(dst), src: Mac(src), ..Headers::NONE };
        (frame.offload, frame.vnet) = (Offload::None, VnetHdr::default());
    }
    let head_len = (sent.len as usize).min(HEAD);
    let rest = sent.len - head_len as u32;
    (frame.len, frame.wire_bytes, frame.wire_frames) = (sent.len, sent.len, 1);
    frame.head_len = head_len as u16;
    // Copies all of it: a constant length takes a few moves.
    frame.bytes[..HEAD].copy_from_slice(head);
    frame.span_count = u16::from(rest > 0);
    frame.spans[0] = Span { ptr: from.wrapping_add(head_len), len: rest };
}
