//! Decides on a batch's frames by their copied heads, and which may go directly.

use super::batch::{Batch, BatchFrame, Group, ONLY, StoredDecision};
use crate::fdb::PortIndex;
use crate::frame::offload::receiver_hdr;
use crate::frame::plain::{Plain, own_checksum};
use crate::frame::{L3, L4, Offload, VnetHdr};
use crate::link::Receiver;
use crate::link::vhost::copy::{COMPLETE, HEAD, read};
use crate::port::Port;
use crate::worker::Worker;
use crate::worker::budget::DIRECT;
use crate::worker::decide::Sender;
use std::ops::Range;
use tidegate_contract::Mac;

/// Shortest frame (bytes): Ethernet and a whole IPv4 header, and long enough to be copied in two halves.
const SHORTEST: usize = 34;

impl Worker {
    /// Decides on the first frames of the batch, up to one that must be looked at alone; returns their
    /// number. The first `batch.direct` of them may go directly.
    #[inline(never)]
    pub(super) fn classify(
        &mut self,
        port: &Port,
        batch: &mut Batch,
        popped: usize,
        header_len: usize,
        mut budget: i64,
        learns: bool,
    ) -> usize {
        let sender = Sender::of(port);
        batch.group_count = 0;
        (batch.crosses, batch.waits) = (false, false);
        for i in 0..popped {
            batch.direct = i;
            let Some((len, asked)) = copy_head(port, batch, i, header_len, &mut budget) else { return i };
            let Some(plain) = decide_if_plain(&sender, batch, i, len, &asked) else {
                match self.join_closely(port, batch, i, len, &asked, learns) {
                    None => return i,
                    Some(true) => continue,
                    Some(false) => {}
                }
                return self.classify_others(port, batch, i + 1..popped, header_len, budget, learns);
            };
            let Some(egress) = self.receiver(port, plain.dst, plain.src, learns) else { return i };
            let Some(group) = self.group_of(port, batch, egress, i, len, None) else {
                if self.crosses(batch, egress) {
                    return i;
                }
                batch.frames[i] = queued(egress, len, false);
                return self.classify_others(port, batch, i + 1..popped, header_len, budget, learns);
            };
            batch.join(i, group, BatchFrame { egress, len: len as u32, ..DIRECT_FRAME });
        }
        batch.direct = popped;
        popped
    }

    /// Decides on the frames behind one that does not go directly.
    fn classify_others(
        &mut self,
        port: &Port,
        batch: &mut Batch,
        frames: Range<usize>,
        header_len: usize,
        mut budget: i64,
        learns: bool,
    ) -> usize {
        let (sender, end) = (Sender::of(port), frames.end);
        for i in frames {
            let Some((len, asked)) = copy_head(port, batch, i, header_len, &mut budget) else { return i };
            let (dst, src, has_decision) = match decide_if_plain(&sender, batch, i, len, &asked) {
                Some(plain) => (plain.dst, plain.src, false),
                None if store_decision(&sender, batch, i, len, &asked) => {
                    let headers = &batch.decisions[i].decision.headers;
                    (headers.dst, headers.src, true)
                }
                None => return i,
            };
            let Some(egress) = self.receiver(port, dst, src, learns) else { return i };
            if self.crosses(batch, egress) {
                return i;
            }
            batch.frames[i] = queued(egress, len, has_decision);
        }
        end
    }

    /// Decides on a frame that is not plain: whether it goes directly; `None` if it must be looked at
    /// alone.
    #[inline(never)]
    fn join_closely(
        &mut self,
        port: &Port,
        batch: &mut Batch,
        i: usize,
        len: usize,
        asked: &[u8; VnetHdr::LEN],
        learns: bool,
    ) -> Option<bool> {
        if let Some((plain, vnet)) = decide_except_checksum(&Sender::of(port), batch, i, len, asked)
            && let Some(egress) = self.receiver(port, plain.dst, plain.src, learns)
            && let Some(group) = self.group_of(port, batch, egress, i, len, None)
            && batch.groups[group].receiver.csum
        {
            batch.join(
                i,
                group,
                BatchFrame { egress, len: len as u32, has_decision: true, vnet, ..DIRECT_FRAME },
            );
            return Some(true);
        }
        let decided = decide_from_head(&Sender::of(port), &mut batch.heads[i].0, len, asked)?;
        let headers = &decided.decision.headers;
        let egress = self.receiver(port, headers.dst, headers.src, learns)?;
        if let Some(group) = self.group_of(port, batch, egress, i, len, headers.vid())
            && let Some(vnet) = header_as_is(&decided, &batch.groups[group].receiver)
        {
            batch.join(
                i,
                group,
                BatchFrame { egress, len: len as u32, has_decision: true, vnet, ..DIRECT_FRAME },
            );
            return Some(true);
        }
        if self.crosses(batch, egress) {
            return None;
        }
        batch.frames[i] = queued(egress, len, true);
        batch.decisions[i] = decided;
        Some(false)
    }

    /// Whether a frame that does not go directly is for another worker's port: it crosses alone. Others are
    /// queued.
    #[inline(always)]
    fn crosses(&self, batch: &mut Batch, egress: PortIndex) -> bool {
        batch.crosses = self.infos[egress as usize].as_ref().is_none_or(|info| info.worker != self.id);
        batch.crosses
    }

    /// Returns a frame's port. `None` for flooded and dropped frames, which are looked at alone.
    #[inline(always)]
    fn receiver(&self, port: &Port, dst: Mac, src: Mac, learns: bool) -> Option<PortIndex> {
        let egress = self.fdb.lookup(port.segment, dst)?;
        // A frame that is dropped teaches no address. One to its own source would go to the address's
        // former place.
        let is_dropped = egress == port.index || (learns && (src == dst || !self.learn(port, src)));
        (!is_dropped).then_some(egress)
    }

    /// Returns the group in which a frame goes directly, if nothing prevents it.
    #[inline(always)]
    fn group_of(
        &mut self,
        port: &Port,
        batch: &mut Batch,
        egress: PortIndex,
        i: usize,
        len: usize,
        vid: Option<u16>,
    ) -> Option<usize> {
        let open = |group: &Group| group.egress == egress && group.queue == ONLY;
        match batch.groups[..batch.group_count].iter().position(open) {
            Some(group) if vid.is_none() || Some(batch.groups[group].vid) == vid => Some(group),
            _ => self.group(port, batch, egress, i, len, vid),
        }
    }
}

impl Batch {
    /// Puts frame `i` into this group.
    #[inline(always)]
    fn join(&mut self, i: usize, group: usize, frame: BatchFrame) {
        let to = &mut self.groups[group];
        self.frames[i] = BatchFrame { group: group as u8, rank: to.frames, ..frame };
        to.frames += 1;
        to.bytes += u64::from(frame.len);
        to.longest = to.longest.max(frame.len);
    }
}

const DIRECT_FRAME: BatchFrame =
    BatchFrame { egress: 0, group: 0, rank: 0, has_decision: false, len: 0, started: 0, vnet: COMPLETE };

/// Returns a frame that does not go directly.
#[inline]
fn queued(egress: PortIndex, len: usize, has_decision: bool) -> BatchFrame {
    BatchFrame { egress, len: len as u32, has_decision, ..DIRECT_FRAME }
}

/// Copies the first bytes of frame `i`, if `budget` suffices; returns its length and request.
#[inline(always)]
fn copy_head(
    port: &Port,
    batch: &mut Batch,
    i: usize,
    header_len: usize,
    budget: &mut i64,
) -> Option<(usize, [u8; VnetHdr::LEN])> {
    let single = batch.tx[i];
    let len = (single.len as usize).checked_sub(header_len)?;
    if len < SHORTEST
        || len > port.contract.frame_max as usize
        || (*budget <= 0 && port.contract.deadline.is_none())
    {
        return None;
    }
    *budget -= len as i64 + DIRECT;
    // SAFETY: the ring translated the buffer, `header_len + len` bytes, in guest memory that stays mapped
    // while this worker runs its loop; read once.
    let asked = unsafe { read(single.ptr, header_len, &mut batch.heads[i].0, len.min(HEAD)) };
    Some((len, asked))
}

/// Decides on frame `i` in few instructions, if it is plain and without requests.
#[inline(always)]
fn decide_if_plain(
    sender: &Sender<'_>,
    batch: &mut Batch,
    i: usize,
    len: usize,
    asked: &[u8; VnetHdr::LEN],
) -> Option<Plain> {
    match asked {
        // Flags and GSO type of 0.
        [0, 0, ..] => sender.decide_plain(&mut batch.heads[i].0[..len.min(HEAD)], len),
        _ => None,
    }
}

/// Like [`decide_if_plain`], for a plain frame that leaves its checksum to the switch; with the virtio header to
/// deliver if the receiver takes it so.
#[inline(always)]
fn decide_except_checksum(
    sender: &Sender<'_>,
    batch: &mut Batch,
    i: usize,
    len: usize,
    asked: &[u8; VnetHdr::LEN],
) -> Option<(Plain, [u8; VnetHdr::LEN])> {
    let head = &mut batch.heads[i].0[..len.min(HEAD)];
    let vnet = own_checksum(head, asked)?;
    Some((sender.decide_plain(head, len)?, vnet))
}

/// Decides on a frame that is not plain, such as a tagged one, if its first bytes suffice. Not on a flooded
/// frame, which is copied first, nor on a super-frame.
#[inline(always)]
fn decide_from_head(
    sender: &Sender<'_>,
    head: &mut [u8; HEAD],
    len: usize,
    asked: &[u8; VnetHdr::LEN],
) -> Option<StoredDecision> {
    let head = &mut head[..len.min(HEAD)];
    let vnet = VnetHdr::read_legacy(asked).filter(|_| head[0] & 1 == 0)?;
    let decision = sender.decide(head, len, &vnet).ok()?;
    let headers = &decision.headers;
    let whole = matches!((headers.l3, headers.l4), (L3::Ipv4 | L3::Ipv6, L4::Tcp | L4::Udp));
    (whole && decision.offload.gso_size().is_none()).then_some(StoredDecision { decision, vnet })
}

/// Like [`decide_from_head`], for frame `i`, which is queued; `false` if that decides nothing.
#[inline(never)]
fn store_decision(
    sender: &Sender<'_>,
    batch: &mut Batch,
    i: usize,
    len: usize,
    asked: &[u8; VnetHdr::LEN],
) -> bool {
    let decided = decide_from_head(sender, &mut batch.heads[i].0, len, asked);
    decided.map(|decided| batch.decisions[i] = decided).is_some()
}

/// Returns the virtio header to deliver if the receiver takes the frame as it is.
#[inline]
fn header_as_is(
    StoredDecision { decision, vnet }: &StoredDecision,
    receiver: &Receiver,
) -> Option<[u8; VnetHdr::LEN]> {
    let mut deliver = COMPLETE;
    if decision.offload != Offload::None {
        if !receiver.csum {
            return None;
        }
        receiver_hdr(vnet, &decision.headers, decision.offload).write(&mut deliver);
    }
    Some(deliver)
}
