//! The direct way does what the queued way does: the same frames through two switches, of which
//! one has no direct way, at times that the test sets.
//!
//! ```text
//!              ┌▶ guests ─▶ worker ─────────────────────▶ guests ─┐ received, completed,
//!  Setup, Steps┤                                                  ├ counted, delayed:
//!              └▶ guests ─▶ worker without a direct way ▶ guests ─┘ equal after every step
//! ```
//!
//! Compared where both have done all that they can at that time; how soon one gets there is its own
//! affair. Where several senders meet at one receiver, whose frame comes first is, too.

mod guests;

use super::events::Events;
use super::{Worker, mailbox, testing};
use crate::fdb::{Fdb, SegmentIndex};
use crate::frame::testing::{Frame, frame_up_to, hostile};
use crate::frame::vnet_hdr::{DATA_VALID, NEEDS_CSUM, VnetHdr};
use crate::link::Link;
use crate::port::{Port, PortContract, PortInfo, PortSet};
use crate::stats::Region;
use crate::stats::layout::{TrafficSlot, VnicSlot};
use guests::{
    Asks, Body, CSUM, EVENTS, Guest, IN_ORDER, INDIRECT, Layout, MERGEABLE, OFFLOADS, PACKED, RX_RING,
    Received, Room, Sent, Source, To, V1, mac,
};
use proptest::prelude::*;
use std::sync::Arc;
use tidegate_contract::{Host, Vnic};

const GUESTS: usize = 3;
/// Loops after which nothing is left to do at that time.
const LOOPS: usize = 12;
const START: u64 = 1_000_000_000_000;
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

/// Contracts without a limit that several senders could meet at.
const OPEN: [&str; 6] = [
    "",
    "allowed = { prefixes = [\"10.1.0.0/16\", \"fd01:2::/32\"], vlans = [10] }",
    "allowed = { macs = \"any\", vlans = [10, 20], control = true }",
    "allowed = { prefixes = [\"10.1.2.3/32\", \"fe80::1/128\"], dhcp-server = true }",
    "rx = { max = \"100gbit\", burst = \"1MB\" }",
    "tx = { max = \"1gbit\", burst = \"4kB\" }\ndeadline = \"40us\"\nto = [\"v1\"]",
];
const LIMITED: [&str; 7] = [
    "rx = { max = \"10gbit\" }",
    "rx = { max = \"100mbit\", burst = \"3kB\" }",
    "rx = { max = \"100mbit\", burst = \"3kB\", discipline = \"fifo\" }",
    "tx = { max = \"100mbit\", burst = \"2kB\" }",
    "tx = { max = \"10mbit\", burst = \"6kB\" }",
    "tx = { max = \"1gbit\", burst = \"10kB\" }\nrx = { max = \"1gbit\", burst = \"100kB\" }",
    "rx = { max = \"20mbit\", queue = \"20kB\" }",
];

/// How a case is set up: of each guest its contract, features, and number of receive queues.
#[derive(Clone, Debug)]
struct Setup {
    contracts: [&'static str; GUESTS],
    features: [u64; GUESTS],
    queues: [usize; GUESTS],
}

#[derive(Clone, Debug)]
enum Step {
    /// Frames that arrive some time, ns, after the last poll.
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

/// Guests and the worker between them.
struct Switch {
    worker: Worker,
    guests: Vec<Guest>,
    stats: Vec<&'static VnicSlot>,
}

thread_local! {
    /// Regions are never unmapped, so cases share them: one for each of the two switches.
    static REGIONS: [Region; 2] = std::array::from_fn(|_| Region::create().unwrap());
}

impl Switch {
    fn new(setup: &Setup, fast: bool) -> Self {
        testing::set_time(START);
        let region = usize::from(fast);
        let (_, inbox) = mailbox().unwrap();
        let (faults, _) = std::sync::mpsc::channel();
        let (events, _) = Events::new(Arc::default());
        let fdb = Arc::new(Fdb::new());
        let worker_stats = REGIONS.with(|regions| &regions[region].layout().workers[0]);
        let mut worker =
            Worker::new(0, inbox, fdb.clone(), Arc::default(), vec![None], worker_stats, faults, events)
                .unwrap();
        let mut switch = Vec::new();
        let mut all_stats = Vec::new();
        for index in 0..GUESTS {
            let guest = Guest::new(setup.features[index], setup.queues[index]);
            let text = format!(
                "[vnic.v{index}]\nattach = {{ vhost-user = \"/tmp/v{index}\" }}\n\
                 mac = \"{}\"\nsegment = 7\n{}\n",
                mac(index),
                setup.contracts[index]
            );
            let vnic: Vnic = tidegate_contract::parse(&text, "test").unwrap().vnics.remove(0).value;
            let stats = REGIONS.with(|regions| regions[region].claim(index, &format!("v{index}")));
            let compiled = PortContract::new(&vnic, &Host::default());
            let (port, segment) = (index as u16, SegmentIndex(0));
            let link = Link::vhost_user();
            worker.add_port(Box::new(Port::new(port, segment, compiled, stats, link)));
            let mut to = PortSet::EMPTY;
            if !vnic.to.is_empty() {
                to.insert(1);
            }
            worker.set_info(port, Some(PortInfo::new(&vnic, 0, segment, to)));
            fdb.pin(segment, vnic.mac, port).unwrap();
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
        worker.set_members(vec![(0..GUESTS as u16).collect()]);
        if !fast {
            // Without memory for batches there are none.
            worker.batch = None;
        }
        Self { worker, guests: switch, stats: all_stats }
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
            self.worker.work();
            self.guests.iter_mut().for_each(Guest::reap);
        }
    }

    /// Everything that is counted.
    fn account(&self) -> Vec<(String, u64)> {
        let mut account = Vec::new();
        for (index, stats) in self.stats.iter().enumerate() {
            let mut note = |what: &str, value| account.push((format!("v{index} {what}"), value));
            let mut traffic = |way: &str, slot: &TrafficSlot| {
                note(&format!("{way} frames"), slot.frames.get());
                note(&format!("{way} wire frames"), slot.wire_frames.get());
                note(&format!("{way} wire bytes"), slot.wire_bytes.get());
                for (reason, count) in crate::stats::DropReason::ALL.iter().zip(&slot.dropped) {
                    note(&format!("{way} {}", reason.label()), count.get());
                }
            };
            traffic("tx", &stats.tx);
            traffic("rx", &stats.rx);
            note("throttled", stats.throttled.get());
            note("throttled now", stats.throttled_now.get());
            note("real-time delivered", stats.realtime_delivered.get());
            note("real-time worst", stats.realtime_worst.get());
            for (cause, count) in crate::stats::MissCause::ALL.iter().zip(&stats.misses) {
                note(&format!("missed by {}", cause.label()), count.get());
            }
            for (upto, count) in stats.delay.read().occupied() {
                note(&format!("delay up to {upto}"), count);
            }
            note("completed", self.guests[index].completed as u64);
        }
        account
    }

    /// What each guest received, in order; where several send, in order of each sender.
    fn received(&self, alone: bool) -> Vec<Vec<Received>> {
        let mut received: Vec<Vec<Received>> =
            self.guests.iter().map(|guest| guest.received.clone()).collect();
        if !alone {
            for (guest, list) in self.guests.iter().zip(&mut received) {
                let header = guest.header_len();
                // Which buffer of the same kind it was depends on who came first.
                list.iter_mut().for_each(|r| r.head = 0);
                list.sort_by_key(|r| (r.queue, r.bytes.get(header + 6..header + 12).map(<[u8]>::to_vec)));
            }
        }
        received
    }
}

/// Runs a case through both switches; `alone`: only one guest sends.
fn compare(setup: &Setup, steps: &[Step], alone: bool) -> Result<(), TestCaseError> {
    let mut switches = [true, false].map(|fast| Switch::new(setup, fast));
    let result = run(&mut switches, steps, alone);
    if result.is_err() {
        // What is still in flight is not what this is about.
        std::mem::forget(switches);
    }
    result
}

fn run(switches: &mut [Switch; 2], steps: &[Step], alone: bool) -> Result<(), TestCaseError> {
    let mut now = START + 1_000_000;
    // In the end everything is received or dropped, and every buffer back. A small burst lets a frame or
    // two through at a time.
    let end = [0, 1, 2].map(|to| Step::Give { to, count: RX_RING, layout: Room::Whole(2048) });
    let end: Vec<Step> = end.into_iter().chain([Step::Wait(40_000_000)]).collect();
    let rounds = std::iter::repeat_n(&end, 400).flatten();
    for (number, step) in steps.iter().chain(rounds).enumerate() {
        let all_back = || switches.iter().flat_map(|switch| &switch.guests).all(|it| it.sent == it.completed);
        if number >= steps.len() + 16 * end.len() && all_back() {
            break;
        }
        if let Step::Wait(ns) | Step::Send { after: ns, .. } = step {
            now += ns;
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

fn body() -> impl Strategy<Value = Body> {
    let vlan = prop_oneof![12 => Just(None), 1 => Just(Some(0)), 1 => Just(Some(10)), 1 => Just(Some(20))];
    let len = prop_oneof![6 => Just(80usize), 2 => Just(700), 2 => Just(1480)];
    let usual = (len.prop_flat_map(frame_up_to), vlan, any::<bool>()).prop_map(|(mut frame, vlan, short)| {
        frame.vlan = vlan;
        if short {
            // Without what makes the direct way give up.
            (frame.ip_options, frame.extensions) = (0, vec![]);
        }
        Body::Good(frame)
    });
    prop_oneof![20 => usual, 2 => hostile().prop_map(Body::Hostile), 1 => Just(Body::Arp)]
}

fn sent(several: bool) -> impl Strategy<Value = Sent> {
    let to = prop_oneof![
        12 => Just(To::Guest(1)),
        8 => Just(To::Guest(2)),
        1 => Just(To::Guest(0)),
        1 => Just(To::Everybody),
        1 => Just(To::Multicast),
        1 => Just(To::Link),
        1 => Just(To::Nobody),
        1 => (0u8..3).prop_map(To::Other)

    ];
    let from = prop_oneof![
        20 => Just(Source::Itself),
        1 => (0..GUESTS).prop_map(Source::Guest),
        1 => (0u8..3).prop_map(Source::Other)
    ];
    // A super-frame fills several buffers, of which only the first says who sent it.
    let super_frames = u32::from(!several);
    let asks = prop_oneof![
        12 => Just(Asks::Nothing),
        4 => Just(Asks::Checksum),
        super_frames => (60u16..600).prop_map(Asks::Segments),
        1 => any::<[u8; VnetHdr::LEN]>().prop_map(|mut bytes| {
            // Mostly what means nothing, or that the checksum is right.
            bytes[0] &= NEEDS_CSUM | DATA_VALID;
            bytes[1] = if bytes[1] < 250 { 0 } else { bytes[1] & 3 };
            Asks::Anything(bytes)
        })
    ];
    let layout = prop_oneof![
        20 => Just(Layout::Whole),
        1 => Just(Layout::HeaderApart),
        1 => (1usize..200).prop_map(Layout::CutAt),
        1 => Just(Layout::Table),
        1 => (1usize..60).prop_map(Layout::Only)
    ];
    (body(), to, from, asks, layout).prop_map(|(body, to, from, asks, layout)| Sent {
        body,
        to,
        from,
        asks,
        layout,
    })
}

/// Frames of which a whole batch can go the fast way, some of them too long or not quite.
fn plain() -> impl Strategy<Value = Sent> {
    let frame = prop_oneof![
        9 => Just(Frame::udp4(22)),
        2 => Just(Frame::udp6(22)),
        1 => (1470usize..1480).prop_map(Frame::udp4)
    ];
    let to = prop_oneof![4 => Just(To::Guest(1)), 4 => Just(To::Guest(2)), 1 => (0u8..3).prop_map(To::Other)];
    let from = prop_oneof![8 => Just(Source::Itself), 1 => (0u8..3).prop_map(Source::Other)];
    let asks = prop_oneof![8 => Just(Asks::Nothing), 1 => Just(Asks::Checksum)];
    (frame, to, from, asks).prop_map(|(frame, to, from, asks)| {
        let (body, layout) = (Body::Good(frame), Layout::Whole);
        Sent { body, to, from, asks, layout }
    })
}

fn frames(several: bool) -> impl Strategy<Value = Vec<Sent>> {
    let simple = plain().prop_map(|sent| Sent { to: To::Guest(1), from: Source::Itself, ..sent });
    prop_oneof![
        prop::collection::vec(sent(several), 1..40),
        prop::collection::vec(plain(), 1..50),
        prop::collection::vec(simple, 1..50)
    ]
}

fn setup(limited: bool) -> impl Strategy<Value = Setup> {
    let contracts: Vec<&str> =
        if limited { OPEN.iter().chain(&LIMITED).copied().collect() } else { OPEN.to_vec() };
    let contract = || prop::sample::select(contracts.clone());
    let feature = || prop::sample::select(FEATURES.to_vec());
    let receiver = contract().prop_map(|contract| if contract.contains("deadline") { "" } else { contract });
    let of_all = (contract(), receiver.clone(), receiver);
    let queues = || prop_oneof![4 => Just(1usize), 1 => Just(2)];
    (of_all, [feature(), feature(), feature()], [queues(), queues(), queues()]).prop_map(
        |((a, b, c), features, queues)| {
            // A deadline needs a limit where it leads.
            let b = if a.contains("deadline") && !b.contains("rx") { "rx = { max = \"10gbit\" }" } else { b };
            Setup { contracts: [a, b, c], features, queues }
        },
    )
}

fn one_sender() -> impl Strategy<Value = Vec<Step>> {
    let room = prop_oneof![
        6 => Just(Room::Whole(2048)),
        1 => Just(Room::Whole(300)),
        1 => Just(Room::Whole(90)),
        // As long as most frames with their header, and not quite.
        1 => (73u32..77).prop_map(Room::Whole),
        1 => Just(Room::HeaderApart(1600))
    ];
    let step = prop_oneof![
        4 => (0u64..60_000, frames(false)).prop_map(|(after, frames)| Step::Send { from: 0, after, frames }),
        3 => (1..GUESTS, 0u16..40, room).prop_map(|(to, count, layout)| Step::Give { to, count, layout }),
        2 => (1u64..400_000).prop_map(Step::Wait),
        1 => (1u64..20_000_000).prop_map(Step::Wait)
    ];
    prop::collection::vec(step, 1..16)
}

fn all_send() -> impl Strategy<Value = Vec<Step>> {
    let send = (0..GUESTS, 0u64..60_000, frames(true));
    prop::collection::vec(send, 1..8).prop_map(|sends| {
        let give = |to| Step::Give { to, count: RX_RING, layout: Room::Whole(2048) };
        let one = |(from, after, frames)| {
            [give(0), give(1), give(2), Step::Send { from, after, frames }, Step::Wait(1_000_000)]
        };
        sends.into_iter().flat_map(one).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Whatever is in the way: limits, missing and small buffers, what is not allowed.
    #[test]
    fn one_sender_is_served_alike(setup in setup(true), steps in one_sender()) {
        compare(&setup, &steps, true)?;
    }

    /// Nothing is in the way of frames that may be sent.
    #[test]
    fn many_senders_are_served_alike(setup in setup(false), steps in all_send()) {
        compare(&setup, &steps, false)?;
    }
}

/// The comparison is one of two paths.
#[test]
fn only_one_of_the_two_has_a_fast_path() {
    let setup = Setup { contracts: [""; GUESTS], features: [FEATURES[0]; GUESTS], queues: [1; GUESTS] };
    let sent = Sent {
        body: Body::Good(Frame::udp4(22)),
        to: To::Guest(1),
        from: Source::Itself,
        asks: Asks::Nothing,
        layout: Layout::Whole,
    };
    for fast in [true, false] {
        let mut switch = Switch::new(&setup, fast);
        switch.step(&Step::Give { to: 1, count: 40, layout: Room::Whole(2048) }, START);
        switch.step(&Step::Send { from: 0, after: 0, frames: vec![sent.clone(); 40] }, START);
        assert_eq!(switch.guests[1].received.len(), 40);
        let queued = switch.worker.ports[1].as_ref().unwrap().egress.scheduler.knows(0);
        assert_eq!(queued, !fast);
    }
}

/// The address moves to the sender before it is looked up.
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
    compare(&setup, &steps, true).unwrap();
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
    compare(&setup, &steps, true).unwrap();
}
