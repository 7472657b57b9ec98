//! Worker time per frame of a vNIC, by stage.

use serde::Serialize;
use tidegate_evidence::{VnicStats, Work, total};

/// Worker time per frame (ns); absent without frames.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FrameTimes {
    /// Time to take a frame that the vNIC sent, delivered or dropped, including delivery if it was not
    /// queued.
    pub take: Option<f64>,
    /// Time to deliver a queued frame.
    pub deliver: Option<f64>,
    /// Additional time per received frame because of the vNIC's own small buffers.
    pub buffers: Option<f64>,
}

impl FrameTimes {
    /// Computes the times from the counters of two looks; `None` if the vNIC has no worker.
    pub fn between(then: &VnicStats, now: &VnicStats) -> Option<Self> {
        let (none, work) = (Work::default(), now.work.as_ref()?);
        let before = then.work.as_ref().unwrap_or(&none);
        let taken = |stats: &VnicStats| total(stats.tx.dropped.values().copied().chain([stats.tx.frames]));
        let a_frame = |ns: [u64; 2], frames: [u64; 2]| {
            let frames = frames[1].saturating_sub(frames[0]);
            (frames > 0).then(|| ns[1].saturating_sub(ns[0]) as f64 / frames as f64)
        };
        Some(Self {
            take: a_frame([before.take_ns, work.take_ns], [taken(then), taken(now)]),
            deliver: a_frame([before.deliver_ns, work.deliver_ns], [before.delivered, work.delivered]),
            buffers: a_frame([before.buffers_ns, work.buffers_ns], [then.rx.frames, now.rx.frames]),
        })
    }
}
