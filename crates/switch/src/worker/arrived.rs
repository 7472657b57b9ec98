//! Judges frames of other hosts with a stamp: in time or late, by how much, and in which part of their way.
//!
//! ```text
//!  Ts ├── hold: sending host ──┤── network ──┤── here ──┤ Tr        Tr - Ts - Td > 0: late
//!     ├ Td - latency - budget ─┤── latency ──┤─ budget ─┤ Ts + Td   the part that exceeds its share most: the cause
//! ```
//!
//! Ts is a time of the sender's clock. Its offset is known to within an error: what is late by less is uncertain.

use super::crossing::Fate;
use super::missed::{Certainty, DelayOf, Miss, Waits};
use crate::clock::RawTime;
use crate::hosts::late::Where;
use crate::hosts::{Clocks, Late};
use crate::link::vxlan::pair_counts::place;
use crate::link::vxlan::pairs::{PairKey, Shares};
use crate::port::Port;
use crate::slots::Frame;
use rtrb::Producer;
use std::sync::Arc;
use tidegate_evidence::MissCause;
use tidegate_uplink::clock::{Verdict, judge};
use tidegate_uplink::stamp::Stamp;

/// What a worker knows of other hosts, and tells them.
pub struct Hosts {
    /// The offsets of their clocks.
    clocks: Arc<Clocks>,
    /// Frames of theirs that were late or dropped.
    late: Producer<Late>,
    time: RawTime,
}

impl Hosts {
    /// Returns a worker's ends.
    pub fn new(clocks: Arc<Clocks>, late: Producer<Late>) -> Self {
        Self { clocks, late, time: RawTime::default() }
    }
}

/// The parts of a frame's way (ns).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Parts {
    hold: u64,
    network: u64,
    here: u64,
}

impl Parts {
    /// Returns the part that exceeds its share of `deadline` (ns) most; `here` is the cause of a delay in this host.
    fn cause(&self, deadline: u64, shares: Shares, here: MissCause) -> Where {
        let at_sender = deadline.saturating_sub(shares.latency + shares.arrival);
        let excess = |part: u64, share: u64| i128::from(part) - i128::from(share);
        let (sender, network, receiver) = (
            excess(self.hold, at_sender),
            excess(self.network, shares.latency),
            excess(self.here, shares.arrival),
        );
        if network >= sender && network >= receiver {
            Where::Network
        } else if sender >= receiver {
            Where::Sender
        } else {
            Where::Receiver(here)
        }
    }
}

/// Judges a frame with a stamp at its uplink's port, which `worker` owns. `true` if it was certainly late because of
/// this host.
#[inline(never)]
pub(super) fn account(
    port: &Port,
    frame: &Frame,
    stamp: &Stamp,
    fate: &Fate,
    hosts: Option<&mut Hosts>,
    worker: u16,
) -> bool {
    let (Some(pairs), Some(peer), Some(hosts)) = (port.link.tx.pairs(), frame.peer, hosts) else {
        return false;
    };
    let (src, dst) = (frame.headers.src, frame.headers.dst);
    // Removed meanwhile: nobody asks.
    let Some(pair) = pairs.find(PairKey::new(frame.segment, dst, src)) else { return false };
    let counts = &pair.counts;
    let now = hosts.time.now();
    let received = hosts.time.of(fate.at);
    let estimate = hosts.clocks.estimate(peer, now);
    let deadline = u64::from(stamp.deadline_us) * 1000;
    let waits = Waits::of(frame, fate);
    let verdict = estimate.map(|estimate| judge(stamp.sent_ns, stamp.deadline_us, received, estimate));
    let error = estimate.map_or(0, |estimate| estimate.error_ns);
    let total = estimate.map_or(0, |estimate| {
        let total = i128::from(received) + i128::from(estimate.offset_ns) - i128::from(stamp.sent_ns);
        u64::try_from(total.max(0)).unwrap_or(u64::MAX)
    });
    let here = fate.at.saturating_sub(frame.started);
    let hold = u64::from(stamp.hold_ns);
    let parts = Parts { hold, network: total.saturating_sub(hold).saturating_sub(here), here };
    let (late_ns, certainty) = match verdict {
        Some(Verdict::Missed(late)) => (late, Certainty::Certain),
        Some(Verdict::Uncertain(late)) if fate.dropped.is_none() => (late, Certainty::Possible),
        _ if fate.dropped.is_some() => (0, Certainty::Certain),
        Some(_) => {
            counts.met.add(1);
            return false;
        }
        None => {
            counts.unjudged.add(1);
            return false;
        }
    };
    let cause = match fate.dropped {
        Some(_) => Where::Receiver(waits.cause(fate)),
        None => parts.cause(deadline, pair.shares, waits.cause(fate)),
    };
    match (fate.dropped, certainty) {
        (Some(_), _) => counts.dropped.add(1),
        (None, Certainty::Certain) => {
            counts.late[place(cause)].add(1);
            counts.worst.raise(late_ns);
        }
        (None, _) => counts.uncertain[place(cause)].add(1),
    }
    let record = Late {
        peer,
        segment: frame.segment,
        src,
        dst,
        sequence: stamp.sequence,
        deadline_us: stamp.deadline_us,
        late_ns,
        error_ns: error,
        hold_ns: stamp.hold_ns,
        network_ns: parts.network,
        here_ns: here,
        cause,
        dropped: fate.dropped.is_some(),
    };
    // A full queue loses the newest.
    _ = hosts.late.push(record);
    let label = match cause {
        Where::Sender => MissCause::Sender,
        Where::Network => MissCause::Network,
        Where::Receiver(here) => here,
    };
    let whole = total.max(here);
    let delay = DelayOf {
        at: fate.at,
        started: fate.at.saturating_sub(whole),
        started_by: fate.at.saturating_sub(whole.saturating_sub(error)),
        slept: 0,
    };
    Miss::of_arrival(label, fate, delay, deadline, waits).record(port, certainty, worker);
    certainty == Certainty::Certain && matches!(cause, Where::Receiver(_))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The cause of a frame that is late by one part alone is that part.
        #[test]
        fn the_part_that_is_too_long_is_the_cause(
            shares in [1..1_000_000u64; 3], used in [0.0..=1.0f64; 3], which in 0..3usize, beyond in 1..1_000_000u64,
        ) {
            let [sender, latency, arrival] = shares;
            let mut parts: [u64; 3] = std::array::from_fn(|n| (shares[n] as f64 * used[n]) as u64);
            parts[which] = shares[which] + beyond;
            let [hold, network, here] = parts;
            let cause = Parts { hold, network, here }
                .cause(sender + latency + arrival, Shares { latency, arrival }, MissCause::Queue);
            let expected = [Where::Sender, Where::Network, Where::Receiver(MissCause::Queue)][which];
            prop_assert_eq!(cause, expected);
        }
    }
}
