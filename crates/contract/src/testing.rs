//! Contracts for tests, and a check whether traffic keeps to one.

pub mod envelope;

use crate::{
    Allowed, Attach, Envelope, Flow, Mac, Nanos, Peer, Queueing, Rate, Remote, Rx, Segment, SocketMode,
    SocketOwner, Tunnel, Tx, Uplink, Vnic,
};

/// Returns a best-effort vhost-user vNIC in segment 1, whose MAC and socket follow from its name.
///
/// # Panics
/// If `name` is invalid.
pub fn vnic(name: &str) -> Vnic {
    let vnic = Vnic {
        name: name.into(),
        attach: Attach::VhostUser {
            path: format!("/run/tidegate/vm/{name}.sock").into(),
            mode: SocketMode::Server,
            owner: SocketOwner::default(),
        },
        mac: mac(name),
        segment: Segment::new(1).expect("in range"),
        tx: Tx::default(),
        rx: Rx::default(),
        queueing: Queueing::default(),
        weight: 1,
        deadline: None,
        to: Vec::new(),
        allowed: Allowed::default(),
        mtu: 1500,
        queues: 1,
        guest: None,
        on_refused: None,
        on_unreachable: None,
        transport: crate::Transport::default(),
        zero_copy: false,
    };
    vnic.check().expect("a valid name");
    vnic
}

/// Returns an IPv4 uplink of 10 Gbit/s and a latency of 100 us, with the peer `host2`.
pub fn uplink(name: &str) -> Uplink {
    let peer = Peer {
        name: "host2".into(),
        address: Some([192, 0, 2, 2].into()),
        segments: None,
        latency: None,
        arrival_budget: None,
        stamps: true,
    };
    let uplink = Uplink {
        name: name.into(),
        kind: crate::UplinkKind::Vxlan,
        local: Some([192, 0, 2, 1].into()),
        device: None,
        port: 4789,
        notice_port: 29_796,
        rate: Rate::from_bits(10_000_000_000).expect("in range"),
        mtu: 1500,
        latency: Some(Nanos::new(100_000)),
        arrival_budget: Nanos::new(500_000),
        peers: vec![peer],
        rdma: None,
        controlled: false,
    };
    uplink.check().expect("a valid name");
    uplink
}

/// Returns a best-effort vNIC of `host2` in segment 1, whose MAC follows from its name.
pub fn remote(name: &str) -> Remote {
    let remote = Remote {
        name: name.into(),
        mac: mac(name),
        segment: Segment::new(1).expect("in range"),
        peer: "host2".into(),
        addresses: Vec::new(),
        tx: Envelope::default(),
        deadline: None,
        to: Vec::new(),
    };
    remote.check().expect("a valid name");
    remote
}

/// Returns a flow without a tunnel and without fields, which matches all frames of `device`.
pub fn flow(device: &str) -> Flow {
    Flow::new(device, Tunnel::None)
}

/// Returns the FNV-1a hash of a name: different names, different MACs.
fn mac(name: &str) -> Mac {
    let hash =
        name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    let [a, b, c, d, e, ..] = hash.to_be_bytes();
    Mac([0x02, a, b, c, d, e])
}

/// Returns the socket of a vhost-user vNIC.
pub fn vhost_user_socket(vnic: &Vnic) -> Option<std::path::PathBuf> {
    match &vnic.attach {
        Attach::VhostUser { path, .. } => Some(path.clone()),
        _ => None,
    }
}
