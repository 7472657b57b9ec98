//! Posting, with a socket pair in place of a packet socket and its device.

use crate::fdb::{Destination, Fdb, PeerIndex};
use crate::frame::VnetHdr;
use crate::frame::testing::{self, Frame as Spec};
use crate::link::nic::wire::{ADDRESSES, TAG};
use crate::link::nic::{Device, Rx, Setup, halves};
use crate::link::reading::Reads;
use crate::link::vxlan::Peers;
use crate::link::vxlan::pairs::PairKey;
use crate::link::vxlan::tests::scene::{PORT, SEGMENT, Sent, asking, plain};
use crate::link::{Posted, Taken};
use crate::slots::NEVER;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use tidegate_evidence::DropReason;

const VLAN: u32 = 42;
const LONGEST: u32 = 1514;

fn pair() -> (UnixDatagram, UnixDatagram) {
    let (a, b) = socketpair(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::NONBLOCK, None).unwrap();
    (a.into(), b.into())
}

/// Returns a link, its FDB, and the other end of its socket.
fn link() -> (crate::link::nic::Tx, Rx, Arc<Fdb>, UnixDatagram) {
    let (ours, theirs) = pair();
    let (peer, fdb) = (PeerIndex::new(5).unwrap(), Arc::new(Fdb::new()));
    let device = Device::Packet { receive: vec![ours.try_clone().unwrap().into()], send: ours.into() };
    let peers = Arc::new(Peers::of_nic(peer, &[(SEGMENT.0, VLAN)]).unwrap());
    let setup = Setup { device, longest: LONGEST, peers, fdb: fdb.clone(), owner: None };
    let (tx, rx) = halves(setup, PORT, 0, 0);
    (tx, rx, fdb, theirs)
}

/// Returns the next frame that left, without header and tag.
fn left(theirs: &UnixDatagram) -> Option<Vec<u8>> {
    let mut bytes = vec![0; 70_000];
    let len = theirs.recv(&mut bytes).ok()?;
    let frame = &bytes[VnetHdr::LEGACY_LEN..len];
    assert_eq!(frame[ADDRESSES..ADDRESSES + TAG], [0x81, 0, 0, VLAN as u8]);
    Some([&frame[..ADDRESSES], &frame[ADDRESSES + TAG..]].concat())
}

/// Returns a frame whose last byte is `number`.
fn numbered(number: u8, deadline: u64) -> Sent {
    let mut bytes = Spec::udp4(100).build();
    *bytes.last_mut().unwrap() = number;
    let mut sent = plain(&bytes);
    sent.frame.deadline = deadline;
    sent
}

/// Returns priorities and VLANs of frames that left.
fn tags(theirs: &UnixDatagram) -> Vec<(u8, u8)> {
    let next = || {
        let mut bytes = vec![0; 70_000];
        let len = theirs.recv(&mut bytes).ok()?;
        let tag = &bytes[VnetHdr::LEGACY_LEN + ADDRESSES..len][..TAG];
        Some((tag[2] >> 5, tag[3]))
    };
    std::iter::from_fn(next).collect()
}

#[test]
fn a_frame_with_a_deadline_and_a_path_has_its_priority() {
    let (_tx, mut rx, _fdb, theirs) = link();
    let sent = |rx: &mut Rx, deadline: u64| {
        assert_eq!(rx.post(&numbered(1, deadline).frame), Posted::Done);
        rx.flush();
        tags(&theirs)
    };
    assert_eq!(sent(&mut rx, u64::MAX - 1), [(0, VLAN as u8)], "no path");
    let of = |local, remote| {
        let peers = Peers::of_nic(PeerIndex::new(5).unwrap(), &[(SEGMENT.0, VLAN)]).unwrap();
        Arc::new(peers.with_marked(vec![PairKey::new(SEGMENT.0, local, remote)]))
    };
    drop(rx.set_peers(of(testing::SRC, testing::DST)));
    assert_eq!(sent(&mut rx, u64::MAX - 1), [(5, VLAN as u8)]);
    assert_eq!(sent(&mut rx, NEVER), [(0, VLAN as u8)], "best effort in this host, too");
    drop(rx.set_peers(of(testing::DST, testing::SRC)));
    assert_eq!(sent(&mut rx, u64::MAX - 1), [(0, VLAN as u8)], "another pair's path");
}

#[test]
fn what_cannot_leave_is_refused() {
    let (_tx, mut rx, fdb, theirs) = link();
    let post = |rx: &mut Rx, sent: Sent| {
        let posted = rx.post(&sent.frame);
        rx.flush();
        posted
    };
    let dropped = Posted::Dropped;
    let of_len = |payload: usize| plain(&Spec::udp4(payload).build());
    let around = Spec::udp4(0).build().len();
    assert_eq!(post(&mut rx, of_len(LONGEST as usize - around)), Posted::Done);
    assert_eq!(left(&theirs).unwrap().len(), LONGEST as usize);
    assert_eq!(post(&mut rx, of_len(LONGEST as usize + 1 - around)), dropped(DropReason::PathMtu));
    assert_eq!(post(&mut rx, asking(&Spec::tcp4(20_000), Some(1448))), Posted::Done);
    assert!(left(&theirs).unwrap().len() > 20_000, "the kernel cuts it");
    assert_eq!(post(&mut rx, asking(&Spec::tcp4(20_000), Some(1500))), dropped(DropReason::PathMtu));
    let tagged = Spec { vlan: Some(5), ..Spec::udp4(10) };
    assert_eq!(post(&mut rx, plain(&tagged.build())), dropped(DropReason::Unacceptable));
    let mut foreign = of_len(10);
    foreign.frame.peer = PeerIndex::new(5);
    assert_eq!(post(&mut rx, foreign), dropped(DropReason::NoReceiver), "from the network");
    let mut elsewhere = of_len(10);
    elsewhere.frame.segment = crate::fdb::SegmentIndex(9);
    assert_eq!(post(&mut rx, elsewhere), dropped(DropReason::UnknownSegment));
    fdb.pin(SEGMENT.0, testing::DST, Destination::from(PORT + 1)).unwrap();
    assert_eq!(post(&mut rx, of_len(10)), dropped(DropReason::NoReceiver), "at a vNIC of this host");
    assert!(left(&theirs).is_none());
}

#[test]
fn frames_with_a_deadline_leave_first() {
    let (_tx, mut rx, _fdb, theirs) = link();
    for (number, deadline) in [(1, NEVER), (2, NEVER), (3, u64::MAX - 1), (4, u64::MAX - 1)] {
        assert_eq!(rx.post(&numbered(number, deadline).frame), Posted::Done);
    }
    assert!(rx.has_unsent());
    rx.flush();
    let order: Vec<_> = std::iter::from_fn(|| left(&theirs)).map(|frame| *frame.last().unwrap()).collect();
    assert_eq!(order, [3, 4, 1, 2]);
    let wire = rx.take_on_wire();
    assert_eq!((wire.frames, rx.counters().frames, rx.has_unsent()), (4, 4, false));
}

/// The other end takes few datagrams; the rest waits here, bounded, in order, and not for ever.
#[test]
fn a_full_socket_keeps_frames_in_order() {
    let (_tx, mut rx, _fdb, theirs) = link();
    let mut posted = 0u8;
    while rx.post(&numbered(posted, NEVER).frame) == Posted::Done {
        posted = posted.wrapping_add(1);
    }
    rx.flush();
    assert!(rx.has_unsent());
    let began = crate::clock::clock();
    let mut seen = 0u8;
    while rx.has_unsent() && crate::clock::clock() - began < 5_000_000_000 {
        while let Some(frame) = left(&theirs) {
            assert_eq!(*frame.last().unwrap(), seen, "in order");
            seen = seen.wrapping_add(1);
        }
        rx.flush();
    }
    assert!(!rx.has_unsent());
    let counters = *rx.counters();
    let dropped = counters.dropped(DropReason::HeldTooLong);
    assert_eq!((counters.frames + dropped) % 256, u64::from(posted), "each left, or was counted");
}

#[test]
fn a_frame_without_a_tag_is_counted() {
    let (mut tx, _rx, _fdb, theirs) = link();
    for len in [0, 5, VnetHdr::LEGACY_LEN, 200] {
        theirs.send(&vec![0; len]).unwrap();
    }
    assert!(tx.poll(0));
    let reasons: Vec<_> = std::iter::from_fn(|| match tx.take() {
        Taken::Dropped(reason, 1) => Some(reason),
        Taken::Nothing => None,
        other => panic!("{other:?}"),
    })
    .collect();
    let unknown = DropReason::UnknownSegment;
    assert_eq!(reasons, [DropReason::Malformed, DropReason::Malformed, unknown, unknown]);
    assert!(tx.can_be_quiet());
}
