//! Stages of VMs' threads and of interfaces.

use super::Frames;
use super::key::Key;
use super::nic::{Irq, Nic};
use super::pinned::Pinning;
use super::stat::Stat;
use super::table::Holders;
use super::vm;
use crate::load::{Loads, prior};
use crate::roots::Roots;
use std::collections::{BTreeMap, BTreeSet};
use tidegate_contract::{Attach, Vnic};
use tidegate_cores::cpus::Cpus;
use tidegate_cores::machine::Machine;
use tidegate_cores::stage::{Handle, Kind, Queue, Stage, Thread, ThreadKind};

/// Most stages of one VM: its process makes as many threads as it likes.
const MOST_OF_ONE: usize = 512;

/// The VMs' processes, and whose they are.
#[derive(Debug, Default)]
pub struct Vms<'a> {
    /// By process, its vNICs.
    pub processes: BTreeMap<u32, Vec<&'a Vnic>>,
    /// vNICs of which no process is known.
    pub missing: Vec<String>,
}

/// Returns the processes of vNICs.
pub fn vms<'a>(keys: &BTreeMap<&str, Vec<Key>>, holders: &Holders, contracts: &[&'a Vnic]) -> Vms<'a> {
    let mut found = Vms::default();
    for vnic in contracts {
        let keys = keys.get(vnic.name.as_str()).into_iter().flatten();
        let processes: BTreeSet<u32> =
            keys.filter_map(|key| holders.by_key.get(key)).flatten().copied().collect();
        if processes.is_empty() && !matches!(vnic.attach, Attach::Tap { .. }) {
            found.missing.push(vnic.name.clone());
        }
        for process in processes {
            found.processes.entry(process).or_default().push(vnic);
        }
    }
    found
}

/// The stages of one look.
pub struct Stages {
    reported: BTreeMap<Handle, Stage>,
    found: BTreeMap<Handle, Stage>,
    /// CPU time so far of the threads among them, ticks.
    ticks: BTreeMap<Thread, u64>,
    /// Threads of each vNIC's VM.
    of_vnic: BTreeMap<String, Vec<Handle>>,
}

impl Stages {
    /// Begins with the stages that places report; of two with one handle the first counts.
    pub fn new(reported: &[&Stage]) -> Self {
        let mut all = BTreeMap::new();
        for stage in reported {
            all.entry(stage.handle.clone()).or_insert_with(|| (*stage).clone());
        }
        Self { reported: all, found: BTreeMap::new(), ticks: BTreeMap::new(), of_vnic: BTreeMap::new() }
    }

    /// Adds the threads of VMs.
    pub fn threads(
        &mut self,
        roots: &Roots,
        vms: &Vms<'_>,
        holders: &Holders,
        pinning: &Pinning<'_>,
        notes: &mut Vec<String>,
    ) {
        for (process, vnics) in &vms.processes {
            let (tasks, more) = vm::tasks(roots, *process);
            if more {
                notes.push(format!(
                    "process {process} has more threads than are looked at: the others are not planned"
                ));
            }
            let known = BTreeMap::new();
            let inside =
                tasks.iter().filter_map(|task| Some((vm::kind(task, &known)?, task.thread, &task.stat)));
            let kernel = holders.vhost.get(process).into_iter().flatten();
            let kernel = kernel.map(|(thread, stat)| (ThreadKind::Vhost, *thread, stat));
            let all: Vec<(ThreadKind, Thread, &Stat)> = inside.chain(kernel).take(MOST_OF_ONE).collect();
            if !all.iter().any(|(kind, ..)| *kind == ThreadKind::Vcpu) && holders.kvm.contains(process) {
                notes.push(format!(
                    "the virtual CPUs of process {process} are not known, so they are not planned: start QEMU with \
                    -name debug-threads=on"
                ));
            }
            for (kind, thread, stat) in all {
                self.thread(roots, kind, thread, stat, vnics, pinning);
            }
        }
    }

    fn thread(
        &mut self,
        roots: &Roots,
        kind: ThreadKind,
        thread: Thread,
        stat: &Stat,
        vnics: &[&Vnic],
        pinning: &Pinning<'_>,
    ) {
        // vhost works for the VM's taps alone.
        let concerned = vnics
            .iter()
            .filter(|vnic| kind != ThreadKind::Vhost || matches!(vnic.attach, Attach::Netdev { .. }));
        let mut names: Vec<String> = concerned.clone().map(|vnic| vnic.name.clone()).collect();
        names.sort_unstable();
        names.dedup();
        let Some(present) = vm::allowed(roots, thread) else { return };
        let handle = Handle::Thread { kind, thread, name: stat.name.clone() };
        let pinned_by = pinning.by(&handle, &present);
        // A deadline of a tap holds until vhost has the frame; the guest's own time is not in it.
        let realtime = kind == ThreadKind::Vhost && concerned.clone().any(|vnic| vnic.is_realtime());
        for name in &names {
            self.of_vnic.entry(name.clone()).or_default().push(handle.clone());
        }
        self.ticks.insert(thread, stat.ticks);
        let stage = Stage {
            handle: handle.clone(),
            vnics: names,
            realtime,
            load: 0,
            measured: false,
            present,
            pinned_by,
        };
        self.found.insert(handle, stage);
    }

    /// Adds interrupts and queues of physical interfaces.
    pub fn nics(&mut self, nics: &[Nic], machine: &Machine) {
        for nic in nics {
            for irq in &nic.irqs {
                let pinned_by = irq.managed.then(|| "the kernel, which manages this interrupt".to_owned());
                self.add(Stage { pinned_by, ..stage(self::irq(nic, irq), irq.cpus.clone()) });
            }
            for (queue, steered) in nic.receive.iter().enumerate() {
                let Ok(queue) = u16::try_from(queue) else { continue };
                let arrives =
                    || nic.irqs_of(queue).flat_map(|irq| irq.cpus.iter().copied()).collect::<Cpus>();
                let present = Some(steered.clone()).filter(|cpus| !cpus.is_empty()).unwrap_or_else(arrives);
                let present = if present.is_empty() { machine.online() } else { present };
                self.add(stage(Handle::Receive(of_device(&nic.device, queue)), present));
            }
            for (queue, senders) in nic.transmit.iter().enumerate() {
                let Ok(queue) = u16::try_from(queue) else { continue };
                let present = if senders.is_empty() { machine.online() } else { senders.clone() };
                self.add(stage(Handle::Transmit(of_device(&nic.device, queue)), present));
            }
        }
    }

    /// Adds the stacks of the taps that VMs with vhost-net send into.
    pub fn taps(&mut self, roots: &Roots, contracts: &[&Vnic]) {
        for vnic in contracts {
            let Attach::Netdev { name } = &vnic.attach else { continue };
            let Some(nic) = Nic::read(roots, name) else { continue };
            for (queue, steered) in nic.receive.iter().enumerate() {
                let Ok(queue) = u16::try_from(queue) else { continue };
                // Without steering it runs where vhost does.
                let vhost = self.threads_of(&vnic.name, ThreadKind::Vhost).into_iter();
                let vhost: Cpus = vhost.flat_map(|stage| stage.present.iter().copied()).collect();
                let present = if steered.is_empty() { vhost } else { steered.clone() };
                if present.is_empty() {
                    continue;
                }
                let handle = Handle::Receive(of_device(name, queue));
                self.add(Stage { vnics: vec![vnic.name.clone()], ..stage(handle, present) });
            }
        }
    }

    fn add(&mut self, stage: Stage) {
        self.found.entry(stage.handle.clone()).or_insert(stage);
    }

    /// Returns the CPU time so far of all threads.
    pub fn ticks(&self) -> Vec<(Thread, u64)> {
        self.ticks.iter().map(|(thread, ticks)| (*thread, *ticks)).collect()
    }

    /// Sets the loads of the stages that were found.
    pub fn load(&mut self, loads: &Loads, frames: &BTreeMap<String, Frames>, nics: &[Nic]) {
        let shares = self.shares(frames);
        let by_device = super::links::device_frames(nics, loads);
        let softirqs = super::links::softirq_loads(nics, loads);
        for stage in self.found.values_mut() {
            let kind = stage.handle.kind();
            let measured = match &stage.handle {
                Handle::Thread { thread, .. } => loads.thread(*thread),
                Handle::Irq { .. } | Handle::Receive(_) => softirqs.get(&stage.handle).copied(),
                _ => None,
            };
            let frames =
                shares.get(&stage.handle).or_else(|| by_device.get(&stage.handle)).copied().unwrap_or(0);
            stage.measured = measured.is_some();
            stage.load = measured.unwrap_or_else(|| prior::load(kind, frames));
        }
    }

    /// Returns the frames a second of each thread and of each tap's queue: a vNIC's are shared equally by stages of a kind.
    fn shares(&self, frames: &BTreeMap<String, Frames>) -> BTreeMap<Handle, u64> {
        let of_vnics = || {
            let pairs = |stage: &'_ Stage| (stage.handle.clone(), stage.handle.kind(), stage.vnics.clone());
            self.found.values().map(pairs)
        };
        let mut number = BTreeMap::<(String, Kind), u64>::new();
        for (_, kind, vnics) in of_vnics() {
            vnics.into_iter().for_each(|vnic| *number.entry((vnic, kind)).or_default() += 1);
        }
        let mut found = BTreeMap::<Handle, u64>::new();
        for (handle, kind, vnics) in of_vnics() {
            let share = |vnic: String| {
                let both = frames.get(&vnic).map_or(0, |frames| frames.both());
                both / number.get(&(vnic, kind)).copied().unwrap_or(1)
            };
            found.insert(handle, vnics.into_iter().map(share).fold(0, u64::saturating_add));
        }
        found
    }

    /// Returns the threads of a kind of a vNIC's VM.
    pub fn threads_of(&self, vnic: &str, kind: ThreadKind) -> Vec<&Stage> {
        let handles = self.of_vnic.get(vnic).into_iter().flatten();
        let of_kind =
            handles.filter(|handle| matches!(handle, Handle::Thread { kind: of, .. } if *of == kind));
        of_kind.filter_map(|handle| self.found.get(handle)).collect()
    }

    /// Returns a stage by its handle.
    pub fn get(&self, handle: &Handle) -> Option<&Stage> {
        self.reported.get(handle).or_else(|| self.found.get(handle))
    }

    /// Returns all stages: reported ones first, and found ones that were not reported.
    pub fn done(self) -> Vec<Stage> {
        let Self { reported, mut found, .. } = self;
        found.retain(|handle, _| !reported.contains_key(handle));
        reported.into_values().chain(found.into_values()).collect()
    }
}

/// A stage for no vNIC in particular.
fn stage(handle: Handle, present: Cpus) -> Stage {
    Stage { handle, vnics: vec![], realtime: false, load: 0, measured: false, present, pinned_by: None }
}

/// The handle of an interrupt: the interface, and the driver's name.
pub fn irq(nic: &Nic, irq: &Irq) -> Handle {
    let own = irq.name.contains(&nic.device);
    let name = if own { irq.name.clone() } else { format!("{} {}", nic.device, irq.name) };
    Handle::Irq { number: irq.number, name }
}

/// A queue of an interface in the agent's own namespace.
pub fn of_device(device: &str, queue: u16) -> Queue {
    Queue { netns: None, device: device.to_owned(), queue }
}
