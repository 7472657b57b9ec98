//! The cases that are compared: contracts, frames, buffers, and times.

use super::guests::{Asks, Body, Layout, RX_RING, Room, Sent, Source, To};
use super::{FEATURES, GUESTS, Setup, Step};
use crate::frame::testing::{Frame, frame_up_to, hostile};
use crate::frame::vnet_hdr::{DATA_VALID, NEEDS_CSUM, VnetHdr};
use proptest::prelude::*;

/// Contracts without a limit at which several senders could meet.
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

fn body() -> impl Strategy<Value = Body> {
    let vlan = prop_oneof![12 => Just(None), 1 => Just(Some(0)), 1 => Just(Some(10)), 1 => Just(Some(20))];
    let len = prop_oneof![6 => Just(80usize), 2 => Just(700), 2 => Just(1480)];
    let usual = (len.prop_flat_map(frame_up_to), vlan, any::<bool>()).prop_map(|(mut frame, vlan, short)| {
        frame.vlan = vlan;
        if short {
            // Without options and extensions, which end the direct way.
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
    // A super-frame fills several buffers, of which only the first names its sender.
    let super_frames = u32::from(!several);
    let asks = prop_oneof![
        12 => Just(Asks::Nothing),
        4 => Just(Asks::Checksum),
        super_frames => (60u16..600).prop_map(Asks::Segments),
        1 => any::<[u8; VnetHdr::LEN]>().prop_map(|mut bytes| {
            // Mostly bits without meaning, or a checked checksum.
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

/// Frames of which a whole batch can go directly, some of them too long or nearly so.
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

pub(super) fn setup(limited: bool) -> impl Strategy<Value = Setup> {
    let contracts: Vec<&str> =
        if limited { OPEN.iter().chain(&LIMITED).copied().collect() } else { OPEN.to_vec() };
    let contract = || prop::sample::select(contracts.clone());
    let feature = || prop::sample::select(FEATURES.to_vec());
    let receiver = contract().prop_map(|contract| if contract.contains("deadline") { "" } else { contract });
    let of_all = (contract(), receiver.clone(), receiver);
    let queues = || prop_oneof![4 => Just(1usize), 1 => Just(2)];
    (of_all, [feature(), feature(), feature()], [queues(), queues(), queues()]).prop_map(
        |((a, b, c), features, queues)| {
            // A deadline needs a limit at its receiver.
            let b = if a.contains("deadline") && !b.contains("rx") { "rx = { max = \"10gbit\" }" } else { b };
            Setup { contracts: [a, b, c], features, queues }
        },
    )
}

pub(super) fn one_sender() -> impl Strategy<Value = Vec<Step>> {
    let room = prop_oneof![
        6 => Just(Room::Whole(2048)),
        1 => Just(Room::Whole(300)),
        1 => Just(Room::Whole(90)),
        // As long as most frames with their header, or nearly.
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

pub(super) fn all_send() -> impl Strategy<Value = Vec<Step>> {
    let send = (0..GUESTS, 0u64..60_000, frames(true));
    prop::collection::vec(send, 1..8).prop_map(|sends| {
        let give = |to| Step::Give { to, count: RX_RING, layout: Room::Whole(2048) };
        let one = |(from, after, frames)| {
            [give(0), give(1), give(2), Step::Send { from, after, frames }, Step::Wait(1_000_000)]
        };
        sends.into_iter().flat_map(one).collect()
    })
}
