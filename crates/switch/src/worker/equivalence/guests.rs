//! The guests of the comparison: frames, buffers, completions.

use crate::frame::testing::{Frame, arp};
use crate::frame::vnet_hdr::{GSO_TCPV4, GSO_TCPV6, NEEDS_CSUM, VnetHdr};
use crate::vhost_user::VringSetup;
use crate::virtio::GuestMemory;
use crate::virtio::memory::RegionSpec;
use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::Arc;
use tidegate_contract::Mac;
use tidegate_frontend::driver::{Buffer, DriverFeatures, DriverQueue};
use tidegate_frontend::memory::SharedMemory;

/// Half of it may be in flight: more than a test's frames, so that no path has to make room.
pub(in crate::worker) const TX_RING: u16 = 1024;
pub(in crate::worker) const RX_RING: u16 = 128;
/// Bytes of a receive buffer before anything is received.
pub(in crate::worker) const BLANK: u8 = 0xa5;

pub(in crate::worker) const CSUM: u64 = 1 << 1;
pub(in crate::worker) const OFFLOADS: u64 = 1 << 7 | 1 << 8 | 1 << 54 | 1 << 55;
pub(in crate::worker) const MERGEABLE: u64 = 1 << 15;
pub(in crate::worker) const INDIRECT: u64 = 1 << 28;
pub(in crate::worker) const EVENTS: u64 = 1 << 29;
pub(in crate::worker) const V1: u64 = 1 << 32;
pub(in crate::worker) const PACKED: u64 = 1 << 34;
pub(in crate::worker) const IN_ORDER: u64 = 1 << 35;

/// How a receive buffer lies in memory.
#[derive(Clone, Copy, Debug)]
pub(in crate::worker) enum Room {
    Whole(u32),
    HeaderApart(u32),
}

#[derive(Clone, Debug)]
pub(in crate::worker) struct Sent {
    pub(in crate::worker) body: Body,
    pub(in crate::worker) to: To,
    pub(in crate::worker) from: Source,
    pub(in crate::worker) asks: Asks,
    pub(in crate::worker) layout: Layout,
}

#[derive(Clone, Debug)]
pub(in crate::worker) enum Body {
    Good(Frame),
    Hostile(Vec<u8>),
    Arp,
}

#[derive(Clone, Copy, Debug)]
pub(in crate::worker) enum To {
    Guest(usize),
    Everybody,
    Multicast,
    /// The link itself.
    Link,
    Nobody,
    /// An address behind another guest, known once it has sent.
    Other(u8),
}

#[derive(Clone, Copy, Debug)]
pub(in crate::worker) enum Source {
    Itself,
    /// Another contract's address.
    Guest(usize),
    /// An address behind the sender.
    Other(u8),
}

/// The request in a virtio header.
#[derive(Clone, Copy, Debug)]
pub(in crate::worker) enum Asks {
    Nothing,
    Checksum,
    Segments(u16),
    Anything([u8; VnetHdr::LEN]),
}

/// A frame's place in memory.
#[derive(Clone, Copy, Debug)]
pub(in crate::worker) enum Layout {
    Whole,
    HeaderApart,
    CutAt(usize),
    Table,
    /// Only the first bytes exist.
    Only(usize),
}

pub(in crate::worker) fn mac(guest: usize) -> Mac {
    Mac([0x52, 0x54, 0, 0, 0, guest as u8])
}

pub(in crate::worker) fn behind(last: u8) -> Mac {
    Mac([0x52, 0x54, 0, 7, 0, last])
}

impl Sent {
    /// Returns the virtio header and the frame.
    pub(in crate::worker) fn bytes(&self, sender: usize, header_len: usize) -> Vec<u8> {
        let mut vnet = [0; VnetHdr::LEN];
        let mut checksum = |at: u16, offset: u16| {
            vnet[0] = NEEDS_CSUM;
            vnet[6..8].copy_from_slice(&at.to_le_bytes());
            vnet[8..10].copy_from_slice(&offset.to_le_bytes());
        };
        if let Body::Good(frame) = &self.body {
            let l3 = if frame.vlan.is_some() { 18 } else { 14 };
            let extensions: usize = frame.extensions.iter().map(|(_, bytes)| bytes.len()).sum();
            let l4 = l3 + if frame.v6 { 40 + extensions } else { 20 + frame.ip_options };
            if !matches!(self.asks, Asks::Nothing) {
                checksum(l4 as u16, if frame.tcp { 16 } else { 6 });
            }
            if let Asks::Segments(size) = self.asks {
                vnet[1] = if frame.v6 { GSO_TCPV6 } else { GSO_TCPV4 };
                vnet[4..6].copy_from_slice(&size.to_le_bytes());
            }
        }
        if let Asks::Anything(bytes) = self.asks {
            vnet = bytes;
        }
        let mut frame = match &self.body {
            Body::Good(frame) => frame.build(),
            Body::Hostile(bytes) => bytes.clone(),
            Body::Arp => arp(mac(sender), [10, 1, 2, 3]),
        };
        if frame.len() >= 12 {
            let to = match self.to {
                To::Guest(guest) => mac(guest),
                To::Everybody => Mac([0xff; 6]),
                To::Multicast => Mac([0x33, 0x33, 0, 0, 0, 1]),
                To::Link => Mac([0x01, 0x80, 0xc2, 0, 0, 0x0e]),
                To::Nobody => Mac([0x52, 0x54, 0, 9, 9, 9]),
                To::Other(last) => behind(last),
            };
            let from = match self.from {
                Source::Itself => mac(sender),
                Source::Guest(guest) => mac(guest),
                Source::Other(last) => behind(last),
            };
            frame[..6].copy_from_slice(&to.0);
            frame[6..12].copy_from_slice(&from.0);
        }
        let mut bytes = vnet[..header_len].to_vec();
        bytes.extend(frame);
        if let Layout::Only(len) = self.layout {
            bytes.truncate(len.max(1));
        }
        bytes
    }
}

/// A buffer that came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::worker) struct Received {
    pub(in crate::worker) queue: usize,
    pub(in crate::worker) head: u16,
    pub(in crate::worker) len: u32,
    /// All bytes of the buffer, unwritten ones included.
    pub(in crate::worker) bytes: Vec<u8>,
}

pub(in crate::worker) struct Guest {
    pub(in crate::worker) memory: Arc<SharedMemory>,
    pub(in crate::worker) features: u64,
    pub(in crate::worker) tx: DriverQueue,
    pub(in crate::worker) rx: Vec<DriverQueue>,
    pub(in crate::worker) given: HashMap<(usize, u16), Vec<Buffer>>,
    pub(in crate::worker) received: Vec<Received>,
    pub(in crate::worker) sent: usize,
    pub(in crate::worker) completed: usize,
}

impl Guest {
    pub(in crate::worker) fn new(features: u64, queues: usize) -> Self {
        let memory = Arc::new(SharedMemory::new(0, 16 << 20).unwrap());
        let has = |feature| features & feature != 0;
        let driver = DriverFeatures {
            packed: has(PACKED),
            event_idx: has(EVENTS),
            indirect: has(INDIRECT),
            in_order: has(IN_ORDER),
        };
        let tx = DriverQueue::new(&memory, TX_RING, driver);
        let rx = (0..queues).map(|_| DriverQueue::new(&memory, RX_RING, driver)).collect();
        let (given, received) = (HashMap::new(), Vec::new());
        Self { memory, features, tx, rx, given, received, sent: 0, completed: 0 }
    }

    pub(in crate::worker) fn header_len(&self) -> usize {
        if self.features & (V1 | MERGEABLE) == 0 { VnetHdr::LEGACY_LEN } else { VnetHdr::LEN }
    }

    pub(in crate::worker) fn map(&self) -> Arc<GuestMemory> {
        let fd = self.memory.fd().as_fd().try_clone_to_owned().unwrap();
        let (user_addr, size) = (self.memory.user_addr(), self.memory.size());
        let region = RegionSpec { guest_addr: 0, user_addr, size, mmap_offset: 0, fd };
        Arc::new(GuestMemory::map(vec![region]).unwrap())
    }

    pub(in crate::worker) fn setup(&self, ring: &DriverQueue) -> VringSetup {
        let user = |addr| self.memory.to_user(addr);
        VringSetup {
            size: ring.size(),
            desc: user(ring.desc_addr()),
            avail: user(ring.avail_addr()),
            used: user(ring.used_addr()),
            base: if self.features & PACKED != 0 { 0x8000_8000 } else { 0 },
            log: None,
            kick: None,
            call: None,
            inflight: None,
        }
    }

    pub(in crate::worker) fn send(&mut self, sent: &Sent, bytes: &[u8]) {
        let at = self.memory.alloc(bytes.len() as u64, 1);
        self.memory.write(at, bytes);
        let len = bytes.len();
        let cut = match sent.layout {
            Layout::HeaderApart | Layout::Table => self.header_len(),
            Layout::CutAt(at) => at,
            Layout::Whole | Layout::Only(_) => len,
        };
        let cut = cut.clamp(1, len);
        let mut buffers = vec![Buffer::readable(at, cut as u32)];
        if cut < len {
            buffers.push(Buffer::readable(at + cut as u64, (len - cut) as u32));
        }
        let table = matches!(sent.layout, Layout::Table) && self.features & INDIRECT != 0;
        let added = if table { self.tx.add_indirect(&buffers) } else { self.tx.add(&buffers) };
        added.expect("room for all frames of a test");
        self.sent += 1;
    }

    pub(in crate::worker) fn give(&mut self, count: u16, layout: Room) {
        for (queue, rx) in self.rx.iter_mut().enumerate() {
            for _ in 0..count {
                let (first, second) = match layout {
                    Room::Whole(len) => (len, 0),
                    Room::HeaderApart(len) => (VnetHdr::LEN as u32, len),
                };
                let at = self.memory.alloc(u64::from(first + second), 1);
                self.memory.write(at, &vec![BLANK; (first + second) as usize]);
                let mut buffers = vec![Buffer::writable(at, first)];
                if second > 0 {
                    buffers.push(Buffer::writable(at + u64::from(first), second));
                }
                let Some(head) = rx.add(&buffers) else { break };
                self.given.insert((queue, head), buffers);
            }
            let _ = rx.publish();
        }
    }

    pub(in crate::worker) fn reap(&mut self) {
        while self.tx.reap().is_some() {
            self.completed += 1;
        }
        for (queue, rx) in self.rx.iter_mut().enumerate() {
            while let Some(used) = rx.reap() {
                let buffers = self.given.remove(&(queue, used.head)).expect("a buffer that was given");
                let bytes = buffers.iter().flat_map(|b| self.memory.bytes(b.addr, b.len as usize)).collect();
                self.received.push(Received { queue, head: used.head, len: used.len, bytes });
            }
        }
    }
}
