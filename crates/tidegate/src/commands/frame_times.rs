//! How long a frame of a vNIC occupies its worker, stage by stage.

use serde::Serialize;
use tidegate_evidence::{VnicStats, Work, total};

/// Time of a worker, in ns a frame; absent where there were no frames.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FrameTimes {
    /// To take one that it sent or that was dropped, and to deliver it where it was not queued.
    pub take: Option<f64>,
    /// To deliver one that was queued.
    pub deliver: Option<f64>,
    /// What small buffers of its own took more for one that it received.
    pub buffers: Option<f64>,
}

impl FrameTimes {
    /// Of what was counted between two looks.
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
