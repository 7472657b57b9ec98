//! What to do when libvirt calls its qemu hook.
//!
//! ```text
//!  prepare ─▶ start ─▶ (QEMU runs) ─▶ started ─▶ … ─▶ stopped ─▶ release
//!  check      put       no tap before start, no frame before put             remove
//! ```
//!
//! Source: libvirt, "Hooks for specific system management". A hook that fails before the VM runs keeps it from
//! starting; one that fails at `reconnect` ends a VM that runs. A hook must not call libvirt: it waits for the hook.

use std::time::Duration;

/// What libvirt calls for, and whether it may be told no.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Whether the domain's contracts are contracts at all: its taps are not made yet. Refusing keeps it from
    /// starting.
    Check,
    /// Have them in force.
    Put {
        /// Whether a refusal keeps the domain from starting, which is what should happen; where it would end a VM
        /// that runs already, it must not.
        may_refuse: bool,
    },
    /// They go: the domain is no more.
    Remove,
    /// Nothing: the moment before or after says more.
    Nothing,
}

impl Call {
    /// Longest that it may take as a whole. libvirt waits for it, and with libvirt the person or program that asked for the domain. A domain
    /// that is refused is asked for and removed, one call each: together less than 5 s, with the time that two processes take
    /// to start.
    pub const fn patience(self) -> Duration {
        match self {
            Self::Put { .. } => Duration::from_millis(3_500),
            // `tidegate libvirt watch` removes what this cannot.
            Self::Check | Self::Remove | Self::Nothing => Duration::from_secs(1),
        }
    }
}

/// What to do at an operation, by libvirt's name of it; `None` where this release does not know it.
pub fn call(operation: &str) -> Option<Call> {
    match operation {
        "prepare" => Some(Call::Check),
        "start" => Some(Call::Put { may_refuse: true }),
        "reconnect" | "attach" => Some(Call::Put { may_refuse: false }),
        "release" => Some(Call::Remove),
        // Of `migrate` and `restore` libvirt reads the output: none means that the domain stays as it is. What comes
        // in goes through `prepare` and `start` like any other.
        "started" | "stopped" | "migrate" | "restore" => Some(Call::Nothing),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vm_that_runs_is_never_refused() {
        let before = ["prepare", "start", "migrate", "restore"];
        for operation in
            ["prepare", "start", "started", "stopped", "release", "migrate", "restore", "reconnect", "attach"]
        {
            let call = call(operation).expect(operation);
            let refuses = matches!(call, Call::Check | Call::Put { may_refuse: true });
            assert!(!refuses || before.contains(&operation), "{operation}");
        }
        assert_eq!(call("teleport"), None);
    }

    #[test]
    fn a_domain_that_is_refused_is_told_within_five_seconds() {
        let calls =
            ["prepare", "start", "stopped", "release"].map(|operation| call(operation).expect("known"));
        // The others do not speak to the agent.
        let speaks = |call: &&Call| matches!(call, Call::Put { .. } | Call::Remove);
        let all: Duration = calls.iter().filter(speaks).map(|call| call.patience()).sum();
        assert!(all <= Duration::from_millis(4_500), "{all:?}");
    }
}
