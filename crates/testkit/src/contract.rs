//! Contracts for tests.

use tidegate_contract::{
    Allowed, Attach, Mac, Queueing, Rx, Segment, SocketMode, SocketOwner, Tx, VfOptions, Vnic,
};

/// Returns a best-effort contract whose MAC ends in `mac`.
pub fn vnic(name: &str, mac: u8) -> Vnic {
    Vnic {
        name: name.into(),
        attach: Attach::VhostUser {
            path: format!("/run/tidegate/vm/{name}.sock").into(),
            mode: SocketMode::Server,
            owner: SocketOwner::default(),
        },
        mac: Mac([0x52, 0x54, 0, 0, 0, mac]),
        segment: Segment::new(1).expect("in range"),
        tx: Tx::default(),
        rx: Rx::default(),
        queueing: Queueing::default(),
        weight: 1,
        deadline: None,
        to: vec![],
        allowed: Allowed::default(),
        mtu: 1500,
        queues: 1,
        guest: None,
        on_refused: None,
        on_unreachable: None,
        transport: tidegate_contract::Transport::default(),
        zero_copy: false,
    }
}

/// Returns a contract for a netdev, with 1 Mbit/s of tx.max.
pub fn netdev(name: &str, mac: u8, interface: &str) -> Vnic {
    let max = tidegate_contract::Rate::from_bits(1_000_000);
    Vnic {
        attach: Attach::Netdev { name: interface.into() },
        segment: Segment::new(0).expect("in range"),
        tx: Tx { max, ..Tx::default() },
        ..vnic(name, mac)
    }
}

/// Returns a tap attachment.
pub fn tap(name: &str) -> Attach {
    Attach::Tap { name: name.into(), netns: None }
}

/// Returns a contract for a virtual function in segment 0, without limits.
pub fn vf(name: &str, mac: u8, pf: &str, index: u16) -> Vnic {
    Vnic {
        attach: Attach::Vf { pf: pf.into(), index, options: VfOptions::default() },
        segment: Segment::new(0).expect("in range"),
        ..vnic(name, mac)
    }
}
