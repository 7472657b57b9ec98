//! The work for frames on this host, found by reading only: stages, their loads, frames between them, and what contradicts a plan.
//!
//! ```text
//!  contracts ─▶ key: taps, sockets, functions ─▶ table: processes ─▶ vm: threads ─┐
//!  interfaces ─▶ nic: interrupts, queues ─────────────────────────────────────────┼─▶ stages ─▶ links ─▶ Found
//!  other places' stages, evidence, load ──────────────────────────────────────────┘
//! ```
//!
//! Everything read is what users, guests' operators and other programs wrote, and may be gone at the next read: whatever is missing or
//! malformed is left out.
//!
//! - [`key`]: which descriptor tells the process of a vNIC
//! - [`peers`]: both ends of Unix sockets
//! - [`table`]: which process holds which key
//! - [`stat`]: one line of a process or thread
//! - [`vm`]: the threads of a VM's process
//! - [`nic`]: interrupts and queues of an interface
//! - [`pinned`]: which other program chose a thread's CPUs
//! - [`stages`]: stages of threads and interfaces
//! - [`links`]: frames from stage to stage

pub mod key;
pub mod links;
pub mod nic;
pub mod peers;
pub mod pinned;
pub mod stages;
pub mod stat;
pub mod table;
pub mod vm;

use crate::load::{Loads, cpu, prior};
use crate::machine::{self, Seen};
use crate::roots::{Roots, text};
use key::{Key, UnixSocket};
use nic::Nic;
use pinned::Pinning;
use stages::Stages;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use table::Table;
use tidegate_contract::{Attach, Host, Vnic};
use tidegate_cores::cpus::Cpus;
use tidegate_cores::machine::Machine;
use tidegate_cores::stage::{Handle, Link, Stage};
use tidegate_evidence::{ConflictReport, Evidence, Quantity, Traffic};
use tidegate_place::Network;

/// Tells the connected Unix sockets of the host, or why it cannot.
pub type Sockets = Box<dyn FnMut() -> Result<Vec<UnixSocket>, String> + Send>;

/// Looks at the host again and again.
pub struct Discovery {
    roots: Roots,
    sockets: Sockets,
    table: Table,
    loads: Loads,
}

/// What a look needs to know.
#[derive(Clone, Copy, Debug)]
pub struct LookInput<'a> {
    /// The time of the look.
    pub now: Instant,
    /// The contracts of all places.
    pub contracts: &'a [&'a Vnic],
    /// The `[host]` table.
    pub host: &'a Host,
    /// The ways to other hosts.
    pub network: &'a Network,
    /// The stages that places report.
    pub reported: &'a [&'a Stage],
    /// The counters of places.
    pub evidence: &'a [&'a Evidence],
    /// CPUs that the plan has set for stages: these are no other program's choice.
    pub set: &'a BTreeMap<Handle, Cpus>,
}

/// What a look found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The machine.
    pub machine: Machine,
    /// Online CPUs that a plan may use if the administrator names none: those of `machine.slice` without those that Kubernetes gave to
    /// containers alone.
    pub usable: Cpus,
    /// The stages, reported and found; handles are unique.
    pub stages: Vec<Stage>,
    /// Frames between them.
    pub links: Vec<Link>,
    /// What contradicts a plan.
    pub conflicts: Vec<ConflictReport>,
    /// Busy time of CPUs over the last minute, millionths; a CPU is missing until it was looked at twice.
    pub cpu_busy: BTreeMap<usize, u32>,
    /// What could not be found, and the consequence.
    pub notes: Vec<String>,
}

impl Discovery {
    /// A discovery that asks this host's kernel about sockets.
    pub fn new(roots: Roots) -> Self {
        Self::with_sockets(roots, Box::new(peers::connected))
    }

    /// A discovery with another source of sockets, such as a captured one.
    pub fn with_sockets(roots: Roots, sockets: Sockets) -> Self {
        Self { roots, sockets, table: Table::default(), loads: Loads::default() }
    }

    /// Looks at the host. Takes some microseconds for each thread of a VM.
    pub fn look(&mut self, input: &LookInput<'_>) -> Found {
        let now = input.now;
        let Seen { machine, own: _, machines } = machine::read(&self.roots);
        let mut notes = vec![];
        self.count_cpus(now);
        let frames = self.frames(now, input);

        let sockets = self.sockets(input.contracts, &mut notes);
        let keys = key::keys(&self.roots, input.contracts, &sockets);
        let wanted: BTreeSet<Key> = keys.values().flatten().cloned().collect();
        let holders = self.table.look(&self.roots, &wanted, &[]);

        let pinning = Pinning::new(&machine, input.set);
        let mut stages = Stages::new(input.reported);
        let vms = stages::vms(&keys, &holders, input.contracts);
        stages.threads(&self.roots, &vms, &holders, &pinning, &mut notes);
        let counters = stages.ticks();
        self.loads.threads.add(now, counters);

        let nics = nics(&self.roots, input);
        self.count_devices(now, &nics);
        stages.nics(&nics, &machine);
        stages.taps(&self.roots, input.contracts);
        stages.load(&self.loads, &frames, &nics);

        let links = links::links(&stages, &frames, &nics, &self.loads, input);
        if holders.unreadable > 0 && !vms.missing.is_empty() {
            notes.push(format!(
                "the processes of {} were not found, and the descriptors of {} processes may not be read \
                (CAP_SYS_PTRACE): their threads are not planned",
                vms.missing.join(", "),
                holders.unreadable
            ));
        }
        let cpu_busy = machine.cpus.keys();
        let busy = |cpu: &usize| Some((*cpu, self.loads.millionths(&self.loads.busy, cpu)?));
        let cpu_busy = cpu_busy.filter_map(busy).collect();
        Found { usable: machines, stages: stages.done(), links, conflicts: vec![], cpu_busy, notes, machine }
    }

    /// Returns the connected sockets, if a contract needs them.
    fn sockets(&mut self, contracts: &[&Vnic], notes: &mut Vec<String>) -> Vec<UnixSocket> {
        if !contracts.iter().any(|vnic| matches!(vnic.attach, Attach::VhostUser { .. })) {
            return vec![];
        }
        (self.sockets)().unwrap_or_else(|why| {
            notes.push(format!("{why}; the threads of VMs on vhost-user sockets are not planned"));
            vec![]
        })
    }

    /// Returns the frames a second of each vNIC: over the last minute, else by its contract.
    fn frames(&mut self, now: Instant, input: &LookInput<'_>) -> BTreeMap<String, Frames> {
        let counted = input.evidence.iter().flat_map(|evidence| frames_so_far(evidence));
        self.loads.vnics.add(now, counted);
        let of = |vnic: &&Vnic| {
            let measured = |sent| self.loads.vnics.per(&(vnic.name.clone(), sent), Duration::from_secs(1));
            let (sent, received) = prior::frames(vnic);
            let (sent, received) = (measured(true).unwrap_or(sent), measured(false).unwrap_or(received));
            (vnic.name.clone(), Frames { sent, received })
        };
        input.contracts.iter().map(of).collect()
    }

    fn count_cpus(&mut self, now: Instant) {
        let times = cpu::parse(&text(self.roots.proc.join("stat")).unwrap_or_default());
        self.loads.busy.add(now, times.iter().map(|(cpu, times)| (*cpu, times.busy)));
        self.loads.soft.add(now, times.iter().map(|(cpu, times)| (*cpu, times.soft)));
        self.loads.hard.add(now, times.iter().map(|(cpu, times)| (*cpu, times.hard)));
    }

    fn count_devices(&mut self, now: Instant, nics: &[Nic]) {
        let arrivals = nics
            .iter()
            .flat_map(|nic| &nic.irqs)
            .flat_map(|irq| irq.counts.iter().enumerate().map(|(cpu, count)| ((irq.number, cpu), *count)));
        self.loads.arrivals.add(now, arrivals);
        let frames =
            |nic: &Nic| [((nic.device.clone(), false), nic.received), ((nic.device.clone(), true), nic.sent)];
        self.loads.devices.add(now, nics.iter().flat_map(frames));
    }
}

/// Frames a second of a vNIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Frames {
    /// That the VM sends.
    pub sent: u64,
    /// That it receives.
    pub received: u64,
}

impl Frames {
    /// Returns both ways together.
    pub const fn both(self) -> u64 {
        self.sent.saturating_add(self.received)
    }
}

/// Returns the frames so far that a place counted, by vNIC and direction: sent ones are `true`. A super-frame is one where it counts so.
fn frames_so_far(evidence: &Evidence) -> Vec<((String, bool), u64)> {
    let mut found = vec![];
    for (name, stats) in &evidence.vnics {
        let unknown = evidence.unknown.get(name);
        let knows = |what| unknown.is_none_or(|unknown| !unknown.contains_key(&what));
        let frames = |traffic: &Traffic| {
            if knows(Quantity::SuperFrames) { traffic.frames } else { traffic.wire_frames }
        };
        let both = [(Quantity::Tx, true, &stats.tx), (Quantity::Rx, false, &stats.rx)];
        let known = both.into_iter().filter(|(what, ..)| knows(*what));
        found.extend(known.map(|(_, sent, traffic)| ((name.clone(), sent), frames(traffic))));
    }
    found
}

/// Returns the physical interfaces that carry frames of vNICs: those of uplinks, steered ones, those with functions, and those in a bridge
/// with a vNIC's tap.
fn nics(roots: &Roots, input: &LookInput<'_>) -> Vec<Nic> {
    let mut found = BTreeMap::<String, (BTreeSet<String>, BTreeSet<String>)>::new();
    let mut add = |device: &str, vnic: Option<&str>| {
        for physical in nic::physical(roots, device) {
            let (of_devices, of_vnics) = found.entry(physical).or_default();
            of_devices.insert(device.to_owned());
            of_vnics.extend(vnic.map(str::to_owned));
        }
    };
    let uplinks = input.network.uplinks.iter().filter_map(|uplink| uplink.device.as_ref());
    uplinks.chain(&input.host.cores.steer).for_each(|device| add(device, None));
    for vnic in input.contracts {
        match &vnic.attach {
            Attach::Vf { pf, .. } => add(pf, None),
            Attach::Netdev { name } => {
                let own = nic::physical(roots, name).into_iter();
                own.chain(nic::bridged(roots, name)).for_each(|device| add(&device, Some(&vnic.name)));
            }
            _ => {}
        }
    }
    let read = |(device, (for_devices, for_vnics)): (String, _)| {
        Nic::read(roots, &device).map(|nic| Nic { for_devices, for_vnics, ..nic })
    };
    found.into_iter().filter_map(read).collect()
}
