//! Which other program, or setting, chose the CPUs of a thread. Pure.

use std::collections::BTreeMap;
use tidegate_cores::cpus::Cpus;
use tidegate_cores::machine::Machine;
use tidegate_cores::stage::Handle;

/// What is known of choices.
pub struct Pinning<'a> {
    /// CPUs that the kernel gives to a thread for which nobody chose: online, and not set apart at boot.
    free: Cpus,
    /// CPUs that the plan has set.
    set: &'a BTreeMap<Handle, Cpus>,
}

impl<'a> Pinning<'a> {
    /// Of a machine, and the CPUs that the plan has set.
    pub fn new(machine: &Machine, set: &'a BTreeMap<Handle, Cpus>) -> Self {
        let free = machine.online().difference(&machine.isolated()).copied().collect();
        Self { free, set }
    }

    /// Returns what chose the `present` CPUs of a thread; `None` if nothing but the plan did.
    pub fn by(&self, handle: &Handle, present: &Cpus) -> Option<String> {
        if self.free.is_subset(present) || self.set.contains_key(handle) {
            return None;
        }
        Some("its CPU affinity, which another program set".into())
    }
}
