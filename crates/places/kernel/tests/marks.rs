//! Marks in what a guest sends, as another guest receives it, and the filter that sees to them.

mod netns;

use netns::load::{Traffic, under};
use netns::*;
use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketType, recv, socket, sockopt};
use std::net::UdpSocket;
use std::os::fd::OwnedFd;
use std::time::Duration;
use tidegate_place_kernel::ebpf::mark::Dropped;
use tidegate_place_kernel::ebpf::{Bucket, Marks};
use tidegate_place_kernel::tc::handle::Handle;
use tidegate_place_kernel::tc::network::Rule;
use tidegate_place_kernel::tc::owner;
use tidegate_place_kernel::tc::{Kernel, Shaping, Ways};

const PORT: u16 = 9;

/// What a guest sees of all that comes in.
fn listen(guest: &Guest) -> (OwnedFd, UdpSocket) {
    guest.within(|_| {
        // ETH_P_ALL, in network byte order.
        let everything = Protocol::from_raw(0x0300.try_into().unwrap());
        let frames = socket(AddressFamily::PACKET, SocketType::RAW, Some(everything)).unwrap();
        let datagrams = UdpSocket::bind(("0.0.0.0", PORT)).unwrap();
        datagrams.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        (frames, datagrams)
    })
}

/// Type of service of the next datagram to the port, in the header that came.
fn next(frames: &OwnedFd) -> u8 {
    loop {
        let mut frame = [0; 100];
        recv(frames, &mut frame[..], RecvFlags::empty()).unwrap();
        if frame[12..14] == [8, 0] && frame[23] == 17 && frame[36..38] == PORT.to_be_bytes() {
            return frame[15];
        }
    }
}

fn marking(marks: u64, tx: &str) -> Shaping {
    Shaping { marks: Some(Marks::from_burst(marks)), ..shaping("vnet1", tx, "-") }
}

/// Number of the map of its marks.
fn map(netdev: &str) -> Option<u32> {
    let network = observe();
    let mut filters = network.by_name(netdev).unwrap().1.filters.iter();
    filters.find_map(|f| match f.rule {
        Rule::Mark { program, .. } => Some(program.map),
        _ => None,
    })
}

#[test]
fn a_guest_receives_the_marks_of_its_contract() {
    in_namespace("a_guest_receives_the_marks_of_its_contract", || {
        let [one, two] = [("vnet1", 1), ("vnet2", 2)].map(|(name, number)| Guest::new(name, number));
        route(&[&one, &two]);
        let (frames, datagrams) = listen(&two);
        let to = two.address(2);
        let policed =
            Shaping { tx_police: Some(Bucket { rate: 125_000_000, burst: 65_536 }), ..marking(65_536, "-") };
        let [unmarked, shaped, set] =
            [shaping("vnet1", "-", "-"), marking(0, "1gbit"), marking(65_536, "1gbit")];
        for (wanted, marks) in [
            (&unmarked, None),
            (&shaped, Some(0)),
            (&set, Some(46)),
            (&policed, Some(46)),
            (&marking(65_536, "-"), Some(46)),
            (&marking(0, "-"), Some(0)),
        ] {
            settle(std::slice::from_ref(wanted));
            for dscp in [0, 10, 44, 46, 48, 56] {
                let tos = dscp << 2 | 2;
                one.within(|_| {
                    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
                    sockopt::set_ip_tos(&socket, tos).unwrap();
                    socket.send_to(&[0; 10], (to.as_str(), PORT)).unwrap();
                });
                // A wrong checksum would end on the way.
                datagrams.recv(&mut [0; 10]).unwrap();
                let realtime = [44, 46, 48, 56].contains(&dscp);
                let expected = match marks {
                    Some(0) if realtime => 0,
                    Some(46) => 46,
                    _ => dscp,
                };
                assert_eq!(next(&frames), expected << 2 | 2, "{wanted:?}: {dscp}");
            }
        }
        settle(&[]);
        let network = observe();
        let link = network.by_name("vnet1").unwrap().1;
        assert!(link.filters.is_empty() && link.ingress().is_none(), "{link:?}");
    });
}

#[test]
fn super_frames_above_the_burst_are_counted_and_drift_is_repaired() {
    in_namespace("super_frames_above_the_burst_are_counted_and_drift_is_repaired", || {
        let guest = Guest::new("vnet1", 1);
        settle(&[marking(4_000, "1gbit")]);
        let dropped = || Dropped::read(map("vnet1").unwrap()).unwrap().over_burst;
        under(Traffic::TcpOut, &guest, || {
            eventually("some are dropped", || dropped() > 0);
            let before = dropped();
            settle(&[marking(65_536, "1gbit")]);
            assert!(dropped() >= before, "it goes on counting");
        });

        let owned = |marks| [Shaping { owned: Ways::BOTH, ..marking(marks, "1gbit") }];
        let mut kernel = Kernel::open().unwrap();
        // Both begin anew.
        for damage in ["filter del dev vnet1 ingress pref 1", "qdisc del dev vnet1 clsact"] {
            tc(damage);
            assert_ne!(kernel.settle(&owned(65_536)).unwrap().steps, [], "{damage} is seen");
            assert_eq!(kernel.settle(&owned(65_536)).unwrap().steps, [], "{damage}");
            assert_eq!(dropped(), 0, "{damage}");
        }
        // Another program's in its place, and in the place of what shapes.
        for preference in [owner::MARK_PREFERENCE, owner::PREFERENCE] {
            tc(&format!("filter del dev vnet1 ingress pref {preference}"));
            tc(&format!(
                "filter add dev vnet1 ingress pref {preference} protocol all u32 match u32 0 0 classid :1"
            ));
            kernel.settle(&owned(0)).unwrap();
            assert_eq!(kernel.settle(&owned(0)).unwrap().steps, []);
        }
        // Others' stay beside marks alone.
        settle(&[marking(0, "-")]);
        tc("filter add dev vnet1 ingress pref 7 protocol all u32 match u32 0 0 classid :1");
        settle(&[]);
        let left = observe();
        let left: Vec<_> = left.by_name("vnet1").unwrap().1.filters_at(Handle::INGRESS).collect();
        assert!(matches!(left[..], [filter] if filter.preference == 7), "{left:?}");
    });
}
