//! A receiving half that another worker has for a batch.

use crate::clock::clock;
use crate::fdb::{PortIndex, SegmentIndex};
use crate::link::{Link, Rx};
use crate::sched::TokenBucket;
use crate::stats::layout::VnicSlot;

/// The receiving half of a port in its lent form.
pub struct Lent {
    /// Its rings; an empty half while it is not lent.
    pub(crate) rx: Rx,
    /// The egress's bucket; `None` without a rate.
    pub(crate) tokens: Option<TokenBucket>,
    pub(crate) segment: SegmentIndex,
    pub(crate) stats: &'static VnicSlot,
    /// The port that sent last, and when (ns); 0 before the first frame.
    pub(crate) last_sent: (PortIndex, u64),
    /// Another worker than the owner has used it.
    pub(crate) by_others: bool,
}

impl Lent {
    /// Returns a port's place for lending.
    pub fn new(stats: &'static VnicSlot) -> Box<Self> {
        Box::new(Self {
            rx: Link::vhost_user().rx,
            tokens: None,
            segment: SegmentIndex(0),
            stats,
            last_sent: (0, 0),
            by_others: false,
        })
    }

    /// Returns the bytes that its egress may carry at `now`.
    #[inline]
    pub(crate) fn tokens(&self, now: u64) -> i64 {
        self.tokens.as_ref().map_or(i64::MAX, |bucket| bucket.available(now))
    }

    /// Accounts for frames of `source` that were put into its rings just before `now`.
    #[inline]
    pub(crate) fn note(&mut self, source: PortIndex, frames: u64, bytes: u64, now: u64) {
        self.stats.rx.frames.add(frames);
        self.stats.rx.wire_frames.add(frames);
        self.stats.rx.wire_bytes.add(bytes);
        if let Some(bucket) = &mut self.tokens {
            bucket.charge(now, bytes);
            self.stats.note_token_wait_rx(0, frames);
        }
        self.last_sent = (source, now);
    }

    /// Shows the driver new ring entries.
    #[inline]
    pub(crate) fn flush(&mut self) {
        self.rx.flush();
        if let Some(bucket) = &mut self.tokens {
            bucket.note_shown(clock());
        }
    }
}
