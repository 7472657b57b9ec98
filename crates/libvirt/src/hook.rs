//! The action for each call of libvirt's qemu hook.
//!
//! ```text
//!  prepare ─▶ start ─▶ (QEMU runs) ─▶ started ─▶ … ─▶ stopped ─▶ release
//!  check      put       no tap before start, no frame before put             remove
//! ```
//!
//! Source: libvirt, "Hooks for specific system management". A hook that fails before the VM runs prevents
//! its start; one that fails at `reconnect` ends a running VM. A hook must not call libvirt, which waits
//! for it.

use std::time::Duration;

/// The action of a call, and whether it may fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Checks the domain's contracts: its taps do not exist yet. A refusal prevents its start.
    Check,
    /// Brings the contracts into force.
    Put {
        /// Whether a refusal prevents the domain's start, as it should; it must not end a running VM.
        may_refuse: bool,
    },
    /// Removes the contracts: the domain has ended.
    Remove,
    /// Nothing: an earlier or later call does the work.
    Nothing,
}

impl Call {
    /// Returns the longest total time of the call. libvirt waits for it, and with libvirt the caller. A
    /// refused domain is requested and removed, one call each: together less than 5 s, including the start
    /// of two processes.
    pub const fn time_limit(self) -> Duration {
        match self {
            Self::Put { .. } => Duration::from_millis(3_500),
            // `tidegate libvirt watch` removes what this cannot.
            Self::Check | Self::Remove | Self::Nothing => Duration::from_secs(1),
        }
    }
}

/// Returns the action at an operation, by libvirt's name; `None` if this release does not know it.
pub fn call(operation: &str) -> Option<Call> {
    match operation {
        "prepare" => Some(Call::Check),
        "start" => Some(Call::Put { may_refuse: true }),
        "reconnect" | "attach" => Some(Call::Put { may_refuse: false }),
        "release" => Some(Call::Remove),
        // libvirt reads the output at `migrate` and `restore`: no output leaves the domain unchanged.
        // Incoming domains pass `prepare` and `start` like any other.
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
        // The others do not call the agent.
        let speaks = |call: &&Call| matches!(call, Call::Put { .. } | Call::Remove);
        let all: Duration = calls.iter().filter(speaks).map(|call| call.time_limit()).sum();
        assert!(all <= Duration::from_millis(4_500), "{all:?}");
    }
}
