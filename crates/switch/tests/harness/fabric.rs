//! Two switches of one process as two hosts, whose vNICs have queue pairs over a fabric in memory.
//!
//! ```text
//!  guest ─ switch ─┬─ notices, VXLAN: loopback ─┬─ switch ─ guest
//!                  └─ device ─── Fabric ─ device ┘
//! ```

use super::{ALONE, Guest, PATIENCE, TestSwitch, udp, vnic};
use rustix::net::sockopt;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::PoisonError;
use std::time::{Duration, Instant};
use tidegate_contract::{Peer, Remote, SecretKey, Segment, SegmentKey, Uplink, testing};
use tidegate_evidence::{RdmaCounts, RdmaStatus, ZeroCopyStatus};
use tidegate_frontend::front_end::Options;
use tidegate_switch::quota;
use tidegate_switch::server::Switch;
use tidegate_switch::server::cpus::{Cpus, Host};
use tidegate_switch::server::rdma::Devices;
use tidegate_switch::server::uplinks::Sockets;
use tidegate_verbs::Device;
use tidegate_verbs::simulated::{self, Fabric, Fate};

/// The segment of both guests.
const SEGMENT: u32 = 7;
/// The key of that, and one that replaces it.
pub const KEYS: [&str; 2] = ["000102030405060708090a0b0c0d0e10", "100f0e0d0c0b0a09080706050403020f"];

/// One of the two hosts.
pub struct Side {
    pub host: TestSwitch,
    /// For orders to its device.
    pub device: simulated::Device,
    pub guest: Guest,
    pub address: IpAddr,
    uplink: Uplink,
    /// The other host's vNIC.
    pub remote: Remote,
    /// The socket of notices, also the switch's.
    notices: UdpSocket,
}

/// Two hosts.
pub struct Two {
    pub fabric: Fabric,
    pub sides: [Side; 2],
    /// The last frame's number.
    number: u32,
}

/// Returns two hosts, each with a vNIC that the other one knows as a member.
pub fn two() -> Two {
    two_with("", &Options::default())
}

/// As [`two`], with more keys in the vNICs' contracts, and guests like this.
pub fn two_with(keys: &str, options: &Options) -> Two {
    let fabric = Fabric::new();
    let mut alone = Some(ALONE.lock().unwrap_or_else(PoisonError::into_inner));
    let addresses = [[127, 0, 0, 1], [127, 0, 0, 2]].map(IpAddr::from);
    // Address handles are made for a host that is there.
    let devices = addresses.map(|address| simulated::Device::new(&fabric, "sim0", &[address]));
    let [frames, notices] = [(); 2].map(|()| bind(addresses));
    let (port, notice_port) = (port_of(&frames[0]), port_of(&notices[0]));
    let mut sockets = frames.into_iter().zip(notices);
    let sides = [0, 1].map(|n: usize| {
        let device = devices[n].clone();
        let open = Devices::of(vec![Device::simulated(&device)]);
        let cpus = (Cpus::None, Host::read().unwrap());
        let switch = Switch::start_with(1, cpus, None, quota::PORT_MEMORY, open).unwrap();
        let host = TestSwitch::of(switch, alone.take());
        let contract = |n: usize| vnic(["a", "b"][n], n as u8 + 1, &format!("transport = \"rdma\"\n{keys}"));
        let guest = host.guest_with(&contract(n), options.clone());
        let remote = super::contract(&contract(1 - n));
        let remote = Remote {
            mac: remote.mac,
            segment: remote.segment,
            peer: "far".into(),
            ..testing::remote(&remote.name)
        };
        let peer = Peer {
            name: "far".into(),
            address: Some(addresses[1 - n]),
            ..testing::uplink("net0").peers.remove(0)
        };
        let uplink = Uplink {
            local: Some(addresses[n]),
            port,
            notice_port,
            mtu: 4200,
            peers: vec![peer],
            rdma: Some("sim0".into()),
            ..testing::uplink("net0")
        };
        let (frames, notices) = sockets.next().unwrap();
        let of_switch = notices.try_clone().unwrap();
        let side = Side { host, device, guest, address: addresses[n], uplink, remote, notices };
        side.set(&[KEYS[0]], Some(side.sockets(frames, of_switch)));
        side
    });
    let two = Two { fabric, sides, number: 0 };
    two.until_members();
    two
}

/// Returns sockets of both addresses, on one port.
fn bind(addresses: [IpAddr; 2]) -> [UdpSocket; 2] {
    for _ in 0..100 {
        let first = UdpSocket::bind((addresses[0], 0)).unwrap();
        if let Ok(second) = UdpSocket::bind((addresses[1], port_of(&first))) {
            return [first, second];
        }
    }
    panic!("no port is free at {addresses:?}");
}

fn port_of(socket: &UdpSocket) -> u16 {
    socket.local_addr().unwrap().port()
}

impl Side {
    /// Sets the uplink, with keys of the segment: the one in use, and the next one.
    pub fn set(&self, keys: &[&str], sockets: Option<Sockets>) {
        let mut keys = keys.iter().map(|key| SecretKey::parse(key.as_bytes()).unwrap());
        let segment = Segment::new(SEGMENT).unwrap();
        let keys = SegmentKey { segment, key: keys.next().unwrap(), next: keys.next() };
        let of_it = (vec![self.remote.clone()], vec![keys], Default::default());
        self.host.switch.set_uplink(self.uplink.clone(), of_it, sockets).unwrap();
    }

    fn sockets(&self, frames: UdpSocket, notices: UdpSocket) -> Sockets {
        sockopt::set_ip_recvtos(&frames, true).unwrap();
        let nonblocking = |socket: UdpSocket| -> OwnedFd {
            socket.set_nonblocking(true).unwrap();
            socket.into()
        };
        Sockets {
            receive: vec![nonblocking(frames)],
            send: vec![nonblocking(UdpSocket::bind((self.address, 0)).unwrap())],
            pairs: vec![],
            ports: vec![],
            notices: Some(nonblocking(notices)),
        }
    }

    /// Makes the uplink anew, as the agent does with a broken one.
    pub fn make_anew(&self) {
        self.host.switch.remove_uplink("net0").unwrap();
        let frames = UdpSocket::bind((self.address, self.uplink.port)).unwrap();
        self.set(&[KEYS[0]], Some(self.sockets(frames, self.notices.try_clone().unwrap())));
    }

    /// Has all notices to this host vanish, or none any more. Those that it sends arrive.
    pub fn lose_notices(&self, are_lost: bool) {
        if are_lost {
            // A socket with a far end takes messages from that alone.
            self.notices.connect((Ipv4Addr::LOCALHOST, 9)).unwrap();
        } else {
            rustix::net::connect_unspec(&self.notices).unwrap();
        }
    }

    pub fn status(&self) -> RdmaStatus {
        *self.host.switch.uplinks().remove(0).rdma.unwrap()
    }

    pub fn counts(&self) -> RdmaCounts {
        self.status().counts
    }

    /// Returns the state of its vNIC's zero copy.
    pub fn zero_copy(&self) -> Option<ZeroCopyStatus> {
        self.status().pairs.first()?.zero_copy.clone()
    }

    /// Returns the number of its vNIC's queue pair.
    pub fn queue_pair(&self) -> Option<u32> {
        self.status().pairs.first()?.queue_pair
    }

    /// Returns the number of the queue pair that it sends to.
    pub fn member(&self) -> Option<u32> {
        let status = self.status();
        let member = status.members.first().filter(|member| member.error.is_none())?;
        Some(member.queue_pair)
    }
}

impl Two {
    /// Waits until each host sends to the queue pair that the other one has.
    #[track_caller]
    pub fn until_members(&self) {
        let [a, b] = &self.sides;
        self.until("members", || {
            let [of_a, of_b] = [a.queue_pair(), b.queue_pair()];
            of_a.is_some() && of_b.is_some() && a.member() == of_b && b.member() == of_a
        });
    }

    /// Waits until `done`, for longer than an announcement takes that was lost.
    #[track_caller]
    pub fn until(&self, what: &str, mut done: impl FnMut() -> bool) {
        let began = Instant::now();
        while !done() {
            let states = || self.sides.each_ref().map(Side::status);
            assert!(began.elapsed() < 4 * PATIENCE, "{what}: {:#?} {:?}", states(), self.fabric.fates());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Returns a new frame from one guest to the other: each has another number.
    pub fn frame(&mut self, from: usize, len: usize) -> Vec<u8> {
        self.number += 1;
        let payload = [&self.number.to_be_bytes()[..], &vec![0; len]].concat();
        udp(self.sides[1 - from].guest.mac(), self.sides[from].guest.mac(), &payload)
    }

    /// Sends a frame, and waits until it is received.
    #[track_caller]
    pub fn send(&mut self, from: usize, len: usize) {
        let frame = self.frame(from, len);
        self.sides[from].guest.send(&frame);
        assert_eq!(self.sides[1 - from].guest.receive(), frame);
    }

    /// Sends frames both ways, all of which go by RDMA, and arrive.
    #[track_caller]
    pub fn frames_go_by_rdma(&mut self) {
        // One that was replaced just now is told at once.
        self.until_members();
        for from in [0, 1] {
            let seen = |two: &Self| {
                let [sender, receiver] = [from, 1 - from].map(|n| &two.sides[n]);
                [sender.counts().sent, sender.device.counters().datagrams, receiver.counts().received]
            };
            let before = seen(self);
            for len in [0, 1000, 1400] {
                self.send(from, len);
            }
            // A worker counts a frame when it is on its way.
            self.until("three by RDMA", || seen(self) == before.map(|count| count + 3));
        }
    }

    /// Sends frames until one arrives that the receiver's Q_Key does not refuse.
    #[track_caller]
    pub fn until_accepted(&mut self, from: usize) {
        let wrong = |two: &Self| two.fabric.fates().of(Fate::WrongKey);
        let began = Instant::now();
        loop {
            let (frame, before) = (self.frame(from, 5), wrong(self));
            self.sides[from].guest.send(&frame);
            while wrong(self) == before {
                let guest = &mut self.sides[1 - from].guest;
                if let Some(bytes) = guest.try_receive() {
                    assert_eq!(bytes[guest.front.header_len()..], frame);
                    return;
                }
                assert!(began.elapsed() < 4 * PATIENCE, "the sender goes on with another key");
                std::thread::sleep(Duration::from_micros(100));
            }
            // It learns the new one by an announcement.
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns the datagram in which `frame` comes from one side, with a header (`crates/uplink/src/rdma`).
    pub fn datagram(&self, from: usize, frame: &[u8]) -> simulated::Datagram {
        let (sender, to) = (&self.sides[from], &self.sides[1 - from]);
        let queue_pair = to.queue_pair().unwrap();
        let header = tidegate_uplink::rdma::Header {
            sequence: 1 << 30,
            checksum: tidegate_uplink::rdma::Checksum::Complete,
        };
        simulated::Datagram {
            from: sender.address,
            source: sender.queue_pair().unwrap(),
            to: to.address,
            queue_pair,
            q_key: to.device.q_key(queue_pair).unwrap(),
            traffic_class: 0,
            bytes: [&header.write()[..], frame].concat(),
        }
    }
}
