//! How much a worker takes in and sends on in one loop. Pure.
//!
//! ```text
//!  W: what waits and could leave now ─▶ intake = QUANTUM - W, at least half of it
//!                                          │
//!  rings, taps, other workers ─────────────┴▶ taken in ─▶ direct: gone at once
//!                                                   └───▶ queued ─┐
//!  egress = QUANTUM, and what intake took beyond its budget ──────┴▶ sent on
//! ```
//!
//! A queued frame costs intake at least as much as egress. So a loop takes in no more than it sends on, for
//! all frame sizes and port numbers:
//!
//! - if W is at most half a quantum, all of it leaves, with all frames of the loop;
//! - if W is more, a loop reduces it by at least half a quantum, and takes in at least as much.
//!
//! The backlog of a stalled receiver is gone after `2 W / QUANTUM` loops, and frames go directly again.
//! With a fixed number of frames for intake and of bytes for egress it never went away.
//!
//! W leaves out receivers without buffers and egresses without tokens, so a receiver that takes no frames
//! holds up no other port.

pub(super) use crate::port::talk::DIRECT;
use crate::sched::Backlog;

/// Cost of one loop's best-effort frames, in copied bytes: a real-time frame that arrives during the loop
/// waits for them.
pub(super) const QUANTUM: i64 = 64 << 10;
/// Cost of a queued frame besides its bytes.
const QUEUED: i64 = 1024;
/// Cost of each descriptor after the first, at sender and receiver, whose chain may have one more for the
/// header: a guest of tiny buffers makes many.
const PIECE: i64 = 128;

/// Largest cost of dropped frames of one port with a deadline in a loop: no contract bounds their rate,
/// unlike that of sent frames.
pub(crate) const DROPPED: i64 = QUANTUM / 8;

/// Returns the cost of a queued frame of `bytes`.
#[inline]
pub(super) fn queued(bytes: u32) -> i64 {
    i64::from(bytes) + QUEUED
}

/// Returns the cost of queued frames.
#[inline]
pub(super) fn all_queued(all: Backlog) -> i64 {
    let bytes = i64::try_from(all.bytes).unwrap_or(i64::MAX);
    bytes.saturating_add(i64::from(all.frames) * QUEUED)
}

/// Cost of finding a completed frame at a link.
pub(super) const COMPLETED: i64 = DIRECT;

/// Returns the extra cost of a frame in `pieces` descriptors or chains.
#[inline]
pub(super) fn scattered(pieces: usize) -> i64 {
    pieces.saturating_sub(1) as i64 * PIECE
}

/// Returns the cost of an egress whose receiver has buffers, and which may send `tokens` bytes now.
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

/// Returns a loop's intake if `waiting` could leave now.
#[inline]
pub(super) fn intake(waiting: i64) -> i64 {
    QUANTUM.saturating_sub(waiting).max(QUANTUM / 2)
}

/// Returns a loop's egress if `left` of its [`intake`] is unused; negative after an excess.
#[inline]
pub(super) fn egress(left: i64) -> i64 {
    QUANTUM + (-left).max(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    /// Egresses: the waiting frames, and whether the receiver takes frames now.
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

        /// Runs one loop with an endless supply.
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
        /// For any order of frames, to receivers that stall and continue.
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
                // A number beyond the ports changes no state.
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
        fn frames_that_may_not_leave_yet_do_not_count(
            frames in 1u32..1000, each in 60u64..9014, tokens in any::<i64>(),
        ) {
            let backlog = Backlog { frames, bytes: u64::from(frames) * each };
            let all = waiting(backlog, i64::MAX);
            let now = waiting(backlog, tokens);
            prop_assert!((0..=all).contains(&now));
            prop_assert!(tokens > 0 || now == 0);
            if let Ok(tokens) = u64::try_from(tokens) && tokens < backlog.bytes {
                // As many frames as may leave; the result is off by one frame at most.
                let leave = i64::try_from(tokens / each).unwrap();
                prop_assert!((now - leave * queued(each as u32)).abs() <= queued(each as u32));
            }
        }
    }
}
