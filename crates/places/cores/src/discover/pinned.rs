//! Which other program, or setting, chose the CPUs of a thread.

use super::vm;
use crate::machine::cpuset;
use crate::roots::Roots;
use std::collections::BTreeMap;
use tidegate_cores::cpus::Cpus;
use tidegate_cores::machine::Machine;
use tidegate_cores::stage::{Handle, Thread, ThreadKind};
use tidegate_libvirt::running::Running;

/// What is known of choices.
pub struct Pinning<'a> {
    roots: &'a Roots,
    /// CPUs that the kernel gives to a thread without a choice: online, and not set apart at boot.
    free: Cpus,
    /// CPUs of process 1, from which services inherit theirs.
    init: Option<Cpus>,
    /// CPUs that Kubernetes gave to single containers.
    exclusive: &'a Cpus,
    /// libvirt's domains by process.
    domains: BTreeMap<u32, &'a Running>,
    /// CPUs that the plan has set: by thread, since its name may change.
    set: BTreeMap<Thread, &'a Cpus>,
}

impl<'a> Pinning<'a> {
    /// Of a machine, with other programs' states and the CPUs that the plan has `set`.
    pub fn new(
        roots: &'a Roots,
        machine: &Machine,
        exclusive: &'a Cpus,
        domains: BTreeMap<u32, &'a Running>,
        set: &'a BTreeMap<Handle, Cpus>,
    ) -> Self {
        let free: Cpus = machine.online().difference(&machine.isolated()).copied().collect();
        let init = vm::allowed(roots, Thread { process: 1, thread: 1, started: 0 });
        let thread = |handle: &Handle| match handle {
            Handle::Thread { thread, .. } => Some(*thread),
            _ => None,
        };
        let set = set.iter().filter_map(|(handle, cpus)| Some((thread(handle)?, cpus))).collect();
        Self { roots, init: init.filter(|cpus| !free.is_subset(cpus)), free, exclusive, domains, set }
    }

    /// Returns what chose the `present` CPUs of a thread; `None` if nothing but the plan did. `vm` is the process for whose VM it works.
    pub fn by(
        &self,
        vm: u32,
        kind: ThreadKind,
        thread: Thread,
        name: &str,
        present: &Cpus,
    ) -> Option<String> {
        let Thread { process, thread: number, .. } = thread;
        if let Some(element) = self.domains.get(&vm).and_then(|of| libvirt(of, kind, number, name)) {
            return Some(format!("libvirt's {element}"));
        }
        let set = self.set.get(&thread).copied();
        if self.free.is_subset(present) || set == Some(present) {
            return None;
        }
        let cgroup = cpuset::of_process(self.roots, &format!("{process}/task/{number}")).unwrap_or_default();
        if cgroup.contains("kubepods") && present.is_subset(self.exclusive) {
            return Some("Kubernetes' CPU manager".into());
        }
        let allowed = cpuset::cpus(self.roots, &cgroup).unwrap_or_else(|| self.free.clone());
        if !self.free.is_subset(&allowed) && allowed.is_subset(present) {
            return Some(format!("the cpuset of its cgroup {cgroup}"));
        }
        if set.is_some() {
            return None;
        }
        let inherited = self.init.as_ref() == Some(present);
        let by =
            if inherited { "CPUAffinity= of systemd" } else { "its CPU affinity, which another program set" };
        Some(by.into())
    }
}

/// Returns the element of a domain that chose a thread's CPUs.
fn libvirt(domain: &Running, kind: ThreadKind, thread: u32, name: &str) -> Option<&'static str> {
    let Running { pins, vcpus, .. } = domain;
    let own = match kind {
        ThreadKind::Vcpu => {
            let number = vcpus.iter().find(|(_, of)| **of == thread).map(|(number, _)| *number);
            let number = number.or_else(|| vm::vcpu_number(name));
            number.is_some_and(|number| pins.vcpus.contains(&number)).then_some("<vcpupin>")
        }
        ThreadKind::Io => {
            let number = name.strip_prefix("IO iothread").and_then(|number| number.parse().ok());
            number.is_some_and(|number| pins.io.contains(&number)).then_some("<iothreadpin>")
        }
        ThreadKind::Emulator | ThreadKind::Vhost => pins.emulator.then_some("<emulatorpin>"),
    };
    own.or_else(|| pins.all.then_some("<vcpu cpuset=...>"))
}
