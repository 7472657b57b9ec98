//! Real-time frames in the middle of a loop: best effort that takes long is interrupted for them.
//!
//! ```text
//!  egress's turn: best effort ─▶ CHECK cost delivered ─▶ real-time frames last looked for H / SHARE ago?
//!        ▲                                                       │ yes
//!        └── goes on ◀── delivered, shown ◀── real-time ports, other workers' real-time frames
//! ```
//!
//! A write of 64 kB into a tap runs the receiver's network stack and can take a good part of a millisecond, and a loop
//! may have some of them. So the worker looks for real-time frames after each; what is longer cannot be interrupted: one
//! write, one copy.

use super::{Worker, clock};

/// Cost of best effort after which the clock is read.
pub(super) const CHECK: i64 = super::budget::QUANTUM / 4;
/// Real-time frames are looked for in each such part of H.
const SHARE: u64 = 8;

/// When real-time frames are to be looked for again.
#[derive(Default)]
pub(super) struct Between {
    /// Cost of what was delivered since the clock was read.
    unchecked: i64,
    /// When they were looked for last, ns.
    looked: u64,
    /// They are to be looked for before best effort goes on.
    due: bool,
}

impl Between {
    /// A loop begins, which looks for them first.
    #[inline]
    pub(super) fn begin(&mut self, now: u64) {
        *self = Self { unchecked: 0, looked: now, due: false };
    }
}

impl Worker {
    /// Whether any real-time frame can come.
    #[inline]
    pub(super) fn expects_realtime(&self) -> bool {
        self.realtime > 0 || self.peers.len() > 1
    }

    /// Best effort of this cost was delivered; `true` where real-time frames are to be looked for before more is.
    #[inline]
    pub(super) fn is_interrupted(&mut self, cost: i64) -> bool {
        self.between.unchecked += cost;
        if self.between.unchecked < CHECK || !self.expects_realtime() {
            return false;
        }
        self.between.unchecked = 0;
        self.now = clock();
        self.between.due = self.now.saturating_sub(self.between.looked) >= self.host_latency / SHARE;
        self.between.due
    }

    /// Looks for real-time frames where they are due, and delivers them; `true` where that was so. No port may be taken out
    /// of its place meanwhile.
    pub(super) fn look_between(&mut self) -> bool {
        if !self.between.due {
            return false;
        }
        self.look_for_realtime();
        true
    }

    #[inline(never)]
    fn look_for_realtime(&mut self) {
        self.now = clock();
        self.between.begin(self.now);
        self.poll_descriptors();
        let mut came = self.urgent_crossings();
        if came {
            self.turns.leave_out(clock());
        }
        for place in 0..self.realtime {
            came |= self.visit_port(place, &mut 0).worked;
        }
        if !came {
            return;
        }
        for place in 0..self.active.len() {
            let index = self.active[place];
            let Some(mut port) = self.ports[usize::from(index)].take() else { continue };
            if self.take_back_to_serve(&mut port) {
                self.serve(&mut port, &mut 0);
                self.settle_bill(&port);
            }
            self.ports[usize::from(index)] = Some(port);
        }
        self.flush();
    }
}
