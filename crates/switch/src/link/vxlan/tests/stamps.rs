//! Stamps, from one link to another over loopback, and such as a peer makes them up.

use super::*;
use crate::link::reading::Reads;
use crate::link::vxlan::pair_counts::PairCounts;
use crate::link::vxlan::pairs::*;
use crate::stats::layout::Counter;
use std::net::UdpSocket;
use tidegate_contract::{Bytes, Rate};
use tidegate_uplink::stamp::{Key, KeyNumber, Keys, LEN, Stamp};
use tidegate_uplink::vxlan::header;

const EVEN: Key = Key::new([0x10; 16]);
const ODD: Key = Key::new([0x11; 16]);
const TD: u32 = 500;

fn keys(even: Option<Key>, odd: Option<Key>) -> Keys {
    Keys { even, odd }
}

/// Returns the pair of the test frames' addresses, seen from their sender.
fn outgoing(counts: &Arc<PairCounts>) -> OutgoingPairs {
    let pair = PairKey::new(SEGMENT.0, testing::SRC, testing::DST);
    OutgoingPairs::new(vec![Outgoing::new(pair, TD, (KeyNumber::Even, EVEN), counts.clone())])
}

/// The same, seen from their receiver, to which they come from peer 5.
fn incoming(counts: &Arc<PairCounts>, foreign: &Arc<Counter>, keys: Keys) -> IncomingPairs {
    let pair = PairKey::new(SEGMENT.0, testing::DST, testing::SRC);
    let address = AddressKey::new(SEGMENT.0, testing::SRC);
    let envelope = Some(Envelope::new(Rate::from_bits(8_000).unwrap(), Bytes::new(20_000_000)));
    let registered = Registered { address, peer: PeerIndex::new(5).unwrap(), keys, envelope };
    let peer = PeerIndex::new(5).unwrap();
    let pairs = vec![Incoming::new(pair, peer, TimeShares::default(), counts.clone())];
    IncomingPairs::new(vec![registered], pairs, foreign.clone())
}

/// Lets a link send stamps to its peer, or take them from it.
pub(super) fn take_stamps(host: &mut Host) {
    let mut peer = host.rx.peers.get(*host.rx.peers.of_segment(SEGMENT.0).first().unwrap()).unwrap().clone();
    peer.takes_stamps = true;
    let peers = Arc::new(Peers::new(vec![peer], &[SEGMENT, OTHER]).unwrap());
    host.tx.set_peers(peers.clone());
    host.rx.set_peers(peers);
}

/// Returns two links between which frames are stamped, with the counters of both ends.
fn stamping(v6: bool) -> (Host, Host, [Arc<PairCounts>; 2]) {
    let (mut a, mut b) = pair(v6, 1);
    let counts: [Arc<PairCounts>; 2] = Default::default();
    take_stamps(&mut a);
    take_stamps(&mut b);
    a.rx.set_pairs(outgoing(&counts[0]));
    b.tx.set_pairs(incoming(&counts[1], &Arc::default(), keys(Some(EVEN), None)));
    (a, b, counts)
}

/// Ts of a host that was up for a day, and of one that has just started.
const DAY: u64 = 86_400_000_000_000;
const START: u64 = 5_000_000_000;

#[test]
fn a_host_that_started_anew_is_heard_and_its_frames_from_before_are_not() {
    let frame = |sequence, sent_ns| {
        let inner = Spec::udp4(22).build();
        let stamp = Stamp { key: KeyNumber::Even, deadline_us: TD, sent_ns, hold_ns: 0, sequence };
        [&inner[..], &stamp.trailer(&EVEN, &inner, inner.len() as u32)].concat()
    };
    let table = || incoming(&Arc::default(), &Arc::default(), keys(Some(EVEN), None));
    let open = |pairs: &mut IncomingPairs, frame: &[u8], there| {
        let opened = pairs.open(SEGMENT.0, PeerIndex::new(5).unwrap(), frame, 0, || there);
        opened.map(|(_, stamped)| stamped.is_some())
    };
    let mut pairs = table();
    assert_eq!(open(&mut pairs, &frame(7, DAY), Some((DAY, 100))), Ok(true));
    assert_eq!(
        open(&mut pairs, &frame(0, START), None),
        Err(DropReason::Replayed),
        "its clock is not known yet"
    );
    assert_eq!(open(&mut pairs, &frame(0, START), Some((START, 100))), Ok(true));
    assert_eq!(open(&mut pairs, &frame(8, DAY), Some((START, 100))), Err(DropReason::Replayed));
    assert_eq!(open(&mut pairs, &frame(1, START + 1), Some((START, 100))), Ok(true));

    // A frame from before, while the clock is not known: it holds up others only until then.
    let mut pairs = table();
    assert_eq!(open(&mut pairs, &frame(8, DAY), None), Ok(true));
    assert_eq!(open(&mut pairs, &frame(0, START), Some((START, 100))), Ok(true));
}

#[test]
fn a_remote_at_another_host_begins_anew() {
    let counts = Arc::default();
    let mut before = incoming(&counts, &Arc::default(), keys(Some(EVEN), None));
    let pair = PairKey::new(SEGMENT.0, testing::DST, testing::SRC);
    let inner = Spec::udp4(22).build();
    let stamp = Stamp { key: KeyNumber::Even, deadline_us: TD, sent_ns: DAY, hold_ns: 0, sequence: 7 };
    let frame = [&inner[..], &stamp.trailer(&EVEN, &inner, inner.len() as u32)].concat();
    let opened = before.open(SEGMENT.0, PeerIndex::new(5).unwrap(), &frame, 0, || None);
    assert!(opened.is_ok());
    for (peer, knows) in [(5, true), (6, false)] {
        let peer = PeerIndex::new(peer).unwrap();
        let pairs = vec![Incoming::new(pair, peer, TimeShares::default(), Arc::clone(&counts))];
        let mut after = IncomingPairs::new(vec![], pairs, Arc::default());
        after.continue_from(&before);
        assert_eq!(after.find(pair).unwrap().window.newest_sent().is_some(), knows);
    }
}

/// Starts a frame's deadline now.
fn start(sent: &mut Sent) {
    sent.frame.started = crate::clock::clock();
    sent.frame.deadline = sent.frame.started + 1_000_000_000;
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Of any size, as the segmenter cuts it: the receiver sees no difference, and each wire frame had a stamp.
    #[test]
    fn stamped_frames_arrive_as_they_were(
        v6: bool,
        specs in prop::collection::vec((testing::frame_up_to(5000), prop::option::of(60..4000u16)), 1..6),
    ) {
        let (mut a, mut b, counts) = stamping(v6);
        let mut expected = vec![];
        for (spec, size) in &specs {
            let mut sent = asking(spec, size.filter(|size| spec.payload.len() > usize::from(*size)));
            start(&mut sent);
            prop_assert_eq!(a.send(&sent), Posted::Done);
            expected.extend(on_the_wire(&sent));
        }
        prop_assert_eq!(b.frames(), expected.clone());
        let count = expected.len() as u64;
        prop_assert_eq!((counts[0].sent.get(), counts[1].arrived.get()), (count, count));
        prop_assert_eq!((counts[1].forged.get(), counts[1].lost.get()), (0, 0));
    }
}

#[test]
fn a_stamp_tells_what_the_sender_knows() {
    let (mut a, mut b, _) = stamping(false);
    let begin = crate::clock::raw_clock();
    for number in 0..3 {
        let mut sent = plain(&Spec::udp4(22).build());
        start(&mut sent);
        sent.frame.started -= 1_000_000;
        assert_eq!(a.send(&sent), Posted::Done);
        b.tx.readiness.note_readable(0, 0, 0);
        let Taken::New(pending, 1) = b.tx.take() else { panic!("it arrives") };
        let stamp = pending.frame.get().stamp.expect("has a stamp").stamp;
        assert_eq!((stamp.key, stamp.deadline_us, stamp.sequence), (KeyNumber::Even, TD, number));
        assert!(stamp.hold_ns >= 1_000_000, "{stamp:?}");
        assert!(stamp.sent_ns + 1_100_000 > begin && stamp.sent_ns < crate::clock::raw_clock());
        assert!(matches!(b.tx.take(), Taken::Nothing));
        b.tx.store.give_back(pending.frame);
    }
}

#[test]
fn numbers_grow_in_the_order_of_ts() {
    let (mut a, mut b, counts) = stamping(false);
    let now = crate::clock::clock();
    for before in [5000, 9000, 1000, 1000] {
        let mut sent = plain(&Spec::udp4(22).build());
        (sent.frame.started, sent.frame.deadline) = (now - before, now + 1_000_000_000);
        assert_eq!(a.send(&sent), Posted::Done);
    }
    assert_eq!(b.frames().len(), 4);
    assert_eq!((counts[1].arrived.get(), counts[1].reordered.get(), counts[1].restarted.get()), (4, 0, 0));
}

#[test]
fn a_new_table_goes_on_with_the_numbers_and_the_windows() {
    let (mut a, mut b, counts) = stamping(false);
    for _ in 0..3 {
        let mut sent = plain(&Spec::udp4(22).build());
        start(&mut sent);
        assert_eq!(a.send(&sent), Posted::Done);
        assert_eq!(b.frames().len(), 1);
        a.rx.set_pairs(outgoing(&counts[0]));
        b.tx.set_pairs(incoming(&counts[1], &Arc::default(), keys(Some(EVEN), None)));
    }
    assert_eq!((counts[1].arrived.get(), counts[1].restarted.get(), counts[1].lost.get()), (3, 0, 0));
}

/// What lies behind the IP packet could look like a stamp.
#[test]
fn bytes_behind_the_packet_do_not_leave() {
    let (mut a, mut b, _) = stamping(false);
    for (spec, behind) in
        [(Spec::udp4(0), 18), (Spec::udp6(0), 1), (Spec::udp4(300), 32), (Spec::tcp4(200), 700)]
    {
        let packet = spec.build();
        let mut sent = plain(&[&packet[..], &vec![0x74; behind]].concat());
        start(&mut sent);
        assert_eq!(a.send(&sent), Posted::Done);
        assert_eq!(b.frames(), [packet]);
    }
    // An answer of ARP has no length of its own.
    let mut arp = testing::arp(testing::SRC, testing::SRC4);
    arp[..6].copy_from_slice(&testing::DST.0);
    let mut sent = plain(&arp);
    start(&mut sent);
    assert_eq!(a.send(&sent), Posted::Done);
    assert_eq!(b.frames(), [arp]);
}

#[test]
fn frames_without_a_deadline_and_to_other_peers_have_no_stamp() {
    let (mut a, mut b, counts) = stamping(false);
    let sent = plain(&Spec::udp4(22).build());
    assert_eq!(a.send(&sent), Posted::Done);
    assert_eq!(b.frames(), on_the_wire(&sent));
    let (mut c, mut d) = pair(false, 1);
    c.rx.set_pairs(outgoing(&counts[0]));
    let mut sent = plain(&Spec::udp4(22).build());
    start(&mut sent);
    assert_eq!(c.send(&sent), Posted::Done);
    assert_eq!(d.frames(), on_the_wire(&sent));
    assert_eq!(counts[0].sent.get(), 0);
}

/// A link that takes stamps from a plain socket.
struct Victim {
    host: Host,
    peer: UdpSocket,
    counts: Arc<PairCounts>,
    foreign: Arc<Counter>,
}

impl Victim {
    fn new(keys: Keys) -> Self {
        let peer = UdpSocket::bind("127.0.0.2:0").unwrap();
        let mut host =
            host("127.0.0.1".parse().unwrap(), 1, vec![super::peer(5, peer.local_addr().unwrap())]);
        peer.connect(host.address).unwrap();
        take_stamps(&mut host);
        let (counts, foreign) = (Arc::default(), Arc::default());
        host.tx.set_pairs(incoming(&counts, &foreign, keys));
        Self { host, peer, counts, foreign }
    }

    /// Returns what becomes of a frame that the peer sends.
    fn sends(&mut self, frame: &[u8]) -> Result<Vec<u8>, DropReason> {
        self.peer.send(&[&header(SEGMENT.1)[..], frame].concat()).unwrap();
        let (frames, drops) = self.host.receive();
        match (&frames[..], &drops[..]) {
            ([(_, frame)], []) => Ok(frame.clone()),
            ([], [reason]) => Err(*reason),
            other => panic!("{other:?}"),
        }
    }
}

/// Returns a frame with a stamp.
fn stamped(frame: &[u8], (key, secret): (KeyNumber, Key), sequence: u32, sent_ns: u64) -> Vec<u8> {
    let stamp = Stamp { key, deadline_us: TD, sent_ns, hold_ns: 5, sequence };
    [frame, &stamp.trailer(&secret, frame, frame.len() as u32)].concat()
}

const BY_EVEN: (KeyNumber, Key) = (KeyNumber::Even, EVEN);
const BY_ODD: (KeyNumber, Key) = (KeyNumber::Odd, ODD);

#[test]
fn a_frame_arrives_once_and_later_than_128_others_not_at_all() {
    let mut victim = Victim::new(keys(Some(EVEN), None));
    let frame = Spec::udp4(100).build();
    let by = |number: u32| stamped(&frame, BY_EVEN, number, 1000 + u64::from(number));
    assert_eq!(victim.sends(&by(1)), Ok(frame.clone()));
    assert_eq!(victim.sends(&by(3)), Ok(frame.clone()));
    assert_eq!(victim.sends(&by(2)), Ok(frame.clone()), "overtaken");
    for number in [1, 2, 3] {
        assert_eq!(victim.sends(&by(number)), Err(DropReason::Replayed));
    }
    assert_eq!(victim.sends(&by(200)), Ok(frame.clone()));
    assert_eq!(victim.sends(&by(60)), Err(DropReason::Replayed), "too old to tell");
    let counts = &victim.counts;
    assert_eq!((counts.arrived.get(), counts.reordered.get(), counts.replayed.get()), (4, 1, 4));
    assert_eq!(counts.lost.get(), 69, "4 to 72 left the window");
}

#[test]
fn a_trailer_of_another_key_is_part_of_the_frame() {
    let mut victim = Victim::new(keys(Some(EVEN), None));
    let frame = Spec::udp4(100).build();
    for wrong in [
        stamped(&frame, (KeyNumber::Even, ODD), 1, 1),
        stamped(&frame, BY_ODD, 1, 1),
        [&frame[..], &[0x74, 0x64, 1, 0], &[0; LEN - 4]].concat(),
    ] {
        assert_eq!(victim.sends(&wrong), Ok(wrong.clone()));
    }
    assert_eq!((victim.counts.forged.get(), victim.counts.arrived.get()), (3, 0));
    // A bit of the length, or of the covered head.
    let good = stamped(&frame, BY_EVEN, 1, 1);
    let mut other = good.clone();
    other[40] ^= 1;
    assert_eq!(victim.sends(&other), Ok(other.clone()));
    let longer = [&frame[..], &[0], &good[frame.len()..]].concat();
    assert_eq!(victim.sends(&longer), Ok(longer.clone()));
    assert_eq!((victim.counts.forged.get(), victim.foreign.get()), (5, 0));
    assert_eq!(victim.sends(&good), Ok(frame));
}

#[test]
fn two_keys_are_valid_while_one_replaces_the_other() {
    let mut victim = Victim::new(keys(Some(EVEN), Some(ODD)));
    let frame = Spec::udp4(100).build();
    assert_eq!(victim.sends(&stamped(&frame, BY_EVEN, 1, 1)), Ok(frame.clone()));
    assert_eq!(victim.sends(&stamped(&frame, BY_ODD, 2, 2)), Ok(frame.clone()));
    assert_eq!(victim.sends(&stamped(&frame, BY_EVEN, 3, 3)), Ok(frame.clone()));
    assert_eq!(victim.sends(&stamped(&frame, BY_ODD, 3, 3)), Err(DropReason::Replayed));
    let later = incoming(&victim.counts, &victim.foreign, keys(None, Some(ODD)));
    victim.host.tx.set_pairs(later);
    let old = stamped(&frame, BY_EVEN, 4, 4);
    assert_eq!(victim.sends(&old), Ok(old.clone()));
    assert_eq!(victim.sends(&stamped(&frame, BY_ODD, 4, 4)), Ok(frame));
}

/// The tag covers the head as it was copied, so payload that a guest rewrites meanwhile is no forgery.
#[test]
fn payload_that_is_rewritten_on_its_way_is_no_forgery() {
    let mut victim = Victim::new(keys(Some(EVEN), None));
    let frame = Spec::udp4(400).build();
    let mut rewritten = stamped(&frame, BY_EVEN, 1, 1);
    rewritten[100..300].fill(0xee);
    assert_eq!(victim.sends(&rewritten), Ok(rewritten[..frame.len()].to_vec()));
    assert_eq!((victim.counts.arrived.get(), victim.counts.forged.get()), (1, 0));
}

#[test]
fn stamps_of_vnics_that_are_not_registered_are_part_of_the_frame() {
    let mut victim = Victim::new(keys(Some(EVEN), None));
    let mut frame = Spec::udp4(100).build();
    frame[11] ^= 0x40;
    let unknown = stamped(&frame, BY_EVEN, 1, 1);
    assert_eq!(victim.sends(&unknown), Ok(unknown.clone()));
    assert_eq!((victim.foreign.get(), victim.counts.arrived.get()), (1, 0));
    // To another vNIC than it promises to: without the stamp, and without a deadline.
    let mut frame = Spec::udp4(100).build();
    frame[5] ^= 0x40;
    assert_eq!(victim.sends(&stamped(&frame, BY_EVEN, 1, 1)), Ok(frame));
    // Shorter than an Ethernet header.
    for len in [0, 5, 12, 13] {
        let short = stamped(&Spec::udp4(0).build()[..len], BY_EVEN, 9, 9);
        assert_eq!(victim.sends(&short), Ok(short.clone()), "{len} bytes");
    }
    assert_eq!(victim.counts.arrived.get(), 0);
    // A frame of 14 bytes is complete.
    let short = Spec::udp4(0).build()[..14].to_vec();
    assert_eq!(victim.sends(&stamped(&short, BY_EVEN, 9, 9)), Ok(short));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever is behind a frame, no datagram ends the link; and only a tag of the key is taken off.
    #[test]
    fn any_trailer_is_taken_or_left(
        payload in 0..200usize, mut trailer in prop::collection::vec(any::<u8>(), LEN), alike: bool,
    ) {
        let mut victim = Victim::new(keys(Some(EVEN), None));
        if alike {
            trailer[..4].copy_from_slice(&[0x74, 0x64, 1, 0]);
        }
        let frame = [&Spec::udp4(payload).build()[..], &trailer].concat();
        prop_assert_eq!(victim.sends(&frame), Ok(frame.clone()));
        prop_assert_eq!(victim.counts.forged.get(), u64::from(alike));
    }
}

/// The network can tell a pair by its source port; other frames leave by the common ports.
#[test]
fn a_pair_with_a_lane_has_a_source_port_of_its_own() {
    let receiver = UdpSocket::bind("127.0.0.2:0").unwrap();
    receiver.set_nonblocking(true).unwrap();
    let address = "127.0.0.1".parse().unwrap();
    let mut a = host_with(address, 2, 3, vec![super::peer(6, receiver.local_addr().unwrap())]);
    take_stamps(&mut a);
    let pair = PairKey::new(SEGMENT.0, testing::SRC, testing::DST);
    let mut ports = vec![];
    for lane in [Some(0), Some(2), None, Some(3)] {
        let outgoing = Outgoing::new(pair, TD, BY_EVEN, Arc::default()).with_lane(lane);
        a.rx.set_pairs(OutgoingPairs::new(vec![outgoing]));
        let mut sent = plain(&Spec::udp4(22).build());
        start(&mut sent);
        for _ in 0..2 {
            assert_eq!(a.send(&sent), Posted::Done);
            assert!(!a.rx.has_unsent());
            let (_, from) = receiver.recv_from(&mut [0; 2000]).unwrap();
            ports.push(from.port());
        }
    }
    let [a, b, c, d, e, f, g, h] = ports[..] else { panic!("{ports:?}") };
    assert!(a == b && c == d && e == f && g == h && a != c && c != e && a != e, "{ports:?}");
    assert_eq!(e, g, "there are three lanes of pairs");
}

/// A pair's full socket holds up the frames of no other lane.
#[test]
fn frames_of_a_pair_wait_in_order_and_leave_later() {
    let receiver = UdpSocket::bind("127.0.0.2:0").unwrap();
    receiver.set_nonblocking(true).unwrap();
    let address = "127.0.0.1".parse().unwrap();
    let mut a = host_with(address, 1, 1, vec![super::peer(6, receiver.local_addr().unwrap())]);
    take_stamps(&mut a);
    let pair = PairKey::new(SEGMENT.0, testing::SRC, testing::DST);
    let outgoing = Outgoing::new(pair, TD, BY_EVEN, Arc::default()).with_lane(Some(0));
    a.rx.set_pairs(OutgoingPairs::new(vec![outgoing]));
    let mut sent = plain(&Spec::udp4(22).build());
    start(&mut sent);
    a.rx.lanes.outgoing.script.push_back(Err(sockets::NotSent::Full));
    assert_eq!(a.send(&sent), Posted::Done);
    assert!(a.rx.has_unsent());
    assert!(receiver.recv_from(&mut [0; 2000]).is_err());
    assert_eq!(a.send(&sent), Posted::Done);
    assert!(!a.rx.has_unsent());
    let mut numbers = vec![];
    let mut datagram = [0; 2000];
    while let Ok((len, _)) = receiver.recv_from(&mut datagram) {
        let stamp = Stamp::read(&datagram[8..len], &keys(Some(EVEN), None)).expect("has a stamp");
        numbers.push(stamp.sequence);
    }
    assert_eq!(numbers, [0, 1]);
}
