//! The switch's work as stages, for the plan of CPUs. Pure.
//!
//! ```text
//!  contracts of ports, their workers ───────────┐
//!  counters ─▶ load: over the last minute ──────┼─▶ stages: workers, ports; links between them
//!  traffic between ports, as the switch tells ──┘
//! ```
//!
//! - `load`: the load of workers and vNICs
//!
//! The contracts, and the uplinks with what is behind their peers, are those of our record: a port of which the switch alone tells has no
//! stage. All else is the switch's word: workers, CPUs and loads are bounded, and a link joins only ports.

mod load;

use load::{Count, Rates, WHOLE};
pub use load::{Loads, Measured};
use std::collections::{BTreeMap, BTreeSet};
use tidegate_contract::{Rate, Remote, UPLINK, Vnic};
use tidegate_cores::cpus::Cpus;
use tidegate_cores::stage::{Handle, Link, Stage};
use tidegate_evidence::Evidence;

/// Bytes that a worker copies in a millionth of a second.
const COPIED: u64 = 2500;
/// Cost of a frame besides its bytes, in bytes copied.
const FRAME: u64 = 256;
/// Bytes of a frame, where only a rate is known.
const FULL_FRAME: u64 = 1500;

/// A port of the switch.
#[derive(Clone, Debug)]
pub struct Port<'a> {
    /// Its contract.
    pub vnic: &'a Vnic,
    /// Its worker.
    pub worker: usize,
    /// Its deadline is not in force.
    pub suspended: bool,
}

/// An uplink of the switch.
#[derive(Clone, Debug)]
pub struct UplinkPort<'a> {
    /// The uplink.
    pub name: &'a str,
    /// Its worker, which it keeps.
    pub worker: usize,
    /// vNICs behind its peers.
    pub remotes: &'a [Remote],
}

/// The switch at one look.
#[derive(Debug)]
pub struct Scene<'a> {
    /// The ports.
    pub ports: Vec<Port<'a>>,
    /// The uplinks.
    pub uplinks: Vec<UplinkPort<'a>>,
    /// The CPU to which each worker is bound. Its length is the number of workers.
    pub bound: Vec<Option<usize>>,
    /// The option that binds workers, if the switch does not choose their CPUs.
    pub workers_pinned: Option<&'static str>,
    /// The option that keeps ports at their workers.
    pub ports_pinned: Option<&'static str>,
    /// Loads over the last minute.
    pub measured: Measured,
}

/// Returns those of the ports or uplinks of which the switch tells that are on record, each once, with the record's part.
pub fn on_record<'a, T, R>(
    told: impl Iterator<Item = (&'a str, T)>,
    record: impl Fn(&str) -> Option<R>,
) -> impl Iterator<Item = (T, R)> {
    let mut seen = BTreeSet::new();
    told.filter(move |(name, _)| seen.insert(*name)).filter_map(move |(name, it)| Some((it, record(name)?)))
}

/// An uplink never moves.
const UPLINK_STAYS: &str = "the switch, which moves no uplink";

impl Scene<'_> {
    /// Returns the stages of the switch: its workers, their ports and uplinks.
    pub fn stages(&self) -> Vec<Stage> {
        let mut stages = Vec::new();
        let realtime = self.realtime();
        let loads = self.port_loads();
        let cpu = |worker: usize| self.bound.get(worker).copied().flatten().into_iter().collect::<Cpus>();
        for worker in 0..self.bound.len() {
            let mut vnics: Vec<String> = self
                .workers_of_ports()
                .filter(|(_, at)| *at == worker)
                .map(|(name, _)| name.into())
                .collect();
            vnics.sort_unstable();
            let measured = self.measured.workers.get(worker).copied().flatten();
            let of_ports =
                || vnics.iter().filter_map(|name| loads.get(name.as_str())).map(|(load, _)| load).sum();
            stages.push(Stage {
                handle: Handle::Worker(worker),
                realtime: vnics.iter().any(|name| realtime.contains(name.as_str())),
                load: bounded(measured.unwrap_or_else(of_ports)),
                measured: measured.is_some(),
                present: cpu(worker),
                pinned_by: self.workers_pinned.map(str::to_owned),
                vnics,
            });
        }
        let uplinks: BTreeSet<&str> = self.uplinks.iter().map(|uplink| uplink.name).collect();
        for (name, worker) in self.workers_of_ports() {
            let (load, measured) = loads.get(name).copied().unwrap_or_default();
            let pinned_by = if uplinks.contains(name) { Some(UPLINK_STAYS) } else { self.ports_pinned };
            stages.push(Stage {
                handle: Handle::Port(name.into()),
                vnics: vec![name.into()],
                realtime: realtime.contains(name),
                load: bounded(load),
                measured,
                present: cpu(worker),
                pinned_by: pinned_by.map(str::to_owned),
            });
        }
        stages
    }

    /// Returns the links of ports that talk, by `traffic`: sender, receiver, cost a second.
    pub fn links(&self, traffic: &[(&str, &str, u64)]) -> Vec<Link> {
        let names: BTreeSet<&str> = self.workers_of_ports().map(|(name, _)| name).collect();
        let mut pairs: BTreeMap<(&str, &str), u64> = BTreeMap::new();
        for (from, to, cost) in traffic {
            if from != to && names.contains(from) && names.contains(to) {
                let Count { frames, bytes } = self.rates(from).map(|rates| rates.sent).unwrap_or_default();
                let of_frame = bytes.checked_div(frames).unwrap_or(FULL_FRAME).saturating_add(FRAME);
                let sum = pairs.entry((*from.min(to), *from.max(to))).or_default();
                *sum = sum.saturating_add(cost / of_frame);
            }
        }
        let port = |name: &str| Handle::Port(name.into());
        let links = pairs.into_iter().map(|((one, other), frames)| Link {
            from: port(one),
            to: port(other),
            frames: frames_of(frames),
        });
        links.filter(|link| link.frames > 0).collect()
    }

    /// Ports and uplinks, each with its worker.
    fn workers_of_ports(&self) -> impl Iterator<Item = (&str, usize)> {
        let ports = self.ports.iter().map(|port| (port.vnic.name.as_str(), port.worker));
        let uplinks = self.uplinks.iter().map(|uplink| (uplink.name, uplink.worker));
        ports.chain(uplinks).filter(|(_, worker)| *worker < self.bound.len())
    }

    fn rates(&self, name: &str) -> Option<&Rates> {
        self.measured.vnics.get(name)
    }

    /// Returns the ports that send or receive frames with a deadline, and the uplinks that carry some.
    fn realtime(&self) -> BTreeSet<&str> {
        let mut names = BTreeSet::new();
        for port in self.ports.iter().filter(|port| port.vnic.deadline.is_some() && !port.suspended) {
            names.insert(port.vnic.name.as_str());
            names.extend(port.vnic.to.iter().map(String::as_str));
        }
        let remotes = self.uplinks.iter().flat_map(|uplink| uplink.remotes);
        let far = remotes.filter(|remote| remote.deadline.is_some());
        names.extend(far.flat_map(|remote| &remote.to).map(String::as_str));
        let of_deadline = |remote: &Remote| remote.deadline.is_some() || names.contains(remote.name.as_str());
        let carries =
            |uplink: &&UplinkPort<'_>| names.contains(UPLINK) || uplink.remotes.iter().any(of_deadline);
        let uplinks: Vec<&str> = self.uplinks.iter().filter(carries).map(|uplink| uplink.name).collect();
        names.extend(uplinks);
        names
    }

    /// Returns the load of each port, and whether it was measured: its share of its worker's busy time.
    fn port_loads(&self) -> BTreeMap<&str, (u64, bool)> {
        let mut work = vec![0_u64; self.bound.len()];
        for (name, worker) in self.workers_of_ports() {
            work[worker] += self.rates(name).map_or(0, |rates| rates.work);
        }
        let contracts: BTreeMap<&str, &Vnic> =
            self.ports.iter().map(|port| (port.vnic.name.as_str(), port.vnic)).collect();
        let load = |(name, worker): (&'_ str, usize)| {
            let busy = self.measured.workers.get(worker).copied().flatten();
            match (busy, self.rates(name)) {
                (Some(busy), Some(rates)) => (busy * rates.work / work[worker].max(1), true),
                _ => (contracts.get(name).map_or(0, |vnic| promised(vnic)), false),
            }
        };
        self.workers_of_ports().map(|(name, worker)| (name, load((name, worker)))).collect()
    }
}

/// Returns the CPU to which each of `workers` is bound, of those that are online.
pub fn bound(evidence: &Evidence, workers: usize, online: &Cpus) -> Vec<Option<usize>> {
    let cpu = |worker: usize| usize::try_from(evidence.workers.get(worker)?.cpu?).ok();
    (0..workers).map(|worker| cpu(worker).filter(|cpu| online.contains(cpu))).collect()
}

/// Returns a worker's time to send at the contract's rate: the guarantee if there is one, else the limit.
fn promised(vnic: &Vnic) -> u64 {
    let bytes = vnic.tx.min.or(vnic.tx.max).map_or(0, Rate::bits) / 8;
    (bytes + bytes / FULL_FRAME * FRAME) / COPIED
}

fn bounded(load: u64) -> u32 {
    load.min(WHOLE) as u32
}

fn frames_of(frames: u64) -> u32 {
    u32::try_from(frames).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
