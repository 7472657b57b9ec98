//! Counters of one link's RDMA lane, and of each guest whose frames it does not copy. Its worker writes them, other threads read them.

use crate::stats::layout::Counter;
use std::sync::atomic::AtomicU64;
use tidegate_evidence::DropReason;
use tidegate_uplink::rdma::Step;

/// Counts since the lane was made.
#[derive(Debug, Default)]
pub struct Counters {
    /// Datagrams that the device took.
    pub sent: Counter,
    /// Bytes of their frames.
    pub sent_bytes: Counter,
    /// Datagrams that the device did not take, or could not send.
    pub unsent: Counter,
    /// Datagrams of members.
    pub received: Counter,
    /// Bytes of their frames.
    pub received_bytes: Counter,
    /// Bytes of frames, headers and stamps that were copied into send buffers.
    pub copied_out: Counter,
    /// Bytes of frames that were copied out of receive buffers.
    pub copied_in: Counter,
    /// Frames whose payload the device read out of the guest's memory.
    pub zero_copied_out: Counter,
    /// Bytes of that payload.
    pub zero_copied_out_bytes: Counter,
    /// Frames whose payload the device wrote into the guest's memory, and that went to that guest.
    pub zero_copied_in: Counter,
    /// Bytes of that payload.
    pub zero_copied_in_bytes: Counter,
    /// Frames of vNICs with zero copy that were copied: they lie in more pieces than a request has.
    pub too_many_pieces: Counter,
    /// The same: some of their bytes lie in no registered region.
    pub no_region: Counter,
    /// vNICs that went back to copies, since memory was taken out of their guests. Written by the control plane.
    pub holes: Counter,
    /// Datagrams from no member, or to a vNIC outside of its segment.
    pub unknown_member: Counter,
    /// Datagrams of a member whose frames have another source address.
    pub spoofed: Counter,
    /// Datagrams without a valid header, and completions that name what is not there.
    pub malformed: Counter,
    /// Datagrams that did not arrive, by the numbers of those that did.
    pub gaps: Counter,
    /// Times that a frame found no send buffer.
    pub no_buffers: Counter,
    /// Queue pairs that failed.
    pub failed_pairs: Counter,
    /// Queue pairs that the device did not destroy. Written by any thread.
    pub undestroyed_pairs: AtomicU64,
    /// Sends under way by [tables](super::Tables) that were replaced: a level.
    pub replaced: Counter,
    /// 1 if a completion queue is of no use any more: the link has to be made anew.
    pub broken: Counter,
}

/// What was not copied of one guest's frames. Written by the worker of the uplink.
#[derive(Debug, Default)]
pub struct GuestCounters {
    /// Frames whose payload the device read out of the guest's memory.
    pub sent: Counter,
    /// Bytes of that payload.
    pub sent_bytes: Counter,
    /// Frames whose payload the device wrote into the guest's memory, and that went to the guest.
    pub received: Counter,
    /// Bytes of that payload.
    pub received_bytes: Counter,
}

impl Counters {
    /// Counts a frame of a member, of `len` bytes, whose number came as `step` tells.
    #[inline]
    pub(super) fn arrive(&self, len: usize, step: Step) {
        self.received.add(1);
        self.received_bytes.add(len as u64);
        match step {
            Step::Ahead { missing: 0 } | Step::Again | Step::Anew => {}
            Step::Ahead { missing } => self.gaps.add(missing.into()),
            Step::Late => self.gaps.set(self.gaps.get().saturating_sub(1)),
        }
    }

    /// Counts a datagram that is refused.
    #[cold]
    pub(super) fn refuse(&self, reason: DropReason) {
        match reason {
            DropReason::UnknownPeer => self.unknown_member.add(1),
            DropReason::SourceMac => self.spoofed.add(1),
            _ => self.malformed.add(1),
        }
    }
}
