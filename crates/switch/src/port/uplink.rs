//! A port whose link leads to other hosts: its account of floods, and of bytes on the wire.
//!
//! ```text
//!  floods from other hosts ─▶ bucket of their segment: no tenant's floods use up another's
//!  delivered, flushed ─▶ what the link put on the wire beyond frames' own bytes ─▶ charged to the rate
//! ```

use super::Port;
use crate::fdb::{PortIndex, SegmentIndex};
use crate::link::vxlan::Peers;
use crate::sched::{Backlog, TokenBucket};
use tidegate_contract::{Bytes, Rate};

/// The cap on copies of flooded frames of other hosts, for each segment.
#[derive(Default)]
pub struct Floods {
    /// By segment.
    buckets: Box<[(SegmentIndex, TokenBucket)]>,
}

impl Floods {
    /// Returns buckets for the segments of `peers`; those in `before` keep their level.
    pub fn new(peers: &Peers, before: &Self, (rate, burst): (Rate, Bytes)) -> Self {
        let bucket = |segment| match before.place(segment) {
            Some(at) => before.buckets[at].clone(),
            None => (segment, TokenBucket::new(rate, burst)),
        };
        Self { buckets: peers.segments().map(bucket).collect() }
    }

    /// Changes all buckets from `now` on.
    pub fn set(&mut self, now: u64, (rate, burst): (Rate, Bytes)) {
        self.buckets.iter_mut().for_each(|(_, bucket)| bucket.set(now, rate, burst));
    }

    fn place(&self, segment: SegmentIndex) -> Option<usize> {
        self.buckets.binary_search_by_key(&segment, |(segment, _)| *segment).ok()
    }
}

impl Port {
    /// Returns the bucket of its floods in a segment: an uplink has one for each that its peers carry.
    #[inline]
    pub fn flood_bucket(&mut self, segment: SegmentIndex) -> &mut TokenBucket {
        if self.contract.is_uplink
            && let Some(at) = self.floods.place(segment)
        {
            return &mut self.floods.buckets[at].1;
        }
        &mut self.flood
    }

    /// Notes at `now` that the link holds a frame of `source`: an uplink's is on its way, and those behind it wait for it.
    #[inline]
    pub fn note_given(&mut self, source: PortIndex, now: u64) {
        if self.contract.is_uplink {
            self.egress.last_sent = (source, now);
        }
    }

    /// Charges the uplink's rate at `now` for the bytes that its link put on the wire since the last call,
    /// beyond `own`, which are charged already. The bucket may run into debt: by the outer headers of the last
    /// frame or, after a flood, by its copies. Returns these copies.
    #[inline(never)]
    pub fn charge_on_wire(&mut self, now: u64, own: u64) -> Backlog {
        let sent = self.link.rx.take_on_wire();
        if sent.frames > 0 {
            let counted = &self.stats.on_wire;
            counted.frames.add(sent.frames);
            counted.bytes.add(sent.all_bytes(self.contract.overhead));
            counted.copies.add(u64::from(sent.copies.frames));
        }
        let extra = sent.beyond(own, self.contract.overhead);
        if extra > 0 {
            self.egress.scheduler.charge(now, extra);
        }
        sent.copies
    }

    /// Charges and counts what a flush of an uplink did at `now`.
    #[inline(never)]
    pub fn note_flushed(&mut self, now: u64) {
        self.charge_on_wire(now, 0);
        let dropped = &self.stats.rx.dropped;
        self.link.rx.take_dropped(|(reason, frames)| dropped[reason as usize].add(frames));
    }
}
