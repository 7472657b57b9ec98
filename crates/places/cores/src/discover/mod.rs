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
//! - [`input`]: a question, and its answer
//! - [`frames`]: frames of vNICs
//! - [`kernel`]: the kernel's answers that are in no file
//! - [`descriptor`]: descriptors of other processes, and socket files, as the kernel knows them
//! - [`key`]: which descriptor tells the process of a vNIC
//! - [`addresses`]: interfaces of IP addresses
//! - [`peers`]: both ends of Unix sockets
//! - [`table`]: which process holds which key
//! - [`claims`]: the one process of each vNIC
//! - [`stat`]: one line of a process or thread
//! - [`vm`]: the threads of a VM's process
//! - [`devices`]: the interfaces that carry frames of vNICs
//! - [`nic`]: interrupts and queues of an interface
//! - [`qmp`]: the threads of a QEMU that does not name them
//! - [`libvirt`]: states of running domains
//! - [`kubernetes`]: CPUs of single containers
//! - [`pinned`]: which other program chose a thread's CPUs
//! - [`stages`]: stages of threads and interfaces
//! - [`of_devices`]: frames and CPU time of interrupts and queues
//! - [`links`]: frames from stage to stage

pub mod addresses;
pub mod claims;
pub mod descriptor;
pub mod devices;
pub mod frames;
pub mod input;
pub mod kernel;
pub mod key;
pub mod kubernetes;
pub mod libvirt;
pub mod links;
pub mod nic;
pub mod of_devices;
pub mod peers;
pub mod pinned;
pub mod qmp;
pub mod stages;
pub mod stat;
pub mod table;
pub mod vm;

use crate::conflicts::{self, programs};
use crate::load::{Loads, cpu, prior};
use crate::machine::{self, Seen};
use crate::roots::{Roots, text};
use frames::Frames;
use key::Key;
use libvirt::States;
use nic::Nic;
use peers::UnixSocket;
use pinned::Pinning;
use qmp::Asker;
use stages::{Stages, Vm};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use table::Table;
use tidegate_contract::{Attach, Vnic};
use tidegate_cores::stage::ThreadKind;
use vm::Task;

pub use input::{Found, LookInput};
pub use kernel::Kernel;

/// Looks at the host again and again.
pub struct Discovery {
    roots: Roots,
    kernel: Kernel,
    table: Table,
    loads: Loads,
    domains: States,
    qmp: Asker,
}

impl Discovery {
    /// A discovery that asks this host's kernel.
    pub fn new(roots: Roots) -> Self {
        Self::with_kernel(roots, Kernel::default())
    }

    /// A discovery with other answers than those of this host's kernel.
    pub fn with_kernel(roots: Roots, kernel: Kernel) -> Self {
        Self {
            roots,
            kernel,
            table: Table::default(),
            loads: Loads::default(),
            domains: States::default(),
            qmp: Asker::default(),
        }
    }

    /// Looks at the host. Takes some ten microseconds for each thread of a VM.
    pub fn look(&mut self, input: &LookInput<'_>) -> Found {
        let now = input.now;
        let seen = machine::read(&self.roots);
        let Seen { machine, machines, .. } = &seen;
        let mut notes = vec![];
        self.count_cpus(now);
        let frames = self.frames(now, input);

        let (vms, named) = self.vms(input, &mut notes);
        let tasks = vms.values().flat_map(|vm| &vm.tasks);
        self.loads.threads.add(now, tasks.map(|task| (task.thread, task.stat.ticks)));

        let exclusive = kubernetes::exclusive(&self.roots);
        let domains = self.domains.domains();
        let pinning = Pinning::new(&self.roots, machine, &exclusive, domains);
        let mut stages = Stages::new(input.reported);
        for vm in vms.values() {
            stages.threads(&self.roots, vm, &pinning, &self.loads);
        }
        let uplinks = devices::uplinks(&self.roots, input.network, &mut self.kernel.addresses);
        let nics = devices::nics(&self.roots, input, &uplinks);
        self.count_devices(now, &nics);
        stages.nics(&self.roots, &nics, machine);
        stages.taps(&self.roots, input.contracts);
        stages.load(&self.loads, &frames, &nics);
        let links = links::links(&stages, &frames, &nics, &uplinks, &self.loads, input);

        let busy = |cpu: &usize| Some((*cpu, self.loads.millionths(&self.loads.busy, cpu)?));
        let cpu_busy = machine.cpus.keys().filter_map(busy).collect();
        let usable = machines.difference(&exclusive).copied().collect();
        let (stages, of_libvirt) = stages.done();
        let known = conflicts::known::Known { seen: &seen, named: &named, host: input.host };
        let conflicts = conflicts::find(&self.roots, &known);
        Found { usable, stages, of_libvirt, links, conflicts, cpu_busy, notes, machine: seen.machine }
    }

    /// Finds the processes of vNICs, and their threads.
    fn vms<'a>(&mut self, input: &LookInput<'a>, notes: &mut Vec<String>) -> (BTreeMap<u32, Vm<'a>>, Named) {
        let sockets = self.sockets(input.contracts, notes);
        let keys = key::keys(&self.roots, &self.kernel, input.contracts, &sockets);
        let wanted: BTreeSet<Key> = keys.values().flatten().cloned().collect();
        let holders = self.table.look(input.now, (&self.roots, &self.kernel), &wanted, &programs::NAMES);
        self.domains.look(&self.roots);
        let domains = self.domains.domains();
        let of_process = claims::processes(input.contracts, &keys, &holders, &domains, notes);

        self.qmp.keep(|process| of_process.contains_key(&process));
        let numbers = vm::Numbers::read(&self.roots, of_process.keys().copied());
        let mut found = BTreeMap::new();
        let mut unknown = vec![];
        for (process, vnics) in of_process {
            let of = numbers.of.get(&process).map_or(&[][..], Vec::as_slice);
            let known = domains.get(&process).map(|domain| domain.vcpus.values()).into_iter().flatten();
            let mut known: qmp::Kinds = known.map(|thread| (*thread, ThreadKind::Vcpu)).collect();
            let mut tasks = vm::tasks(&self.roots, process, of, &known);
            let has_vcpu = |tasks: &[Task]| tasks.iter().any(|task| task.kind == Some(ThreadKind::Vcpu));
            let main = tasks.iter().find(|task| task.thread.thread == process);
            let is_emulator =
                holders.kvm.contains(&process) || main.is_some_and(|task| task.stat.name.starts_with("qemu"));
            if let Some(main) = main.filter(|_| !has_vcpu(&tasks) && is_emulator) {
                known.extend(self.qmp.kinds(&self.roots, process, main.thread.started, input.now));
                tasks = vm::tasks(&self.roots, process, of, &known);
            }
            // A program that keeps a VM's descriptor, which any VM can send to it, is no VM.
            if !has_vcpu(&tasks) {
                tasks.retain(|task| task.kind == Some(ThreadKind::Vhost));
                unknown.push(process);
            }
            let kernel = holders.vhost.get(&process).into_iter().flatten();
            tasks.extend(kernel.take(vm::MOST_THREADS).cloned());
            found.insert(process, Vm { process, vnics, tasks });
        }
        if let Some(some) = claims::some(&unknown) {
            notes.push(format!(
                "the threads of {some} are not planned, but for vhost-net's: their virtual CPUs are not known (start QEMU with \
                -name debug-threads=on, or leave a monitor, QMP, free)"
            ));
        }
        if let Some(some) = claims::some(&numbers.more) {
            notes.push(format!("{some} have too many threads: only the first are planned"));
        }
        (found, holders.named)
    }

    /// Returns the connected sockets, if a contract needs them.
    fn sockets(&mut self, contracts: &[&Vnic], notes: &mut Vec<String>) -> Vec<UnixSocket> {
        if !contracts.iter().any(|vnic| matches!(vnic.attach, Attach::VhostUser { .. })) {
            return vec![];
        }
        (self.kernel.sockets)().unwrap_or_else(|why| {
            notes.push(format!("{why}; the threads of VMs on vhost-user sockets are not planned"));
            vec![]
        })
    }

    /// Returns the frames a second of each vNIC: over the last minute, else by its contract.
    fn frames(&mut self, now: Instant, input: &LookInput<'_>) -> BTreeMap<String, Frames> {
        let counted = input.evidence.iter().flat_map(|evidence| frames::so_far(evidence));
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

/// Processes by name.
type Named = BTreeMap<String, Vec<u32>>;
