//! Contracts for tests, and a check that traffic keeps to one.

pub mod envelope;

use crate::{Allowed, Attach, Mac, Queueing, Rx, Segment, SocketMode, SocketOwner, Tx, Vnic};

/// Makes a best-effort vhost-user vNIC in segment 1; its MAC and socket follow from its name.
///
/// # Panics
/// `name` breaks the rules of names.
pub fn vnic(name: &str) -> Vnic {
    // FNV-1a: different names, different MACs.
    let hash =
        name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    let [a, b, c, d, e, ..] = hash.to_be_bytes();
    let vnic = Vnic {
        name: name.into(),
        attach: Attach::VhostUser {
            path: format!("/run/tidegate/vm/{name}.sock").into(),
            mode: SocketMode::Server,
            owner: SocketOwner::default(),
        },
        mac: Mac([0x02, a, b, c, d, e]),
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
    };
    vnic.check().expect("a valid name");
    vnic
}

/// Returns the socket of a vNIC that is a port of the switch.
pub fn vhost_user_socket(vnic: &Vnic) -> Option<std::path::PathBuf> {
    match &vnic.attach {
        Attach::VhostUser { path, .. } => Some(path.clone()),
        _ => None,
    }
}
