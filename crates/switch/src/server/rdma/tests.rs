//! A switch with a device in memory.
//!
//! ```text
//!  set_port, set_uplink, what peers say ─▶ switch ─▶ simulated device: queue pairs, Q_Keys
//!                                             └────▶ uplinks(): RdmaStatus
//! ```

use super::Devices;
use super::anew::Anew;
use super::making::Making;
use super::wanted::Wished;
use crate::hosts::notices::Heard;
use crate::link::rdma::Tables;
use crate::quota::PORT_MEMORY;
use crate::sched::EgressKind;
use crate::server::cpus::Cpus;
use crate::server::ports::Connect;
use crate::server::uplinks::Sockets;
use crate::server::{Switch, host_cpus};
use std::net::{IpAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_contract::rdma::grows_by;
use tidegate_contract::{Host, Mac, Remote, SecretKey, SegmentKey, Transport, Uplink, Vnic, testing};
use tidegate_evidence::{MemberStatus, QueuePairStatus, RdmaStatus};
use tidegate_uplink::rdma::q_key;
use tidegate_uplink::stamp::Key;
use tidegate_verbs::Device;
use tidegate_verbs::simulated::{self, Fabric};

const LOCAL: [u8; 4] = [127, 0, 0, 1];
const FAR: [u8; 4] = [127, 0, 0, 2];
const KEYS: [&[u8]; 2] = [b"00112233445566778899aabbccddeef0", b"00112233445566778899aabbccddeef1"];

struct Scene {
    switch: Arc<Switch>,
    device: simulated::Device,
    /// The peer's.
    _far: simulated::Device,
}

fn key(number: usize) -> SecretKey {
    SecretKey::parse(KEYS[number]).unwrap()
}

fn keys(number: usize) -> Vec<SegmentKey> {
    vec![SegmentKey { segment: testing::vnic("a").segment, key: key(number), next: None }]
}

fn uplink() -> Uplink {
    let mut uplink = Uplink { local: Some(LOCAL.into()), ..testing::uplink("net0") };
    uplink.peers[0].address = Some(FAR.into());
    uplink.rdma = Some("rxe0".into());
    uplink
}

fn sockets() -> Option<Sockets> {
    let socket = || vec![UdpSocket::bind("127.0.0.1:0").unwrap().into()];
    Some(Sockets { receive: socket(), send: socket(), pairs: vec![], ports: vec![], notices: None })
}

fn vnic(name: &str) -> Vnic {
    Vnic { transport: Transport::Rdma, ..testing::vnic(name) }
}

impl Scene {
    fn new() -> Self {
        let fabric = Fabric::new();
        let device = simulated::Device::new(&fabric, "rxe0", &[LOCAL.into()]);
        let devices = Devices::of(vec![Device::simulated(&device)]);
        let cpus = (Cpus::None, host_cpus().unwrap());
        let switch = Switch::start_with(1, cpus, None, PORT_MEMORY, devices).unwrap();
        let far = simulated::Device::new(&fabric, "rxe0", &[FAR.into()]);
        Self { switch, device, _far: far }
    }

    fn set(&self, uplink: Uplink, number: usize, sockets: Option<Sockets>) -> Result<(), String> {
        let remotes: Vec<Remote> = vec![testing::remote("far")];
        self.switch.set_uplink(uplink, (remotes, keys(number), Default::default()), sockets)
    }

    fn port(&self, name: &str) {
        self.switch.set_port(vnic(name), Connect::NoFrontEnd).unwrap();
    }

    fn up(self) -> Self {
        self.set(uplink(), 0, sockets()).unwrap();
        self.port("a");
        self.wait("a queue pair", |status| status.pairs.iter().any(|pair| pair.queue_pair.is_some()));
        self
    }

    fn status(&self) -> RdmaStatus {
        *self.switch.uplinks().remove(0).rdma.expect("it names a device")
    }

    #[track_caller]
    fn wait(&self, what: &str, is_so: impl Fn(&RdmaStatus) -> bool) -> RdmaStatus {
        let end = Instant::now() + Duration::from_secs(30);
        loop {
            let status = self.status();
            if is_so(&status) {
                return status;
            }
            assert!(Instant::now() < end, "not {what}: {status:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn number(&self, name: &str) -> Option<u32> {
        self.status().pairs.iter().find(|pair| pair.vnic == name)?.queue_pair
    }

    fn heard(&self, address: IpAddr) -> Heard {
        let remote = testing::remote("far");
        let peer = self.switch.lock().uplinks["net0"].numbers().next().unwrap();
        let (segment, mac) = (remote.segment, remote.mac);
        Heard { segment, mac, peer, address, queue_pair: 77, q_key: 5, longest: 1500, is_fresh: true }
    }
}

#[test]
fn vnics_with_rdma_have_queue_pairs_with_the_q_key_of_their_segment() {
    let scene = Scene::new().up();
    scene.switch.set_port(testing::vnic("plain"), Connect::NoFrontEnd).unwrap();
    scene.port("b");
    let status = scene.wait("two queue pairs", |status| {
        status.pairs.len() == 2 && status.pairs.iter().all(|pair| pair.queue_pair.is_some())
    });
    assert_eq!((status.device.as_str(), status.error, status.mtu), ("rxe0", None, 4096));
    let segment = vnic("a").segment.id();
    let of_key = |number: usize| q_key(&Key::new(key(number).bytes()), segment);
    let numbers: Vec<u32> = status.pairs.iter().filter_map(|pair| pair.queue_pair).collect();
    assert_eq!(numbers.len(), scene.device.queue_pairs().len());
    assert!(numbers.iter().all(|number| scene.device.q_key(*number) == Some(of_key(0))));
    // Another key: the same queue pairs.
    scene.set(uplink(), 1, None).unwrap();
    let end = Instant::now() + Duration::from_secs(30);
    while !numbers.iter().all(|number| scene.device.q_key(*number) == Some(of_key(1))) {
        assert!(Instant::now() < end, "{:?}", scene.status());
        std::thread::sleep(Duration::from_millis(5));
    }
    scene.switch.remove_port("a").unwrap();
    scene.wait("one queue pair", |status| status.pairs.len() == 1);
    scene.wait("no former one", |_| scene.device.queue_pairs().len() == 1);
    scene.switch.remove_uplink("net0").unwrap();
    let end = Instant::now() + Duration::from_secs(30);
    while !scene.device.queue_pairs().is_empty() {
        assert!(Instant::now() < end, "{:?}", scene.device.queue_pairs());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn without_a_key_of_the_segment_there_is_no_queue_pair() {
    let scene = Scene::new();
    scene.switch.set_uplink(uplink(), (vec![], vec![], Default::default()), sockets()).unwrap();
    scene.port("a");
    let status = scene.wait("ready", |status| status.error.is_none() && !status.pairs.is_empty());
    let why = status.pairs[0].error.as_deref().unwrap_or_default();
    assert!(why.contains("segment 1 has no key"), "{why}");
    assert!(scene.device.queue_pairs().is_empty());
    scene.set(uplink(), 0, None).unwrap();
    scene.wait("a queue pair", |status| matches!(&status.pairs[..], [pair] if pair.queue_pair.is_some()));
}

#[test]
fn a_queue_pair_that_fails_is_replaced() {
    let scene = Scene::new().up();
    let first = scene.number("a").unwrap();
    assert!(scene.device.break_queue_pair(first));
    let status = scene.wait("another queue pair", |status| {
        matches!(&status.pairs[..], [QueuePairStatus { queue_pair: Some(number), .. }] if *number != first)
    });
    assert_eq!(status.pairs[0].failures, 1);
    scene.wait("no former one", |_| scene.device.queue_pairs().len() == 1);
}

#[test]
fn a_device_that_makes_no_queue_pair_is_asked_again() {
    let scene = Scene::new();
    for _ in 0..3 {
        scene.device.refuse("ibv_create_qp", libc::ENOMEM);
    }
    scene.set(uplink(), 0, sockets()).unwrap();
    scene.port("a");
    let status =
        scene.wait("a queue pair", |status| status.pairs.iter().any(|pair| pair.queue_pair.is_some()));
    assert_eq!((status.pairs[0].failures, &status.pairs[0].error), (3, &None));
}

#[test]
fn members_are_vnics_of_peers_in_segments_with_queue_pairs() {
    let scene = Scene::new().up();
    let heard = scene.heard(FAR.into());
    let elsewhere = Heard { segment: tidegate_contract::Segment::new(9).unwrap(), ..heard };
    let unnamed = Heard { mac: Mac([2, 9, 9, 9, 9, 9]), queue_pair: 78, ..heard };
    let former = Heard { mac: Mac([2, 9, 9, 9, 9, 8]), address: [127, 0, 0, 3].into(), ..heard };
    scene.switch.rdma.set_heard(vec![heard, elsewhere, unnamed, former]);
    let status = scene.wait("two members", |status| {
        status.members.len() == 2 && status.members.iter().all(|member| member.error.is_none())
    });
    let stale = Heard { is_fresh: false, ..unnamed };
    scene.switch.rdma.set_heard(vec![heard, stale]);
    scene.wait("one that may only send", |status| {
        let why = |at: usize| status.members.get(at)?.error.clone();
        why(0).is_none() && why(1).is_some_and(|why| why.contains("35 s"))
    });
    let told = |member: &MemberStatus| (member.remote.clone(), member.peer.clone(), member.queue_pair);
    let told: Vec<_> = status.members.iter().map(told).collect();
    assert_eq!(told, [(Some("far".into()), "host2".into(), 77), (None, "host2".into(), 78)]);
    scene.switch.remove_port("a").unwrap();
    scene.wait("no member", |status| status.members.is_empty());
}

#[test]
fn members_are_in_the_tables_before_their_address_handles() {
    let scene = Scene::new().up();
    let heard = scene.heard(FAR.into());
    let wished = Wished::all(&scene.switch.lock(), &[heard]).remove(0);
    let mut making = Making::new(wished.lane.clone(), scene.switch.rdma.guests.clone());
    let has_way =
        |tables: &Tables| tables.members().map(|member| member.handles.is_some()).collect::<Vec<_>>();
    assert_eq!(has_way(&making.step(&wished, true, 1).unwrap()), [false]);
    scene.device.refuse("ibv_create_ah", libc::ETIMEDOUT);
    making.make_handles(2);
    assert!(making.step(&wished, false, 3).is_none(), "its host does not answer");
    let due = making.handles_due().unwrap();
    making.make_handles(due);
    assert_eq!(has_way(&making.step(&wished, false, due).unwrap()), [true]);
    assert!(making.step(&wished, false, due).is_none());
}

#[test]
fn a_port_that_is_down_has_no_queue_pairs_and_gets_them_again() {
    let scene = Scene::new().up();
    scene.device.set_active(false);
    let status = scene.wait("no queue pair", |status| status.pairs[0].queue_pair.is_none());
    let why = status.error.unwrap();
    assert!(why.contains("its port is not active"), "{why}");
    assert_eq!(status.pairs[0].error.as_ref(), Some(&why));
    scene.device.set_active(true);
    scene.wait("a queue pair", |status| status.pairs[0].queue_pair.is_some());
    scene.device.set_addresses(&[FAR.into()]);
    let status = scene.wait("no queue pair", |status| status.pairs[0].queue_pair.is_none());
    let why = status.error.unwrap();
    assert!(why.contains("has no RoCE v2 GID of 127.0.0.1") && why.contains("127.0.0.2"), "{why}");
    scene.device.set_addresses(&[FAR.into(), LOCAL.into()]);
    scene.wait("a queue pair", |status| status.pairs[0].queue_pair.is_some());
    scene.device.unplug();
    scene.wait("no queue pair", |status| status.pairs[0].queue_pair.is_none() && status.error.is_some());
    scene.switch.remove_uplink("net0").unwrap();
}

/// Announcements say for which hosts no queue pair is: not for those of another uplink.
#[test]
fn a_segment_on_two_uplinks_has_no_queue_pairs() {
    let scene = Scene::new().up();
    let mut other = Uplink { name: "net1".into(), rdma: None, ..uplink() };
    other.peers[0].name = "host3".into();
    let set = |other: &Uplink, sockets| {
        scene.switch.set_uplink(other.clone(), (vec![], keys(0), Default::default()), sockets).unwrap();
    };
    set(&other, sockets());
    let status = scene.wait("no queue pair", |status| status.pairs[0].queue_pair.is_none());
    let why = status.pairs[0].error.as_deref().unwrap_or_default();
    assert!(why.contains("reaches hosts over net1, too"), "{why}");
    other.peers[0].segments = Some(vec![]);
    set(&other, None);
    scene.wait("a queue pair", |status| status.pairs[0].queue_pair.is_some());
}

#[test]
fn an_uplink_goes_on_without_a_device_of_use() {
    let scene = Scene::new();
    for (name, told) in
        [("nonesuch0", "was not told to use the RDMA device nonesuch0"), ("rxe0", "no RoCE v2 GID")]
    {
        let local = if name == "rxe0" { Some(FAR.into()) } else { Some(LOCAL.into()) };
        scene.set(Uplink { rdma: Some(name.into()), local, ..uplink() }, 0, sockets()).unwrap();
        let status = scene.status();
        assert_eq!(status.device, name);
        let why = status.error.unwrap();
        assert!(why.contains(told), "{why}");
    }
    scene.device.set_link(tidegate_verbs::Link::InfiniBand);
    scene.set(uplink(), 0, sockets()).unwrap();
    let why = scene.status().error.unwrap();
    assert!(why.contains("only RoCE"), "{why}");
}

/// The egress counts the longest frame as admission does: of a vNIC that fills the path's MTU.
#[test]
fn the_largest_frame_of_an_egress_is_that_of_admission() {
    let scene = Scene::new().up();
    for rdma in [Some("rxe0".to_owned()), None] {
        let uplink = Uplink { rdma, ..uplink() };
        let filling = Vnic { mtu: uplink.guest_mtu(false, false), ..vnic("a") };
        let by_vxlan = (filling.largest_frame() + uplink.encapsulation()).min(uplink.largest_frame());
        let on_wire = by_vxlan + grows_by(&filling, &uplink);
        scene.set(uplink, 0, sockets()).unwrap();
        let egress = scene.switch.lock().uplinks["net0"].contract(&Host::default()).egress;
        let EgressKind::Physical { quantum, .. } = egress.kind else { panic!("{:?}", egress.kind) };
        assert_eq!(u64::from(quantum), on_wire, "{egress:?}");
    }
}

/// It is looked at as if time passed.
#[test]
fn an_uplink_is_made_anew_when_its_device_gets_the_gid_or_takes_longer_datagrams() {
    let scene = Scene::new();
    scene.device.set_addresses(&[FAR.into()]);
    scene.device.set_mtu(1024);
    scene.set(uplink(), 0, sockets()).unwrap();
    let second = |second: u64| 1_000_000_000 * second;
    let mut anew = Anew::default();
    let mut look = |at: u64| {
        anew.set(&scene.switch.lock());
        let pause = scene.switch.look_for_more(&mut anew, second(at));
        (scene.switch.lock().uplinks["net0"].broken.clone(), pause)
    };
    scene.device.set_addresses(&[LOCAL.into()]);
    assert_eq!([look(10), look(30)], [(None, None), (None, None)], "no vNIC wants RDMA");
    scene.port("a");
    look(40);
    let (why, pause) = look(50);
    let why = why.expect("the GID is there");
    assert!(why.contains("of 1024 bytes") && why.contains("of 0 bytes"), "{why}");
    assert_eq!(pause, Some(Duration::from_secs(2)));
    scene.set(uplink(), 0, sockets()).unwrap();
    scene.wait("a queue pair", |status| status.pairs.iter().any(|pair| pair.queue_pair.is_some()));
    assert_eq!(scene.status().mtu, 1024);
    scene.device.set_mtu(4096);
    for at in [100, 200, 640] {
        assert_eq!(look(at).0, None, "too soon");
    }
    let why = look(660).0.expect("frames of 1,500 bytes fit");
    assert!(why.contains("of 4096 bytes") && why.contains("of 1024 bytes"), "{why}");
    scene.set(uplink(), 0, sockets()).unwrap();
    assert_eq!((scene.status().mtu, look(9000).0, look(9100).0), (4096, None, None), "nothing is missing");
}

#[test]
fn an_uplink_stays_as_it_is_if_no_other_lane_can_be_made() {
    let scene = Scene::new();
    scene.device.set_addresses(&[FAR.into()]);
    scene.set(uplink(), 0, sockets()).unwrap();
    scene.port("a");
    scene.device.set_addresses(&[LOCAL.into()]);
    scene.device.refuse("ibv_reg_mr", libc::ENOMEM);
    let mut anew = Anew::default();
    anew.set(&scene.switch.lock());
    for at in [1, 11, 13, 610] {
        scene.switch.look_for_more(&mut anew, 1_000_000_000 * at);
    }
    assert_eq!(scene.switch.lock().uplinks["net0"].broken, None);
    scene.switch.look_for_more(&mut anew, 1_000_000_000 * 612);
    assert!(scene.switch.lock().uplinks["net0"].broken.is_some(), "ten minutes later");
}

#[test]
fn a_device_changes_with_new_sockets_alone() {
    let scene = Scene::new().up();
    let refused = scene.set(Uplink { rdma: None, ..uplink() }, 0, None).unwrap_err();
    assert!(refused.contains("cannot change while it keeps its sockets"), "{refused}");
    assert!(scene.number("a").is_some(), "as before");
    scene.set(Uplink { rdma: None, ..uplink() }, 0, sockets()).unwrap();
    assert_eq!(scene.switch.uplinks().remove(0).rdma, None);
    scene.set(uplink(), 0, sockets()).unwrap();
    scene.wait("a queue pair", |status| status.pairs.iter().any(|pair| pair.queue_pair.is_some()));
}
