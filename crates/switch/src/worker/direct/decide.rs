//! What is decided on a frame by its copied head: whether it is plain, may be sent, and where it goes.

use super::batch::{Batch, Group, ONLY, Sent};
use crate::fdb::NotLearned;
use crate::frame::dscp::is_realtime;
use crate::frame::offload::{check, receiver_hdr};
use crate::frame::plain::{Plain, look};
use crate::frame::{L3, L4, Offload, Verdict, VnetHdr};
use crate::frame::{clear_realtime_marks, parse};
use crate::link::Receiver;
use crate::link::vhost::copy::{COMPLETE, HEAD, read};
use crate::port::Port;
use crate::worker::Worker;
use crate::worker::budget::DIRECT;

/// Shortest frame taken: Ethernet and a whole IPv4 header, and long enough to be copied in two halves.
const SHORTEST: usize = 34;

impl Worker {
    /// Decides on the first frames of the batch; returns how many can go this way.
    pub(super) fn classify(
        &mut self,
        port: &Port,
        batch: &mut Batch,
        popped: usize,
        header_len: usize,
        budget: i64,
        learns: bool,
    ) -> usize {
        let realtime = port.contract.deadline.is_some();
        let mut spent = 0;
        let seconds = (self.now / 1_000_000_000) as u32;
        batch.group_count = 0;
        (batch.waits, batch.lull) = (false, port.lull);
        for i in 0..popped {
            let single = batch.tx[i];
            let Some(len) = (single.len as usize).checked_sub(header_len) else { return i };
            if len < SHORTEST || len > port.contract.frame_max as usize || (spent >= budget && !realtime) {
                return i;
            }
            spent += len as i64 + DIRECT;
            let head = &mut batch.heads[i].0;
            let head_len = len.min(HEAD);
            // SAFETY: the ring translated the buffer, `header_len + len` bytes long, in the guest's
            // memory, which stays mapped while this worker runs its loop; read once.
            let vnet = unsafe { read(single.ptr, header_len, head, head_len) };
            let head = &mut head[..head_len];
            let (Plain { src, dst, dscp }, vid) = match look(head, len) {
                Some(plain) if port.contract.policy.passes_plain(head, plain.src, &port.held) => {
                    (plain, None)
                }
                Some(_) => return i,
                None => match look_closely(port, head, len) {
                    Some(seen) => seen,
                    None => return i,
                },
            };
            if is_realtime(dscp) && !realtime {
                clear_marks(head, len);
            }
            let Some(egress) = self.fdb.lookup(port.segment, dst) else { return i };
            let groups = &batch.groups[..batch.group_count];
            let open = |group: &Group| group.egress == egress && group.queue == ONLY;
            let group = match groups.iter().position(open) {
                Some(group) if vid.is_none() => group,
                _ => match self.group(port, batch, egress, i, len, vid) {
                    Some(group) => group,
                    None => return i,
                },
            };
            let to = &mut batch.groups[group];
            let vnet = match vnet {
                // Flags and GSO type of 0: it asks for nothing.
                [0, 0, ..] => COMPLETE,
                asked => match checksum_left(&asked, &batch.heads[i].0[..head_len], len, &to.receiver) {
                    Some(deliver) => deliver,
                    None => return i,
                },
            };
            // Last: no address is learned from a frame that is dropped in the end. One to its own
            // source would go where that was seen before.
            if learns
                && (src == dst
                    || self.fdb.learn(port.segment, src, port.index, seconds) == Err(NotLearned::Pinned))
            {
                return i;
            }
            batch.frames[i] = Sent { group: group as u8, rank: to.frames, len: len as u32, started: 0, vnet };
            to.frames += 1;
            to.bytes += len as u64;
            to.longest = to.longest.max(len as u32);
        }
        popped
    }
}

/// No vNIC without a deadline sends real-time marks.
#[inline(never)]
fn clear_marks(head: &mut [u8], len: usize) {
    if let Ok(mut headers) = parse(head, len) {
        clear_realtime_marks(head, &mut headers);
    }
}

/// Whether a frame that is not plain at first sight, as one with a tag, can go this way.
#[inline(never)]
fn look_closely(port: &Port, head: &[u8], len: usize) -> Option<(Plain, Option<u16>)> {
    // One to many is copied first.
    if head[0] & 1 == 1 {
        return None;
    }
    let headers = parse(head, len).ok()?;
    let whole = matches!((headers.l3, headers.l4), (L3::Ipv4 | L3::Ipv6, L4::Tcp | L4::Udp));
    if !whole || port.contract.policy.check(head, &headers, &port.held) != Verdict::Pass {
        return None;
    }
    Some((Plain { dst: headers.dst, src: headers.src, dscp: headers.dscp }, headers.vid()))
}

/// The virtio header to deliver for a frame whose checksum is left to others, where the receiver
/// takes it so.
#[inline(never)]
fn checksum_left(
    asked: &[u8; VnetHdr::LEN],
    head: &[u8],
    len: usize,
    receiver: &Receiver,
) -> Option<[u8; VnetHdr::LEN]> {
    let vnet = VnetHdr::read_legacy(asked)?;
    let headers = parse(head, len).ok()?;
    let offload = check(&vnet, &headers, head.len(), len).ok()?;
    if offload.gso_size().is_some() || (offload != Offload::None && !receiver.csum) {
        return None;
    }
    let mut deliver = COMPLETE;
    receiver_hdr(&vnet, &headers, offload).write(&mut deliver);
    Some(deliver)
}
