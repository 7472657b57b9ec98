//! Which other program, or setting, chose the CPUs of a thread, and which of them libvirt did.

use super::vm;
use crate::machine::cpuset;
use crate::roots::Roots;
use std::collections::BTreeMap;
use tidegate_cores::cpus::{self, Cpus};
use tidegate_cores::machine::Machine;
use tidegate_cores::stage::{Thread, ThreadKind};
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
}

impl<'a> Pinning<'a> {
    /// Of a machine, with other programs' states.
    pub fn new(
        roots: &'a Roots,
        machine: &Machine,
        exclusive: &'a Cpus,
        domains: BTreeMap<u32, &'a Running>,
    ) -> Self {
        let free: Cpus = machine.online().difference(&machine.isolated()).copied().collect();
        let init = vm::allowed(roots, Thread { process: 1, thread: 1, started: 0 });
        Self { roots, init: init.filter(|cpus| !free.is_subset(cpus)), free, exclusive, domains }
    }

    /// Returns the CPUs that libvirt gives a thread, by its state of the domain; `None` if it gives none, or does not say which.
    pub fn of_libvirt(&self, choice: &Choice<'_>) -> Option<Cpus> {
        let (_, listed) = self.libvirt(choice)?;
        cpus::from_list(listed).filter(|cpus| !cpus.is_empty())
    }

    fn libvirt(&self, choice: &Choice<'_>) -> Option<(&'static str, &str)> {
        libvirt(self.domains.get(&choice.vm)?, choice.kind, choice.thread.thread, choice.name)
    }

    /// Returns what chose the CPUs of a thread; `None` if nothing did. CPUs that the agent set count as another program's here.
    pub fn by(&self, choice: &Choice<'_>) -> Option<String> {
        let Choice { thread, present, .. } = choice;
        let Thread { process, thread: number, .. } = *thread;
        if let Some((element, _)) = self.libvirt(choice) {
            return Some(format!("libvirt's {element}"));
        }
        if self.free.is_subset(present) {
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
        let inherited = self.init.as_ref() == Some(*present);
        let by =
            if inherited { "CPUAffinity= of systemd" } else { "its CPU affinity, which another program set" };
        Some(by.into())
    }
}

/// The CPUs of a thread, of whose choice is asked.
#[derive(Clone, Copy, Debug)]
pub struct Choice<'a> {
    /// The process for whose VM it works.
    pub vm: u32,
    /// Its kind.
    pub kind: ThreadKind,
    /// The thread.
    pub thread: Thread,
    /// Its name.
    pub name: &'a str,
    /// Its CPUs.
    pub present: &'a Cpus,
}

/// Returns the element of a domain that chose a thread's CPUs, and these as libvirt lists them.
fn libvirt<'d>(
    domain: &'d Running,
    kind: ThreadKind,
    thread: u32,
    name: &str,
) -> Option<(&'static str, &'d str)> {
    let Running { pins, vcpus, .. } = domain;
    let own = match kind {
        ThreadKind::Vcpu => {
            let number = vcpus.iter().find(|(_, of)| **of == thread).map(|(number, _)| *number);
            let number = number.or_else(|| vm::vcpu_number(name));
            number.and_then(|number| pins.vcpus.get(&number)).map(|cpus| ("<vcpupin>", cpus))
        }
        ThreadKind::Io => {
            let number = name.strip_prefix("IO iothread").and_then(|number| number.parse().ok());
            number.and_then(|number: u32| pins.io.get(&number)).map(|cpus| ("<iothreadpin>", cpus))
        }
        ThreadKind::Emulator | ThreadKind::Vhost => {
            pins.emulator.as_ref().map(|cpus| ("<emulatorpin>", cpus))
        }
    };
    own.or_else(|| Some(("<vcpu cpuset=...>", pins.all.as_ref()?)))
        .map(|(element, cpus)| (element, cpus.as_str()))
}
