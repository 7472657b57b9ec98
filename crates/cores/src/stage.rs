//! The work for frames: stages, their load, and frames from stage to stage.

use crate::cpus::Cpus;
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};

/// One part of the work for frames, which runs on one CPU at a time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stage {
    /// What it is, and how the kernel names it. Unique on the host.
    pub handle: Handle,
    /// The vNICs for which it works, sorted; empty if for none in particular.
    pub vnics: Vec<String>,
    /// Whether a deadline depends on it: it needs a CPU for itself.
    pub realtime: bool,
    /// CPU time that it uses, millionths of one CPU: measured over the last minute, or from contracts.
    pub load: u32,
    /// Whether `load` was measured.
    pub measured: bool,
    /// The CPUs where it may run at present.
    pub present: Cpus,
    /// The program or setting that already chose these CPUs, in words such as `libvirt's <vcpupin>`: the plan leaves the stage there
    /// unless the administrator lets it adopt.
    pub pinned_by: Option<String>,
}

/// A stage by kind, and by the kernel's name for it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Handle {
    /// An interrupt of a NIC.
    Irq {
        /// The kernel's number.
        number: u32,
        /// The interface, and its queue or vector, as the driver names it.
        name: String,
    },
    /// The network stack for frames received on a queue of an interface (a softirq, `rps_cpus`).
    Receive(Queue),
    /// Transmission through a queue of an interface: the CPUs that use it (`xps_cpus`).
    Transmit(Queue),
    /// The softirq work of one steered flow of a NIC.
    Flow {
        /// The interface.
        device: String,
        /// The flow's name.
        name: String,
    },
    /// A thread of a kind.
    Thread {
        /// Its kind.
        kind: ThreadKind,
        /// The thread.
        thread: Thread,
        /// Its own name (`comm`), such as `CPU 0/KVM`.
        name: Label,
    },
    /// A worker of the host switch, which the switch places as directed. Its load is what it does beside the work of its ports.
    Worker(usize),
    /// A vNIC's part of the work of the host switch's workers: it runs on the CPU of the vNIC's worker.
    Port(String),
}

/// A queue of a network interface.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Queue {
    /// The interface, in the agent's network namespace.
    pub device: String,
    /// From 0.
    pub queue: u16,
}

/// A name for people, which tells nothing apart: all are equal. A thread renames itself at will, and stays the same work.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Label(String);

impl Label {
    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl<T: Into<String>> From<T> for Label {
    fn from(name: T) -> Self {
        Self(name.into())
    }
}

impl PartialEq for Label {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Label {}

impl PartialOrd for Label {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Label {
    fn cmp(&self, _: &Self) -> Ordering {
        Ordering::Equal
    }
}

impl Hash for Label {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

/// Kinds of threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ThreadKind {
    /// vhost-net's thread for a VM.
    Vhost,
    /// A virtual CPU of a VM.
    Vcpu,
    /// The emulator's main thread and its helpers.
    Emulator,
    /// An I/O thread of the emulator.
    Io,
}

/// A thread, told from later threads of the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Thread {
    /// The process.
    pub process: u32,
    /// The thread.
    pub thread: u32,
    /// Its start, clock ticks since boot (field 22 of `/proc/PID/task/TID/stat`, proc_pid_stat(5)).
    pub started: u64,
}

/// Kinds of stages, for which costs are stated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A NIC's interrupt.
    HardIrq,
    /// A softirq: the network stack for received frames.
    SoftIrq,
    /// vhost-net's thread.
    Vhost,
    /// A virtual CPU.
    Vcpu,
    /// The emulator's own threads and its I/O threads.
    Emulator,
    /// A worker of the host switch, which polls.
    Worker,
    /// Transmission.
    Transmit,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 7] =
        [Self::HardIrq, Self::SoftIrq, Self::Vhost, Self::Vcpu, Self::Emulator, Self::Worker, Self::Transmit];
}

impl Handle {
    /// Returns the kind of the stage.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Irq { .. } => Kind::HardIrq,
            Self::Receive(_) | Self::Flow { .. } => Kind::SoftIrq,
            Self::Transmit(_) => Kind::Transmit,
            Self::Thread { kind: ThreadKind::Vhost, .. } => Kind::Vhost,
            Self::Thread { kind: ThreadKind::Vcpu, .. } => Kind::Vcpu,
            Self::Thread { kind: ThreadKind::Emulator | ThreadKind::Io, .. } => Kind::Emulator,
            Self::Worker(_) | Self::Port(_) => Kind::Worker,
        }
    }
}

/// For people, such as `vCPU thread 4711 (CPU 0/KVM)`.
impl fmt::Display for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queue = |f: &mut fmt::Formatter<'_>, what: &str, Queue { device, queue }: &Queue| {
            write!(f, "{what} of queue {queue} of {device}")
        };
        match self {
            Self::Irq { number, name } => write!(f, "interrupt {number} ({name})"),
            Self::Receive(of) => queue(f, "receive stack", of),
            Self::Transmit(of) => queue(f, "transmission", of),
            Self::Flow { device, name } => write!(f, "flow {name} of {device}"),
            Self::Thread { kind, thread, name } => {
                let kind = match kind {
                    ThreadKind::Vhost => "vhost-net",
                    ThreadKind::Vcpu => "vCPU",
                    ThreadKind::Emulator => "emulator",
                    ThreadKind::Io => "I/O",
                };
                write!(f, "{kind} thread {} ({})", thread.thread, name.as_str())
            }
            Self::Worker(worker) => write!(f, "worker {worker}"),
            Self::Port(vnic) => write!(f, "port {vnic}"),
        }
    }
}

/// Frames that go from one stage to the next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// From.
    pub from: Handle,
    /// To.
    pub to: Handle,
    /// Frames a second, both ways.
    pub frames: u32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_thread_that_renames_itself_is_the_same_work() {
        let named = |name: &str| {
            let thread = Thread { process: 7, thread: 8, started: 9 };
            Handle::Thread { kind: ThreadKind::Vcpu, thread, name: name.into() }
        };
        let (one, other) = (named("CPU 0/KVM"), named("CPU 1/KVM"));
        assert_eq!(one, other);
        assert_eq!([&one, &other].into_iter().collect::<BTreeSet<_>>().len(), 1);
        assert_eq!(one.to_string(), "vCPU thread 8 (CPU 0/KVM)");
        let text = serde_json::to_string(&one).unwrap();
        assert!(text.contains(r#""name":"CPU 0/KVM""#), "{text}");
    }
}
