//! The direct way does what the queued way does, and two workers do what one does: the same frames go
//! through two switches, one with a single worker without the direct way, at times that the test sets.
//!
//! ```text
//!              ┌▶ guests ─▶ one worker, or two ─────────▶ guests ─┐ received, completed,
//!  Setup, Steps┤                                                  ├ counted, delayed:
//!              └▶ guests ─▶ worker without a direct way ▶ guests ─┘ equal after every step
//! ```
//!
//! Compared when both have done all work of that time; how soon is not compared. With several senders to
//! one receiver, neither is the order between senders or, if flows are queued, between flows: here they are
//! not.

mod cases;
pub(super) mod guests;

use super::{Worker, testing};
use crate::fdb::SegmentIndex;
use crate::frame::testing::Frame;
use crate::link::Link;
use crate::port::{Port, PortContract, PortInfo, PortSet};
use crate::stats::Region;
use crate::stats::layout::{TrafficSlot, VnicSlot};
use cases::{all_send, one_sender, setup};
use guests::{
    Asks, Body, CSUM, EVENTS, Guest, IN_ORDER, INDIRECT, Layout, MERGEABLE, OFFLOADS, PACKED, RX_RING,
    Received, Room, Sent, Source, To, V1, mac,
};
use proptest::prelude::*;
use tidegate_contract::{Host, Vnic};

const GUESTS: usize = 3;
/// Loops after which no work remains at that time: 16 were seen, with frames that cross, queue, and go
/// directly again.
const LOOPS: usize = 24;
const START: u64 = 1_000_000_000_000;
/// Time (ns) that workers may be away while frames have a deadline, of 40 us here: of frames that get tokens and are late in one
/// turn, those behind one without buffers are dropped with it or, a loop later, delivered.
const PACE: u64 = 20_000;
const FEATURES: [u64; 8] = [
    V1 | MERGEABLE | CSUM | INDIRECT,
    V1 | MERGEABLE | CSUM | INDIRECT | EVENTS | OFFLOADS,
    V1 | MERGEABLE | INDIRECT | PACKED,
    V1 | CSUM | OFFLOADS | INDIRECT | EVENTS | PACKED,
    V1 | MERGEABLE | EVENTS | PACKED | IN_ORDER,
    V1 | MERGEABLE | INDIRECT | IN_ORDER,
    V1,
    0,
];

/// A case: each guest's contract, features, and number of receive queues.
#[derive(Clone, Debug)]
struct Setup {
    contracts: [&'static str; GUESTS],
    features: [u64; GUESTS],
    queues: [usize; GUESTS],
}

#[derive(Clone, Debug)]
enum Step {
    /// Frames that arrive some time (ns) after the last poll.
    Send {
        from: usize,
        after: u64,
        frames: Vec<Sent>,
    },
    /// Receive buffers, the same number for each queue.
    Give {
        to: usize,
        count: u16,
        layout: Room,
    },
    Wait(u64),
}

/// A switch of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// One worker that queues every frame.
    Queued,
    /// One worker.
    One,
    /// Two workers, with every other guest each.
    Two,
}

/// Guests and the workers between them.
struct Switch {
    workers: Vec<Worker>,
    guests: Vec<Guest>,
    stats: Vec<&'static VnicSlot>,
}

thread_local! {
    /// Regions are never unmapped, so cases share them: one for each of the two switches.
    static REGIONS: [Region; 2] = std::array::from_fn(|_| Region::create().unwrap());
}

impl Switch {
    fn new(setup: &Setup, kind: Kind) -> Self {
        testing::set_time(START);
        let region = usize::from(kind != Kind::Queued);
        let count = if kind == Kind::Two { 2 } else { 1 };
        let mut workers: Vec<Worker> =
            testing::workers(count).into_iter().map(|(worker, _)| worker).collect();
        let mut switch = Vec::new();
        let mut all_stats = Vec::new();
        for index in 0..GUESTS {
            let guest = Guest::new(setup.features[index], setup.queues[index]);
            let text = format!(
                "[vnic.v{index}]\nattach = {{ vhost-user = \"/tmp/v{index}\" }}\n\
                 mac = \"{}\"\nsegment = 7\nqueueing = \"fifo\"\n{}\n",
                mac(index),
                setup.contracts[index]
            );
            let vnic: Vnic = tidegate_contract::parse(&text, "test").unwrap().vnics.remove(0).value;
            let stats = REGIONS.with(|regions| regions[region].claim(index, &format!("v{index}")));
            let compiled = PortContract::new(&vnic, &Host::default());
            let (port, segment, owner) = (index as u16, SegmentIndex(0), index % count);
            let link = Link::vhost_user();
            workers[owner].add_port(Box::new(Port::new(port, segment, compiled, stats, link)));
            let mut to = PortSet::EMPTY;
            if !vnic.to.is_empty() {
                to.insert(1);
            }
            let info = PortInfo::new(&vnic, owner as u16, segment, to);
            workers.iter_mut().for_each(|worker| worker.set_info(port, Some(info.clone())));
            let worker = &mut workers[owner];
            worker.fdb.pin(segment, vnic.mac, port).unwrap();
            worker.set_features(port, guest.features);
            worker.set_memory(port, &guest.map()).unwrap();
            let rings = guest.rx.iter().enumerate().map(|(pair, ring)| (2 * pair as u16, ring));
            for (queue, ring) in rings.chain([(1, &guest.tx)]) {
                worker.start_queue(port, queue, guest.setup(ring)).unwrap();
                worker.enable_queue(port, queue, true);
            }
            switch.push(guest);
            all_stats.push(stats);
        }
        for worker in &mut workers {
            worker.set_members(vec![(0..GUESTS as u16).collect()]);
            if kind == Kind::Queued {
                // Without memory for batches there are none.
                worker.batch = None;
            }
        }
        Self { workers, guests: switch, stats: all_stats }
    }

    fn step(&mut self, step: &Step, now: u64) {
        match step {
            Step::Send { from, frames, .. } => {
                let guest = &mut self.guests[*from];
                for sent in frames {
                    let bytes = sent.bytes(*from, guest.header_len());
                    guest.send(sent, &bytes);
                }
                let _ = guest.tx.publish();
            }
            Step::Give { to, count, layout } => self.guests[*to].give(*count, *layout),
            Step::Wait(_) => {}
        }
        testing::set_time(now);
        for _ in 0..LOOPS {
            for worker in &mut self.workers {
                worker.work();
            }
            self.guests.iter_mut().for_each(Guest::reap);
        }
    }

    /// Returns all counters.
    fn account(&self) -> Vec<(String, u64)> {
        let mut account = Vec::new();
        for (index, stats) in self.stats.iter().enumerate() {
            let mut note = |what: &str, value| account.push((format!("v{index} {what}"), value));
            let mut traffic = |way: &str, slot: &TrafficSlot| {
                note(&format!("{way} frames"), slot.frames.get());
                note(&format!("{way} wire frames"), slot.wire_frames.get());
                note(&format!("{way} wire bytes"), slot.wire_bytes.get());
                for (reason, count) in tidegate_evidence::DropReason::ALL.iter().zip(&slot.dropped) {
                    note(&format!("{way} {}", reason.label()), count.get());
                }
            };
            traffic("tx", &stats.tx);
            traffic("rx", &stats.rx);
            note("throttled", stats.throttled.get());
            note("throttled now", stats.throttled_now.get());
            note("real-time delivered", stats.realtime_delivered.get());
            note("real-time worst", stats.realtime_worst.get());
            note("real-time worst at least", stats.realtime_worst_least.get());
            note("possibly missed", stats.misses_possible.get());
            note("missed if asleep", stats.misses_asleep.get());
            for (cause, count) in tidegate_evidence::MissCause::ALL.iter().zip(&stats.misses) {
                note(&format!("missed by {}", cause.label()), count.get());
            }
            for (upto, count) in stats.delay.read().occupied() {
                note(&format!("delay up to {upto}"), count);
            }
            for (upto, count) in stats.delay_least.read().occupied() {
                note(&format!("delay at least up to {upto}"), count);
            }
            for (upto, count) in stats.tokens_tx.read().occupied() {
                note(&format!("sent, waited for tokens up to {upto}"), count);
            }
            for (upto, count) in stats.tokens_rx.read().occupied() {
                note(&format!("received, waited for tokens up to {upto}"), count);
            }
            note("completed", self.guests[index].completed as u64);
        }
        account
    }

    /// Returns each guest's received frames, in the order of each of its queues; of several senders, in
    /// each one's order.
    fn received(&self, alone: bool) -> Vec<Vec<Received>> {
        let mut received: Vec<Vec<Received>> =
            self.guests.iter().map(|guest| guest.received.clone()).collect();
        // Which of two queues has a frame first depends on the number of loops.
        received.iter_mut().for_each(|list| list.sort_by_key(|r| r.queue));
        if !alone {
            for (guest, list) in self.guests.iter().zip(&mut received) {
                let header = guest.header_len();
                // Which of equal buffers is used depends on the order of senders.
                list.iter_mut().for_each(|r| r.head = 0);
                list.sort_by_key(|r| (r.queue, r.bytes.get(header + 6..header + 12).map(<[u8]>::to_vec)));
            }
        }
        received
    }
}

/// Runs a case through two switches, one of this kind; `alone`: only one guest sends.
fn compare(kind: Kind, setup: &Setup, steps: &[Step], alone: bool) -> Result<(), TestCaseError> {
    let mut switches = [kind, Kind::Queued].map(|kind| Switch::new(setup, kind));
    let pace =
        if setup.contracts.iter().any(|contract| contract.contains("deadline")) { PACE } else { u64::MAX };
    let result = run(&mut switches, steps, alone, pace);
    if result.is_err() {
        // Frames still in flight do not matter here.
        std::mem::forget(switches);
    }
    result
}

/// Workers look again after at most `pace` ns.
fn run(switches: &mut [Switch; 2], steps: &[Step], alone: bool, pace: u64) -> Result<(), TestCaseError> {
    let mut now = START + 1_000_000;
    // At the end every frame is received or dropped, and every buffer back. A small burst passes one or two
    // frames at a time.
    let end = [0, 1, 2].map(|to| Step::Give { to, count: RX_RING, layout: Room::Whole(2048) });
    let end: Vec<Step> = end.into_iter().chain([Step::Wait(40_000_000)]).collect();
    let rounds = std::iter::repeat_n(&end, 400).flatten();
    for (number, step) in steps.iter().chain(rounds).enumerate() {
        let all_back = || switches.iter().flat_map(|switch| &switch.guests).all(|it| it.sent == it.completed);
        if number >= steps.len() + 16 * end.len() && all_back() {
            break;
        }
        if let Step::Wait(ns) | Step::Send { after: ns, .. } = step {
            let at = now + ns;
            // At the end buffers are enough.
            while number < steps.len() && at - now > pace {
                now += pace;
                switches.iter_mut().for_each(|switch| switch.step(&Step::Wait(pace), now));
            }
            now = at;
        }
        for switch in switches.iter_mut() {
            switch.step(step, now);
        }
        let [fast, general] = &*switches;
        for (a, b) in fast.account().into_iter().zip(general.account()) {
            prop_assert_eq!(a, b, "step {}: fast, general", number);
        }
        let received = [fast, general].map(|switch| switch.received(alone));
        prop_assert_eq!(&received[0], &received[1], "step {}: fast, general", number);
    }
    for guest in switches.iter().flat_map(|switch| &switch.guests) {
        prop_assert_eq!(guest.sent, guest.completed);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// With any obstacles: limits, missing and small buffers, forbidden frames.
    #[test]
    fn one_sender_is_served_alike(setup in setup(true), steps in one_sender()) {
        compare(Kind::One, &setup, &steps, true)?;
    }

    /// No obstacle delays permitted frames.
    #[test]
    fn many_senders_are_served_alike(setup in setup(false), steps in all_send()) {
        compare(Kind::One, &setup, &steps, false)?;
    }

    /// The same for two workers. Frames with a deadline have a ring of their own between them.
    #[test]
    fn many_senders_are_served_alike_by_two(mut setup in setup(false), steps in all_send()) {
        for contract in setup.contracts.iter_mut().filter(|contract| contract.contains("deadline")) {
            *contract = "";
        }
        compare(Kind::Two, &setup, &steps, false)?;
    }
}

/// The comparison is one of two paths.
#[test]
fn only_one_of_the_two_sends_directly() {
    let setup = Setup { contracts: [""; GUESTS], features: [FEATURES[0]; GUESTS], queues: [1; GUESTS] };
    let sent = Sent {
        body: Body::Good(Frame::udp4(22)),
        to: To::Guest(1),
        from: Source::Itself,
        asks: Asks::Nothing,
        layout: Layout::Whole,
    };
    for kind in [Kind::One, Kind::Queued] {
        let mut switch = Switch::new(&setup, kind);
        switch.step(&Step::Give { to: 1, count: 40, layout: Room::Whole(2048) }, START);
        switch.step(&Step::Send { from: 0, after: 0, frames: vec![sent.clone(); 40] }, START);
        assert_eq!(switch.guests[1].received.len(), 40);
        let queued = switch.workers[0].ports[1].as_ref().unwrap().egress.scheduler.knows(0);
        assert_eq!(queued, kind == Kind::Queued);
    }
}

/// The address moves to the sender before the lookup.
#[test]
fn a_frame_to_its_own_source_goes_nowhere() {
    let bridge = "allowed = { macs = \"any\" }";
    let setup =
        Setup { contracts: [bridge, bridge, ""], features: [FEATURES[0]; GUESTS], queues: [1; GUESTS] };
    let sent = |to| Sent {
        body: Body::Good(Frame::udp4(22)),
        to,
        from: Source::Other(0),
        asks: Asks::Nothing,
        layout: Layout::Whole,
    };
    let give = |to| Step::Give { to, count: 1, layout: Room::Whole(2048) };
    let steps = [
        give(0),
        give(1),
        Step::Send { from: 1, after: 0, frames: vec![sent(To::Guest(0))] },
        Step::Send { from: 0, after: 0, frames: vec![sent(To::Other(0))] },
    ];
    compare(Kind::One, &setup, &steps, true).unwrap();
}

/// A plain FIFO has no tier for real-time frames.
#[test]
fn a_deadline_does_not_pass_the_rate_of_a_fifo() {
    let realtime = "tx = { max = \"1gbit\", burst = \"4kB\" }\ndeadline = \"40us\"\nto = [\"v1\"]";
    let fifo = "rx = { max = \"100mbit\", burst = \"3kB\", discipline = \"fifo\" }";
    let setup =
        Setup { contracts: [realtime, fifo, ""], features: [FEATURES[0]; GUESTS], queues: [1; GUESTS] };
    let sent = Sent {
        body: Body::Good(Frame::udp4(1_000)),
        to: To::Guest(1),
        from: Source::Itself,
        asks: Asks::Nothing,
        layout: Layout::Whole,
    };
    let steps = [
        Step::Give { to: 1, count: 15, layout: Room::Whole(2048) },
        Step::Send { from: 0, after: 0, frames: vec![sent; 4] },
        Step::Wait(1_000_000),
    ];
    compare(Kind::One, &setup, &steps, true).unwrap();
}

/// Returns a plain frame of the first guest to the second one.
fn plain_frame() -> Sent {
    let (body, to, from) = (Body::Good(Frame::udp4(22)), To::Guest(1), Source::Itself);
    Sent { body, to, from, asks: Asks::Nothing, layout: Layout::Whole }
}

/// A receiver of another worker is lent, and written without that worker.
#[test]
fn between_workers_only_the_first_frames_are_queued() {
    let setup = Setup { contracts: [""; GUESTS], features: [FEATURES[0]; GUESTS], queues: [1; GUESTS] };
    let mut switch = Switch::new(&setup, Kind::Two);
    switch.step(&Step::Give { to: 1, count: 120, layout: Room::Whole(2048) }, START);
    let send = Step::Send { from: 0, after: 0, frames: vec![plain_frame(); 40] };
    switch.step(&send, START);
    assert_eq!(switch.guests[1].received.len(), 40);
    let other = switch.workers.pop();
    switch.step(&send, START);
    assert_eq!(switch.guests[1].received.len(), 80);
    drop(other);
}

/// Frames that a lent receiver does not take as they are cross in one turn: none waits for the arrival of
/// the one before.
#[test]
fn frames_that_another_workers_receiver_does_not_take_cross_together() {
    let features = [FEATURES[0], FEATURES[2], FEATURES[0]];
    let setup = Setup { contracts: [""; GUESTS], features, queues: [1; GUESTS] };
    let unfinished = Sent { asks: Asks::Checksum, ..plain_frame() };
    let frames = [vec![plain_frame(); 33], vec![unfinished; 15], vec![plain_frame()]].concat();
    let steps = [
        Step::Give { to: 1, count: RX_RING, layout: Room::Whole(2048) },
        Step::Send { from: 0, after: 0, frames },
        Step::Wait(1_000_000),
    ];
    compare(Kind::Two, &setup, &steps, false).unwrap();
}

/// Frames to a port of the sender's worker with too few buffers, and to one of another worker, in one ring:
/// each arrives once, in order, whether it went directly, was queued by the batch, or crossed.
#[test]
fn frames_to_ports_of_both_workers_keep_their_order() {
    let setup = Setup { contracts: [""; GUESTS], features: [FEATURES[0]; GUESTS], queues: [1; GUESTS] };
    let mut switch = Switch::new(&setup, Kind::Two);
    let sent = |i: usize| {
        let asks = if i.is_multiple_of(7) { Asks::Checksum } else { Asks::Nothing };
        let to = To::Guest(1 + i / 5 % 2);
        Sent { body: Body::Good(Frame::udp4(22 + i)), to, asks, ..plain_frame() }
    };
    switch.step(&Step::Give { to: 1, count: RX_RING, layout: Room::Whole(2048) }, START);
    for round in 0..6 {
        let now = START + round as u64 * 20_000;
        switch.step(&Step::Give { to: 2, count: 9, layout: Room::Whole(2048) }, now);
        let frames = (round * 40..(round + 1) * 40).map(sent).collect();
        switch.step(&Step::Send { from: 0, after: 0, frames }, now);
    }
    switch.step(&Step::Give { to: 2, count: RX_RING - 54, layout: Room::Whole(2048) }, START + 1_000_000);
    switch.step(&Step::Wait(1_000_000), START + 2_000_000);
    for guest in &switch.guests[1..] {
        assert_eq!(guest.received.len(), 120);
        assert!(guest.received.is_sorted_by_key(|received| received.len));
    }
}

/// A sender whose ring is never empty stops for long enough.
#[test]
fn a_sender_that_never_stops_goes_directly_soon() {
    let setup = Setup { contracts: [""; GUESTS], features: [FEATURES[0]; GUESTS], queues: [1; GUESTS] };
    let mut switch = Switch::new(&setup, Kind::Two);
    let (sent, mut now) = (plain_frame(), START);
    let (mut directly, mut all) = (0, 0);
    for round in 0..300 {
        now += 3_000;
        testing::set_time(now);
        let before = switch.guests[1].received.len();
        for (worker, directly) in switch.workers.iter_mut().zip([Some(&mut directly), None]) {
            let [sender, receiver, _] = &mut switch.guests[..] else { unreachable!() };
            let bytes = sent.bytes(0, sender.header_len());
            (sender.sent - sender.completed..900).for_each(|_| sender.send(&sent, &bytes));
            let _ = sender.tx.publish();
            let seen = receiver.received.len();
            worker.work();
            [&mut *sender, &mut *receiver].into_iter().for_each(Guest::reap);
            if let Some(directly) = directly.filter(|_| round >= 100) {
                *directly += receiver.received.len() - seen;
            }
        }
        let came = switch.guests[1].received.len() - before;
        switch.guests[1].give(if round == 0 { 120 } else { came as u16 }, Room::Whole(128));
        all += if round >= 100 { came } else { 0 };
    }
    assert!(all > 5_000 && directly == all, "{directly} of {all}");
    std::mem::forget(switch);
}
