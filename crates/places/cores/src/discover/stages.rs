//! Stages of VMs' threads and of interfaces.

use super::frames::Frames;
use super::nic::Nic;
use super::of_devices;
use super::pinned::{Choice, Pinning};
use super::vm::{self, Task};
use crate::load::{Loads, prior};
use crate::roots::{Roots, mask};
use std::collections::{BTreeMap, BTreeSet};
use tidegate_contract::{Attach, Vnic};
use tidegate_cores::cpus::Cpus;
use tidegate_cores::machine::Machine;
use tidegate_cores::stage::{Handle, Kind, Stage, Thread, ThreadKind};

/// A process, and whose it is.
#[derive(Debug)]
pub struct Vm<'a> {
    /// Its number.
    pub process: u32,
    /// Its vNICs.
    pub vnics: Vec<&'a Vnic>,
    /// Its threads, vhost's among them.
    pub tasks: Vec<Task>,
}

/// The stages of one look.
pub struct Stages {
    reported: BTreeMap<Handle, Stage>,
    found: BTreeMap<Handle, Stage>,
    /// Threads of each vNIC's VM.
    of_vnic: BTreeMap<String, Vec<Handle>>,
    /// CPU time of emulators' helpers, by the emulator's first thread, millionths.
    helpers: BTreeMap<Thread, u32>,
    /// CPUs that libvirt gives threads.
    of_libvirt: BTreeMap<Thread, Cpus>,
}

impl Stages {
    /// Begins with the stages that places report; of two with one handle the first counts.
    pub fn new(reported: &[&Stage]) -> Self {
        let mut all = BTreeMap::new();
        for stage in reported {
            all.entry(stage.handle.clone()).or_insert_with(|| (*stage).clone());
        }
        Self {
            reported: all,
            found: BTreeMap::new(),
            of_vnic: BTreeMap::new(),
            helpers: BTreeMap::new(),
            of_libvirt: BTreeMap::new(),
        }
    }

    /// Adds the threads of a VM. Helpers of its emulator come and go with the guest's own requests, so they are no stages: each begins with
    /// the CPUs of the emulator's first thread, and its CPU time counts there.
    pub fn threads(&mut self, roots: &Roots, vm: &Vm<'_>, pinning: &Pinning<'_>, loads: &Loads) {
        let helpers = vm.tasks.iter().filter(|task| task.kind.is_none());
        let load = helpers.filter_map(|task| loads.thread(task.thread)).fold(0, u32::saturating_add);
        let main = vm.tasks.iter().find(|task| task.kind == Some(ThreadKind::Emulator));
        self.helpers.extend(main.map(|task| (task.thread, load)));
        let of = |task: &'_ Task| task.kind.map(|kind| (kind, task.thread));
        let realtime = realtime(&vm.vnics, vm.tasks.iter().filter_map(of));
        let mut threads = vec![];
        for task in &vm.tasks {
            // It may end at any time.
            threads.extend(task.kind.and_then(|kind| Some((kind, task, vm::allowed(roots, task.thread)?))));
        }
        for (kind, task, present) in threads {
            let Task { thread, stat, .. } = task;
            let choice =
                Choice { vm: vm.process, kind, thread: *thread, name: &stat.name, present: &present };
            let pinned_by = pinning.by(&choice);
            self.of_libvirt.extend(pinning.of_libvirt(&choice).map(|cpus| (*thread, cpus)));
            let handle = Handle::Thread { kind, thread: *thread, name: stat.name.as_str().into() };
            let realtime = realtime.contains(thread);
            self.thread(kind, &vm.vnics, Stage { pinned_by, realtime, ..stage(handle, present) });
        }
    }

    fn thread(&mut self, kind: ThreadKind, vnics: &[&Vnic], stage: Stage) {
        // vhost works for the VM's taps alone.
        let concerned = vnics.iter().filter(|vnic| kind != ThreadKind::Vhost || is_netdev(vnic));
        let names: BTreeSet<String> = concerned.map(|vnic| vnic.name.clone()).collect();
        for name in &names {
            self.of_vnic.entry(name.clone()).or_default().push(stage.handle.clone());
        }
        let vnics = names.into_iter().collect();
        self.found.insert(stage.handle.clone(), Stage { vnics, ..stage });
    }

    /// Adds interrupts and queues of physical interfaces.
    pub fn nics(&mut self, roots: &Roots, nics: &[Nic], machine: &Machine) {
        let usual = usual(roots, machine);
        let all = |cpus: Cpus| if cpus.is_empty() { machine.online() } else { cpus };
        for nic in nics {
            for irq in &nic.irqs {
                let managed = irq.managed.then_some("the kernel, which manages this interrupt");
                let chosen = irq.is_chosen(&usual).then_some("its smp_affinity, which another program set");
                let pinned_by = managed.or(chosen).map(str::to_owned);
                let vnics: Vec<String> = irq.vnic.iter().cloned().collect();
                self.add(Stage { vnics, pinned_by, ..stage(irq.handle(&nic.device), all(irq.cpus.clone())) });
            }
            for (queue, steered) in nic.receive_queues() {
                let arrives = || nic.irqs_of(queue).flat_map(|irq| irq.cpus.iter().copied()).collect();
                let present = if steered.is_empty() { arrives() } else { steered.clone() };
                let pinned_by = by_queue(steered, "rps_cpus");
                self.add(Stage { pinned_by, ..stage(Handle::Receive(nic.queue(queue)), all(present)) });
            }
            for (queue, senders) in nic.transmit_queues() {
                // Many drivers give each queue the senders of its interrupt's CPUs.
                let is_drivers = nic.irqs.iter().any(|irq| irq.hint == *senders);
                let pinned_by = by_queue(senders, "xps_cpus").filter(|_| !is_drivers);
                let handle = Handle::Transmit(nic.queue(queue));
                self.add(Stage { pinned_by, ..stage(handle, all(senders.clone())) });
            }
        }
    }

    /// Adds the stacks of the taps that VMs with vhost-net send into.
    pub fn taps(&mut self, roots: &Roots, contracts: &[&Vnic]) {
        for vnic in contracts {
            let Attach::Netdev { name } = &vnic.attach else { continue };
            // Without steering it runs where vhost does.
            let vhost = self.threads_of(&vnic.name, ThreadKind::Vhost).into_iter();
            let vhost: Cpus = vhost.flat_map(|stage| stage.present.iter().copied()).collect();
            let Some(nic) = Nic::read_receive(roots, name).filter(|_| !vhost.is_empty()) else { continue };
            for (queue, steered) in nic.receive_queues() {
                let present = if steered.is_empty() { vhost.clone() } else { steered.clone() };
                let handle = Handle::Receive(nic.queue(queue));
                let (vnics, pinned_by) = (vec![vnic.name.clone()], by_queue(steered, "rps_cpus"));
                self.add(Stage { vnics, pinned_by, ..stage(handle, present) });
            }
        }
    }

    fn add(&mut self, stage: Stage) {
        self.found.entry(stage.handle.clone()).or_insert(stage);
    }

    /// Sets the loads of the stages that were found.
    pub fn load(&mut self, loads: &Loads, frames: &BTreeMap<String, Frames>, nics: &[Nic]) {
        let shares = self.shares(frames);
        let by_device = of_devices::frames(nics, loads);
        let softirqs = of_devices::loads(nics, loads);
        for stage in self.found.values_mut() {
            let kind = stage.handle.kind();
            let measured = match &stage.handle {
                Handle::Thread { thread, .. } => {
                    let helpers = self.helpers.get(thread).copied().unwrap_or(0);
                    loads.thread(*thread).map(|load| load.saturating_add(helpers).min(1_000_000))
                }
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
            self.found.values().filter(|stage| !stage.vnics.is_empty()).map(pairs)
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

    /// Returns all stages: reported ones first, and found ones that were not reported; and the CPUs that libvirt gives threads.
    pub fn done(self) -> (Vec<Stage>, BTreeMap<Thread, Cpus>) {
        let Self { reported, mut found, of_libvirt, .. } = self;
        found.retain(|handle, _| !reported.contains_key(handle));
        (reported.into_values().chain(found.into_values()).collect(), of_libvirt)
    }
}

/// Returns the CPUs of new interrupts on each node: the kernel gives an interrupt those of its device's node (`irq_setup_affinity`).
fn usual(roots: &Roots, machine: &Machine) -> Vec<Cpus> {
    let default = mask(roots.proc.join("irq/default_smp_affinity")).unwrap_or_else(|| machine.online());
    let mut of_nodes = BTreeMap::<u32, Cpus>::new();
    for (number, cpu) in machine.cpus.iter().filter(|(number, _)| default.contains(number)) {
        of_nodes.entry(cpu.node).or_default().insert(*number);
    }
    of_nodes.into_values().collect()
}

/// Returns what chose the CPUs of a queue, if there are any: the kernel chooses none.
fn by_queue(cpus: &Cpus, file: &str) -> Option<String> {
    (!cpus.is_empty()).then(|| format!("its {file}, which another program set"))
}

/// Returns vhost's threads on which a deadline depends: one of a tap holds until vhost has the frame; the guest's own time is not in it. No
/// more than the queues of the VM's taps, the oldest: each queue has one, and an emulator can start as many as it likes.
fn realtime(vnics: &[&Vnic], threads: impl Iterator<Item = (ThreadKind, Thread)>) -> BTreeSet<Thread> {
    let taps = || vnics.iter().filter(|vnic| is_netdev(vnic));
    let queues: usize = taps().map(|vnic| usize::from(vnic.queues)).sum();
    let mut vhost: Vec<Thread> =
        threads.filter(|(kind, _)| *kind == ThreadKind::Vhost).map(|(_, thread)| thread).collect();
    vhost.sort_unstable_by_key(|thread| (thread.started, thread.thread));
    let has_deadline = taps().any(|vnic| vnic.is_realtime());
    vhost.into_iter().take(if has_deadline { queues } else { 0 }).collect()
}

fn is_netdev(vnic: &Vnic) -> bool {
    matches!(vnic.attach, Attach::Netdev { .. })
}

/// A stage for no vNIC in particular.
fn stage(handle: Handle, present: Cpus) -> Stage {
    Stage { handle, vnics: vec![], realtime: false, load: 0, measured: false, present, pinned_by: None }
}
