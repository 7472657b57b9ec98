//! Whatever peers and strangers send: no panic, and each datagram is taken or counted.

use super::*;
use crate::link::reading::Reads;
use std::net::UdpSocket;
use tidegate_uplink::vxlan::header;

/// Returns a link, and a plain socket that is its peer.
fn victim(v6: bool) -> (Host, UdpSocket) {
    let [at, from] = if v6 { ["::1", "::1"] } else { ["127.0.0.1", "127.0.0.2"] };
    let peer_socket = UdpSocket::bind((from, 0)).unwrap();
    let host = host(at.parse().unwrap(), 1, vec![peer(5, peer_socket.local_addr().unwrap())]);
    peer_socket.connect(host.address).unwrap();
    (host, peer_socket)
}

fn datagram(vni: u32, frame: &[u8]) -> Vec<u8> {
    [&header(vni)[..], frame].concat()
}

#[test]
fn refused_datagrams_are_counted_by_reason() {
    for v6 in [false, true] {
        let (mut host, peer) = victim(v6);
        let frame = Spec::udp4(100).build();
        let good = datagram(SEGMENT.1, &frame);
        let cases = [
            (datagram(SEGMENT.1, &frame), None),
            (vec![], Some(DropReason::Malformed)),
            (good[..7].to_vec(), Some(DropReason::Malformed)),
            (good[..8].to_vec(), Some(DropReason::Malformed)),
            (good[..21].to_vec(), Some(DropReason::Malformed)),
            (vec![0; 100], Some(DropReason::Malformed)),
            (vec![0xff; 100], Some(DropReason::Malformed)),
            (datagram(OTHER.1, &frame), Some(DropReason::UnknownSegment)),
            (datagram(SEGMENT.1 + 1, &frame), Some(DropReason::UnknownSegment)),
            // A tunnel in the tunnel is a frame like any other.
            (datagram(SEGMENT.1, &datagram(SEGMENT.1, &frame)), None),
            (datagram(SEGMENT.1, &vec![7; 60_000]), None),
        ];
        for (bytes, reason) in cases {
            assert_eq!(peer.send(&bytes).unwrap(), bytes.len());
            let expected = match reason {
                None => (vec![(5, bytes[8..].to_vec())], vec![]),
                Some(reason) => (vec![], vec![reason]),
            };
            assert_eq!(host.receive(), expected, "{} bytes", bytes.len());
        }
    }
}

#[test]
fn strangers_are_refused() {
    let (mut host, _) = victim(false);
    let stranger = UdpSocket::bind("127.0.0.3:0").unwrap();
    let good = datagram(SEGMENT.1, &Spec::udp4(100).build());
    stranger.send_to(&good, host.address).unwrap();
    assert_eq!(host.receive(), (vec![], vec![DropReason::UnknownPeer]));
    // The same while an earlier frame waits.
    stranger.send_to(&good, host.address).unwrap();
    host.tx.readiness.note_readable(0, 0, 0);
    let absorbed = host.tx.absorb(5);
    assert_eq!((absorbed.frames, absorbed.dropped[DropReason::UnknownPeer as usize]), (1, 1));
    // A peer that was removed, also for what was received before.
    let (mut host, peer) = victim(false);
    (0..3).for_each(|_| _ = peer.send(&good).unwrap());
    host.tx.readiness.note_readable(0, 0, 0);
    let Taken::New(pending, 1) = host.tx.take() else { panic!("it is a peer") };
    host.tx.store.give_back(pending.frame);
    host.tx.set_peers(Arc::new(Peers::new(vec![], &[SEGMENT]).unwrap()));
    assert_eq!(host.receive(), (vec![], vec![DropReason::UnknownPeer; 2]));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Trains of any size, cut anywhere: the parts are judged as datagrams of their own.
    #[test]
    fn any_trains_are_taken_apart(
        v6: bool,
        trains in prop::collection::vec((testing::hostile(), 1..40usize, 1..2000usize), 1..6),
    ) {
        let (mut host, peer) = victim(v6);
        for (frame, times, size) in trains {
            let good = datagram(SEGMENT.1, &frame);
            let bytes = good.repeat(times);
            let bytes = &bytes[..bytes.len().min(60 * size).min(60_000)];
            set(&peer, libc::SOL_UDP, libc::UDP_SEGMENT, size as i32);
            prop_assert_eq!(peer.send(bytes).unwrap(), bytes.len());
            let (frames, drops) = host.receive();
            let expected: Vec<_> = bytes.chunks(size).collect();
            prop_assert_eq!(frames.len() + drops.len(), expected.len());
            let good = expected.iter().filter_map(|part| {
                let (vni, frame) = tidegate_uplink::vxlan::parse(part).ok()?;
                (vni == SEGMENT.1 && frame.len() >= 14).then(|| (5, frame.to_vec()))
            });
            prop_assert_eq!(frames, good.collect::<Vec<_>>());
        }
    }
}
