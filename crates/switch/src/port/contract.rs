//! A compiled contract: a worker's data for each frame.

use crate::capacity::VNICS;
use crate::fdb::{PortIndex, SegmentIndex};
use crate::frame::Policy;
use crate::link::vxlan::Peers;
use crate::sched::{EgressConfig, EgressKind, FlowConfig, SourceConfig, SourceId, hold_limit};
use std::sync::Arc;
use tidegate_contract::frame::SUPER_FRAME_ON_WIRE;
use tidegate_contract::{Bytes, Discipline, Host, Queueing, Rate, Vnic};

/// Most frames of one source that wait for one egress.
const SOURCE_FRAMES: u32 = 256;
/// Most bytes that wait for one egress without `queue` in its contract.
const QUEUE: u64 = 8 << 20;

/// A set of ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortSet([u64; VNICS / 64]);

impl PortSet {
    /// No vNIC.
    pub const EMPTY: Self = Self([0; VNICS / 64]);

    /// Adds a port.
    pub fn insert(&mut self, port: PortIndex) {
        self.0[port as usize / 64] |= 1 << (port % 64);
    }

    /// Removes a port.
    pub fn remove(&mut self, port: PortIndex) {
        self.0[port as usize / 64] &= !(1 << (port % 64));
    }

    /// Whether no port is in it.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// All ports, from the lowest on.
    pub fn iter(&self) -> impl Iterator<Item = PortIndex> {
        let words = (0..).zip(self.0).filter(|(_, bits)| *bits != 0);
        words.flat_map(|(word, bits)| {
            let next = |bits: &u64| Some(bits & (bits - 1)).filter(|rest| *rest != 0);
            let each = std::iter::successors(Some(bits), next);
            each.map(move |bits| word * 64 + bits.trailing_zeros() as PortIndex)
        })
    }

    /// Whether a port is in it.
    #[inline]
    pub fn contains(&self, port: PortIndex) -> bool {
        self.0[port as usize / 64] >> (port % 64) & 1 == 1
    }
}

/// Every worker's knowledge of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortInfo {
    /// The worker that owns it.
    pub worker: u16,
    /// Its segment.
    pub segment: SegmentIndex,
    /// Td, ns.
    pub deadline: Option<u64>,
    /// Guaranteed rate towards `to`.
    pub min: Option<Rate>,
    /// Burst of the guarantee.
    pub min_burst: u64,
    /// Weight.
    pub weight: u32,
    /// Egresses to which deadline and guarantee apply; of an uplink, those to which frames of other hosts with a
    /// deadline may come.
    pub to: Box<PortSet>,
    /// The part of Td (ns) that the network and the other hosts behind an uplink have, by the uplink's port.
    pub away: Box<[(PortIndex, u64)]>,
    /// Of an uplink: the relative deadline (ns) of frames with a stamp, from their arrival on.
    pub arrivals: Option<u64>,
    /// It may have other MACs behind it than the contract's.
    pub learns: bool,
    /// It receives frames for the link itself.
    pub control: bool,
    /// Its link leads to other hosts.
    pub is_uplink: bool,
    /// Copies that a flood to it makes, by segment; 1 of others.
    pub copies: Arc<[u16]>,
}

impl PortInfo {
    /// Makes that of an uplink: a member of segments with any addresses behind it, without a promise of its
    /// own. A flood counts as one copy there until its peers are [known](Self::with_peers).
    pub fn of_uplink(worker: u16) -> Self {
        Self {
            worker,
            segment: SegmentIndex::OF_EACH_FRAME,
            deadline: None,
            min: None,
            min_burst: SUPER_FRAME_ON_WIRE,
            weight: 1,
            to: Box::new(PortSet::EMPTY),
            away: Box::default(),
            arrivals: None,
            learns: true,
            control: false,
            is_uplink: true,
            copies: Arc::default(),
        }
    }

    /// Counts a copy of a flood for each of an uplink's peers.
    #[must_use]
    pub fn with_peers(mut self, peers: &Peers) -> Self {
        self.copies = peers.copies().clone();
        self
    }

    /// Returns how many copies a flood to it makes.
    #[inline]
    pub fn copies_in(&self, segment: SegmentIndex) -> u64 {
        self.copies.get(usize::from(segment.0)).map_or(1, |copies| u64::from(*copies))
    }

    /// Makes it from a contract; `to` are the ports that its names mean now.
    pub fn new(vnic: &Vnic, worker: u16, segment: SegmentIndex, to: PortSet) -> Self {
        Self {
            worker,
            segment,
            deadline: vnic.deadline.map(|d| d.get()),
            min: vnic.tx.min,
            min_burst: vnic.tx.burst.map_or(SUPER_FRAME_ON_WIRE, |b| b.get().max(SUPER_FRAME_ON_WIRE)),
            weight: vnic.weight,
            to: Box::new(to),
            away: Box::default(),
            arrivals: None,
            learns: vnic.allowed.any_mac,
            control: vnic.allowed.control,
            is_uplink: false,
            copies: Arc::default(),
        }
    }

    /// Returns the deadline towards `egress` (ns): Td, or this host's part of it at an uplink. `None` if it does not
    /// apply there.
    #[inline]
    pub fn deadline_to(&self, egress: PortIndex) -> Option<u64> {
        let deadline = self.deadline.filter(|_| self.to.contains(egress))?;
        // Nearly always empty.
        let away = self.away.iter().find(|(uplink, _)| *uplink == egress).map_or(0, |(_, away)| *away);
        Some(deadline.saturating_sub(away).max(1))
    }

    /// Returns the sources that `port`, whose data this is, can be in a scheduler.
    pub fn sources(&self, port: PortIndex) -> impl Iterator<Item = SourceId> + use<> {
        let arrivals = self.arrivals.is_some().then_some(SourceId::arrivals(port));
        [Some(port.into()), arrivals].into_iter().flatten()
    }

    /// Returns the settings of one of its [sources](Self::sources) for the egress's scheduler.
    pub fn config_of(&self, id: SourceId, egress: PortIndex, at: &EgressConfig) -> SourceConfig {
        match id {
            SourceId::Port(_) => self.source_config(egress, at),
            // Admission and the link's memory bound them.
            SourceId::Remote(_) => SourceConfig {
                deadline: self.arrivals,
                min: None,
                min_burst: self.min_burst,
                weight: self.weight,
                cap_bytes: QUEUE,
                cap_frames: u32::MAX,
            },
        }
    }

    /// Returns this source's settings for the egress's scheduler.
    pub fn source_config(&self, egress: PortIndex, at: &EgressConfig) -> SourceConfig {
        let promised = self.to.contains(egress);
        // A plain FIFO has no sources, only its own limit.
        let (cap_bytes, cap_frames) = match at.discipline {
            Discipline::Fifo => (u64::MAX, u32::MAX),
            Discipline::Contract => (source_bytes(at.rate), SOURCE_FRAMES),
        };
        SourceConfig {
            deadline: self.deadline_to(egress),
            min: self.min.filter(|_| promised && self.deadline.is_none()),
            min_burst: self.min_burst,
            weight: self.weight,
            cap_bytes,
            cap_frames,
        }
    }
}

/// Returns the most bytes of one source that wait for one egress: 4 ms at its rate, at least two
/// super-frames so that a sender of super-frames never runs dry.
fn source_bytes(rate: Option<Rate>) -> u64 {
    let at_rate = rate.map_or(u64::MAX, |r| r.bits() / 8 * 4 / 1000);
    at_rate.clamp(2 * SUPER_FRAME_ON_WIRE, 1 << 20)
}

/// A port's part of its contract. Fields in this order: those for each frame come last, beside those of a
/// [port](super::Port)'s turn.
#[repr(C)]
pub struct PortContract {
    /// Rate limit and burst of its frames.
    pub tx_limit: Option<(Rate, Bytes)>,
    /// Real-time: super-frames are cut to the burst.
    pub cut_to: Option<u32>,
    /// Settings of its egress.
    pub egress: EgressConfig,
    /// How frames wait for its rates.
    pub queueing: Queueing,
    /// Longest wait of a frame for this vNIC (ns).
    pub hold: u64,
    /// The cap on copies of flooded frames.
    pub flood: (Rate, Bytes),
    /// Anti-spoofing.
    pub policy: Policy,
    /// Td, ns.
    pub deadline: Option<u64>,
    /// Largest single frame that it may send (bytes).
    pub frame_max: u32,
    /// Share of its worker's time.
    pub weight: u32,
    /// Outer headers of each of its frames on the wire (bytes); 0 at a vNIC.
    pub overhead: u32,
    /// Its link leads to other hosts: its frames name their segments, and their hosts have checked them.
    pub is_uplink: bool,
}

impl PortContract {
    /// Makes that of an uplink with this capacity (bit/s on the wire) for inner frames of at most
    /// `frame_max` bytes, each `overhead` bytes longer on the wire, but by RDMA: `largest` is the longest of both there.
    pub fn of_uplink(rate: Rate, frame_max: u32, overhead: u32, largest: u32, host: &Host) -> Self {
        Self {
            policy: Policy::open(),
            weight: 1,
            overhead,
            deadline: None,
            tx_limit: None,
            cut_to: None,
            frame_max,
            egress: EgressConfig::physical(rate, largest, host.host_latency.get(), QUEUE),
            queueing: Queueing::Fifo,
            hold: hold_limit(Some(rate)),
            flood: (host.flood, host.flood_burst),
            is_uplink: true,
        }
    }

    /// From a contract and the host's settings.
    pub fn new(vnic: &Vnic, host: &Host) -> Self {
        let queue = vnic.rx.queue.map_or(QUEUE, |q| q.get());
        let frame_max = u32::from(vnic.mtu) + 18;
        Self {
            policy: Policy::from(vnic),
            weight: vnic.weight,
            overhead: 0,
            deadline: vnic.deadline.map(|d| d.get()),
            tx_limit: vnic.tx.max.map(|max| (max, vnic.tx.burst_or_default(max))),
            cut_to: vnic.deadline.and(vnic.tx.burst).map(|b| b.get() as u32),
            frame_max,
            egress: EgressConfig {
                rate: vnic.rx.max,
                burst: vnic.rx.max.map_or(Bytes::new(u64::MAX), |max| vnic.rx.burst_or_default(max)),
                kind: EgressKind::Virtual,
                discipline: vnic.rx.discipline,
                queue,
                flows: match (vnic.queueing, vnic.rx.max, vnic.rx.discipline) {
                    (Queueing::Flows(flows), Some(rate), Discipline::Contract) => {
                        Some(FlowConfig::new(&flows, frame_max, rate))
                    }
                    _ => None,
                },
            },
            queueing: vnic.queueing,
            hold: hold(vnic, queue),
            flood: (host.flood, host.flood_burst),
            is_uplink: false,
        }
    }
}

/// A FIFO acts like a plain interface, whose queue holds frames without a time limit.
fn hold(vnic: &Vnic, queue: u64) -> u64 {
    let limit = hold_limit(vnic.rx.max);
    match (vnic.rx.discipline, vnic.rx.max) {
        (Discipline::Fifo, Some(rate)) => limit.max(queue.saturating_mul(16_000_000_000) / rate.bits()),
        _ => limit,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_returns_each_inserted_port_once() {
        let mut set = PortSet::EMPTY;
        let ports = [0, 1, 63, 64, 700, 1023];
        for port in ports {
            set.insert(port);
            set.insert(port);
        }
        set.insert(5);
        set.remove(5);
        assert!(set.contains(700) && !set.contains(5));
        assert_eq!(set.iter().collect::<Vec<_>>(), ports);
    }
}
