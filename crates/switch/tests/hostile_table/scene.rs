//! The liar's port, and the guests that it talks to.

use crate::harness::{Guest, TestSwitch, contract, udp, vnic, without_buffers};
use std::any::Any;
use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;
use tidegate_contract::Vnic;
use tidegate_evidence::Connection;
use tidegate_frontend::front_end::{FrontEnd, Options, RING_PACKED};
use tidegate_switch::control::PortStatus;

/// Kept alive until the outcome is known.
pub type Kept = Box<dyn Any>;

#[derive(Clone, Copy)]
pub enum Layout {
    Split,
    Packed,
    Both,
}

/// What a lie must cost.
#[derive(Clone, Copy)]
pub enum Costs {
    /// The connection: the kind in its counter, and part of the reason.
    Connection(&'static str, &'static str),
    /// Frames dropped for this reason; the connection stays.
    Frame(&'static str),
    /// At most frames; the connection stays.
    Nothing,
}

#[derive(Clone)]
pub struct Case {
    pub name: &'static str,
    pub layout: Layout,
    pub costs: Costs,
    pub lie: fn(&mut Scene) -> Kept,
}

pub fn case(name: &'static str, layout: Layout, costs: Costs, lie: fn(&mut Scene) -> Kept) -> Case {
    Case { name, layout, costs, lie }
}

pub struct Scene<'h> {
    pub host: &'h TestSwitch,
    pub packed: bool,
    pub vnic: Vnic,
    /// An honest guest that exchanges frames with the liar.
    pub peer: Guest,
    /// A guest that gives no buffers.
    pub stuck: Guest,
}

impl<'h> Scene<'h> {
    pub fn new(host: &'h TestSwitch, packed: bool) -> Self {
        let liar = contract(&vnic("liar", 3, ""));
        host.add(&liar);
        let mut peer = host.guest(&vnic("peer", 4, ""));
        let stuck = without_buffers(host, &mut peer);
        Self { host, packed, vnic: liar, peer, stuck }
    }

    pub fn connect(&self) -> FrontEnd {
        self.connect_with(Options::default())
    }

    pub fn connect_with(&self, mut options: Options) -> FrontEnd {
        options.features |= if self.packed { RING_PACKED } else { 0 };
        let front = FrontEnd::connect(self.host.socket("liar"), options).unwrap();
        assert_eq!(front.features() & RING_PACKED != 0, self.packed);
        self.host.until(|| self.liar().connection == Connection::Up);
        front
    }

    pub fn dial(&self) -> UnixStream {
        UnixStream::connect(self.host.socket("liar")).unwrap()
    }

    pub fn frame(&self, payload: &[u8]) -> Vec<u8> {
        udp(self.peer.mac(), self.vnic.mac.0, payload)
    }

    pub fn send_to_liar(&mut self, count: usize) {
        let frame = udp(self.vnic.mac.0, self.peer.mac(), &[9; 1000]);
        for _ in 0..count {
            self.peer.send(&frame);
        }
    }

    pub fn liar(&self) -> PortStatus {
        self.host.port("liar")
    }

    pub fn drops(&self) -> BTreeMap<String, u64> {
        let stats = self.host.stats("liar");
        let mut drops = stats.tx.dropped;
        for (reason, count) in stats.rx.dropped {
            *drops.entry(reason).or_default() += count;
        }
        drops
    }

    pub fn assert_serves(&mut self, after: &str) {
        self.peer.drain();
        self.host.until(|| self.peer.front.in_flight(0) == 0);
        let mut front = self.connect();
        let frame = self.frame(after.as_bytes());
        assert!(front.send(0, &[&[0; 12][..], &frame].concat()));
        loop {
            let got = self.peer.receive();
            if got == frame {
                break;
            }
        }
        self.send_to_liar(1);
        self.host.until(|| front.receive(0).is_some());
        drop(front);
        self.host.until(|| self.liar().connection == Connection::Waiting);
    }
}
