//! Compares grants with simulated packets: rings of ports with strict priorities, conforming senders, best effort that has
//! just begun whenever real-time frames come, and the slowest permitted switches.

use super::network::{Buffer, Link, Network};
use super::tests::{any_flow, any_ring, wanted, way};
use super::{Grant, Ledger, PathRefusal, Request, Reserve};
use crate::Bytes;
use crate::frame::VLAN_TAG;
use proptest::{collection::vec, prelude::*};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// How a flow sends: sizes (0 to 255 between its smallest and its largest frame) and waits besides those for tokens (ns),
/// both repeated.
#[derive(Clone, Debug)]
struct Sender {
    start: u64,
    sizes: Vec<u8>,
    gaps: Vec<u64>,
    frames: usize,
}

/// Returns when frames enter (ns), and their bytes: the earliest times that the envelope allows.
fn arrivals(request: &Request, sender: &Sender) -> Vec<(u64, u64)> {
    let nano = 1_000_000_000u128;
    let (rate, depth) = (u128::from(request.rate.bits()), u128::from(request.burst.get()) * 8 * nano);
    let span = request.largest_frame.get() - request.smallest_frame.get();
    let (mut tokens, mut now) = (depth, sender.start);
    let frame = |n: usize| {
        let gap = sender.gaps[n % sender.gaps.len()];
        let bytes =
            request.smallest_frame.get() + span * u64::from(sender.sizes[n % sender.sizes.len()]) / 255;
        let needed = u128::from(bytes) * 8 * nano;
        tokens = depth.min(tokens + rate * u128::from(gap));
        let wait = needed.saturating_sub(tokens).div_ceil(rate);
        tokens = depth.min(tokens + rate * wait) - needed;
        now += gap + u64::try_from(wait).expect("small");
        (now, bytes)
    };
    (0..sender.frames).map(frame).collect()
}

/// A frame on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Frame {
    flow: usize,
    bytes: u64,
    sent: u64,
    hop: usize,
    /// When it came to this link.
    came: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A port may send the frame.
    Ready(Frame),
    /// A port has sent what it sent.
    Free(usize),
}

struct Port {
    queues: Vec<VecDeque<Frame>>,
    is_busy: bool,
}

/// Returns the worst time of each flow in the network. Checks the delay and the queue of each level on the way.
fn worst(links: &[Link], flows: &[(Request, Vec<usize>, usize)], senders: &[Sender]) -> Vec<u64> {
    let mut events = BinaryHeap::new();
    let mut order = 0u64;
    let mut at = |events: &mut BinaryHeap<_>, time: u64, event: Event| {
        order += 1;
        events.push(Reverse((time, order, event)));
    };
    for (flow, ((request, way, _), sender)) in flows.iter().zip(senders).enumerate() {
        for (sent, bytes) in arrivals(request, sender) {
            let frame = Frame { flow, bytes, sent, hop: 0, came: sent };
            at(&mut events, sent + links[way[0]].latency.get(), Event::Ready(frame));
        }
    }
    let port = |link: &Link| Port { queues: vec![VecDeque::new(); link.levels.len()], is_busy: false };
    let mut ports: Vec<Port> = links.iter().map(port).collect();
    let mut worst = vec![0; flows.len()];
    while let Some(Reverse((now, _, event))) = events.pop() {
        let index = match event {
            Event::Ready(frame) => {
                let (_, way, level) = &flows[frame.flow];
                let (index, link) = (way[frame.hop], &links[way[frame.hop]]);
                let queue = &mut ports[index].queues[*level];
                queue.push_back(frame);
                let waiting = queue.iter().map(|frame| frame.bytes + VLAN_TAG).sum::<u64>();
                match link.levels[*level].buffer {
                    Buffer::Bytes(available) => {
                        assert!(waiting <= available.get(), "{waiting} of {available}")
                    }
                    Buffer::Frames(available) => assert!(queue.len() as u64 <= available),
                }
                if !ports[index].is_busy {
                    // A frame of best effort has just begun.
                    ports[index].is_busy = true;
                    let bytes = link.largest_frame.get() + link.overhead.get();
                    at(&mut events, now + time(link, bytes), Event::Free(index));
                }
                continue;
            }
            Event::Free(index) => index,
        };
        let (port, link) = (&mut ports[index], &links[index]);
        let next = port.queues.iter_mut().find_map(VecDeque::pop_front);
        port.is_busy = next.is_some();
        let Some(frame) = next else { continue };
        let (_, way, level) = &flows[frame.flow];
        let left = now + time(link, frame.bytes + VLAN_TAG + link.overhead.get());
        assert!(
            left - frame.came <= link.levels[*level].delay.get(),
            "{} ns at {}",
            left - frame.came,
            link.name
        );
        at(&mut events, left, Event::Free(index));
        let came = left + link.propagation.get();
        match way.get(frame.hop + 1) {
            None => worst[frame.flow] = worst[frame.flow].max(came - frame.sent),
            Some(&next) => {
                let frame = Frame { hop: frame.hop + 1, came, ..frame };
                at(&mut events, came + links[next].latency.get(), Event::Ready(frame));
            }
        }
    }
    worst
}

/// Returns the time of bytes at a port, ns: exact, since links have whole bits per nanosecond, at most 8.
fn time(link: &Link, bytes: u64) -> u64 {
    bytes * 8 / (link.capacity.bits() / 1_000_000_000)
}

prop_compose! {
    fn any_sender()(
        start in prop_oneof![3 => Just(0u64), 1 => 0u64..300_000],
        sizes in prop_oneof![Just(vec![255u8]), Just(vec![0]), vec(any::<u8>(), 1..8)],
        gaps in prop_oneof![Just(vec![0]), vec(prop_oneof![Just(0u64), 0u64..400_000], 1..8)],
        frames in 1usize..60,
    ) -> Sender {
        Sender { start, sizes, gaps, frames }
    }
}

/// Reserves flows one after the other; each must fit.
fn admit(links: &[Link], flows: &[Reserve]) -> Result<Vec<Grant>, Vec<PathRefusal>> {
    let mut ledger = Ledger::new(Network::new(links.to_vec()).expect("sound"));
    let granted = ledger.change(&[], flows)?;
    Ok(granted.into_iter().map(|(_, grant)| grant).collect())
}

/// Lowers fixed delays and buffers until the flows just fit, where a wrong bound would show.
fn tighten(links: &mut [Link], flows: &[Reserve]) {
    for _ in 0..4 {
        let mut ledger = Ledger::new(Network::new(links.to_vec()).expect("sound"));
        ledger.change(&[], flows).expect("fits");
        for (link, usage) in links.iter_mut().zip(ledger.usage()) {
            link.levels.iter_mut().zip(usage.needed).for_each(|(level, needed)| level.delay = needed);
        }
    }
    for link in 0..links.len() {
        for level in 0..links[link].levels.len() {
            let Buffer::Bytes(upto) = links[link].levels[level].buffer else { continue };
            let (mut low, mut high) = (0, upto.get());
            while low < high {
                let middle = (low + high) / 2;
                links[link].levels[level].buffer = Buffer::Bytes(Bytes::new(middle));
                if admit(links, flows).is_ok() { high = middle } else { low = middle + 1 }
            }
            links[link].levels[level].buffer = Buffer::Bytes(Bytes::new(high));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn no_frame_is_later_than_its_grant(
        mut links in any_ring(), flows in vec((any_flow(), any_sender()), 1..16), is_tight: bool,
    ) {
        let mut ledger = Ledger::new(Network::new(links.clone()).expect("sound"));
        let (mut placed, mut senders, mut reserved) = (Vec::new(), Vec::new(), Vec::new());
        for (number, (flow, sender)) in flows.iter().enumerate() {
            let wanted = wanted(&links, number, flow);
            if ledger.change(&[], std::slice::from_ref(&wanted)).is_err() {
                continue;
            }
            let (request, from, hops, level) = *flow;
            placed.push((request, way(&links, from, hops), usize::from(level)));
            senders.push(sender.clone());
            reserved.push(wanted);
        }
        if is_tight {
            tighten(&mut links, &reserved);
        }
        let grants = admit(&links, &reserved).expect("fits");
        for (worst, grant) in worst(&links, &placed, &senders).into_iter().zip(grants) {
            prop_assert!(worst <= grant.bound.get(), "{worst} ns, granted {}", grant.bound);
        }
    }
}
