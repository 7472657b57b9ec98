//! How much a worker takes in, and sends on, in one loop. Pure.
//!
//! ```text
//!  W: what waits and could leave now ─▶ intake = QUANTUM - W, at least half of it
//!                                          │
//!  rings, taps, other workers ─────────────┴▶ taken in ─▶ direct: gone at once
//!                                                   └───▶ queued ─┐
//!  egress = QUANTUM, and what intake took beyond its budget ──────┴▶ sent on
//! ```
//!
//! A frame that is queued costs intake at least what it costs egress. So a loop takes in no more than it
//! sends on, for every size of frames and number of ports:
//!
//! - where W is at most half a quantum, all of it leaves, with all that the loop took in;
//! - where W is more, a loop leaves at least half a quantum less of it, and takes in at least as much.
//!
//! What a receiver that stalled had left behind is gone after `2 W / QUANTUM` loops, and frames go the
//! direct way again. With a fixed number of frames for intake and of bytes for egress it never went.
//!
//! W counts neither a receiver without buffers nor an egress without tokens: a receiver that does not take its
//! frames holds up no other port's.

pub(super) use crate::port::talk::DIRECT;
use crate::sched::Backlog;

/// Cost of the best-effort frames of one loop, as bytes that are copied: a real-time frame that arrives
/// meanwhile waits for them.
pub(super) const QUANTUM: i64 = 64 << 10;
/// What a frame costs besides its bytes where it goes through a queue.
const QUEUED: i64 = 1024;
/// What each of its descriptors costs but the first, at a sender and at a receiver, where a chain may have one more for the
/// header: a guest of tiny buffers makes many.
const PIECE: i64 = 128;

/// What frames of one port with a deadline may cost in a loop that are dropped: no contract bounds their rate, as
/// it does that of frames that are sent.
pub(crate) const DROPPED: i64 = QUANTUM / 8;

/// What a frame of `bytes` that is queued costs.
#[inline]
pub(super) fn queued(bytes: u32) -> i64 {
    i64::from(bytes) + QUEUED
}

/// What frames that are queued cost.
#[inline]
pub(super) fn all_queued(all: Backlog) -> i64 {
    let bytes = i64::try_from(all.bytes).unwrap_or(i64::MAX);
    bytes.saturating_add(i64::from(all.frames) * QUEUED)
}

/// What it costs to see that a link completed a frame.
pub(super) const COMPLETED: i64 = DIRECT;

/// What it costs besides that a frame is in so many descriptors, or fills so many chains.
#[inline]
pub(super) fn scattered(pieces: usize) -> i64 {
    pieces.saturating_sub(1) as i64 * PIECE
}

/// What an egress costs whose receiver has buffers, and that may send `tokens` bytes now.
pub(super) fn waiting(backlog: Backlog, tokens: i64) -> i64 {
    let bytes = i64::try_from(backlog.bytes).unwrap_or(i64::MAX);
    let all = all_queued(backlog);
    match tokens {
        ..=0 => 0,
        tokens if tokens >= bytes => all,
        // The same share of the frames as of the bytes.
        tokens => (i128::from(all) * i128::from(tokens) / i128::from(bytes)) as i64,
    }
}

/// What a loop may take in where `waiting` could leave now.
#[inline]
pub(super) fn intake(waiting: i64) -> i64 {
    QUANTUM.saturating_sub(waiting).max(QUANTUM / 2)
}

/// What a loop may send on where `left` is left of its [`intake`]; negative is what it took beyond.
#[inline]
pub(super) fn egress(left: i64) -> i64 {
    QUANTUM + (-left).max(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    /// Egresses with what waits for each, and whether its receiver takes frames now.
    #[derive(Default)]
    struct Model {
        egresses: Vec<(VecDeque<u32>, bool)>,
    }

    impl Model {
        fn waiting(&self) -> i64 {
            let open = self.egresses.iter().filter(|(_, open)| *open);
            let all = open.map(|(queue, _)| {
                let bytes = queue.iter().map(|bytes| u64::from(*bytes)).sum();
                waiting(Backlog { frames: queue.len() as u32, bytes }, i64::MAX)
            });
            all.sum()
        }

        /// One loop in which there is always more to take in.
        fn turn(&mut self, mut next: impl FnMut() -> (usize, u32, bool)) {
            let mut left = intake(self.waiting());
            while left > 0 {
                let (to, bytes, direct) = next();
                let (queue, open) = &mut self.egresses[to];
                left -= match direct && *open && queue.is_empty() {
                    true => i64::from(bytes) + DIRECT,
                    false => {
                        queue.push_back(bytes);
                        queued(bytes)
                    }
                };
            }
            let mut budget = egress(left);
            for (queue, open) in &mut self.egresses {
                while *open
                    && budget > 0
                    && let Some(bytes) = queue.pop_front()
                {
                    budget -= queued(bytes);
                }
            }
        }
    }

    fn frame() -> impl Strategy<Value = u32> {
        prop_oneof![Just(64u32), Just(1518), Just(9014), Just(66_616), 64u32..70_000]
    }

    proptest! {
        /// Whatever comes in whatever order, to receivers that stall and go on.
        #[test]
        fn a_loop_takes_in_no_more_than_it_sends_on(
            ports in 1usize..9,
            frames in prop::collection::vec((0usize..8, frame(), any::<bool>()), 1..60),
            stalls in prop::collection::vec(0usize..16, 1..40),
        ) {
            let mut model = Model::default();
            model.egresses.resize_with(ports, || (VecDeque::new(), true));
            let mut next = frames.iter().cycle().map(|(to, bytes, direct)| (to % ports, *bytes, *direct));
            for stall in stalls {
                // Numbers beyond the ports: no state changes.
                if let Some((queue, open)) = model.egresses.get_mut(stall) {
                    *open = !*open;
                    queue.truncate(500);
                }
                let before = model.waiting();
                model.turn(|| next.next().expect("endless"));
                let after = model.waiting();
                prop_assert!(after <= (before - QUANTUM / 2).max(0), "{before} waited, then {after}");
            }
        }

        #[test]
        fn what_may_not_leave_yet_does_not_count(
            frames in 1u32..1000, each in 60u64..9014, tokens in any::<i64>(),
        ) {
            let backlog = Backlog { frames, bytes: u64::from(frames) * each };
            let all = waiting(backlog, i64::MAX);
            let now = waiting(backlog, tokens);
            prop_assert!((0..=all).contains(&now));
            prop_assert!(tokens > 0 || now == 0);
            if let Ok(tokens) = u64::try_from(tokens) && tokens < backlog.bytes {
                // So many frames may leave; what it says is at most one frame off.
                let leave = i64::try_from(tokens / each).unwrap();
                prop_assert!((now - leave * queued(each as u32)).abs() <= queued(each as u32));
            }
        }
    }
}
