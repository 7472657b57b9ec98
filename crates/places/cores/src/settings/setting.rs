//! The settings that the agent makes for CPUs, and their values as the kernel writes them.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;
use tidegate_cores::cpus::{self, Cpus};
use tidegate_cores::stage::{Queue, Thread};

/// One setting of the kernel.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Setting {
    /// The CPUs that run the stack for frames received on a queue; for a tap, for what is written into it: `rps_cpus`
    /// (Documentation/networking/scaling.rst). Its value is a mask; 0 is the CPU that received them.
    Rps {
        /// The interface's network namespace; the agent's own where absent.
        netns: Option<PathBuf>,
        /// The interface.
        device: String,
        /// From 0.
        queue: u16,
    },
    /// The longest time that a CPU may take to wake from idle: `pm_qos_resume_latency_us`
    /// (Documentation/ABI/testing/sysfs-devices-power). `0` is any time, `n/a` none: it never halts.
    Resume {
        /// The CPU.
        cpu: usize,
    },
    /// The CPUs that transmit through a queue: `xps_cpus` (Documentation/networking/scaling.rst). Its value is a mask.
    Xps {
        /// The interface's network namespace; the agent's own where absent.
        netns: Option<PathBuf>,
        /// The interface.
        device: String,
        /// From 0.
        queue: u16,
    },
    /// The CPUs on which a thread may run: `Cpus_allowed_list` of proc_pid_status(5). Its value is a list.
    Affinity(Thread),
    /// The share of a thread in a CPU that it does not have for itself: its nice value, -20 to 19 (sched(7)).
    Nice(Thread),
    /// The CPUs that take an interrupt: `smp_affinity_list` (Documentation/core-api/irq/irq-affinity.rst). Its value is a list.
    Irq {
        /// The kernel's number.
        number: u32,
    },
}

/// The value of a CPU's [`Setting::Resume`] while it does not halt.
pub const NO_LATENCY: &str = "n/a";

impl Setting {
    /// Returns the setting of the CPUs that run the stack of a queue.
    pub fn rps(Queue { device, queue }: &Queue) -> Self {
        Self::Rps { netns: None, device: device.clone(), queue: *queue }
    }

    /// Returns the setting of the CPUs that transmit through a queue.
    pub fn xps(Queue { device, queue }: &Queue) -> Self {
        Self::Xps { netns: None, device: device.clone(), queue: *queue }
    }

    /// Returns the CPUs that a value of it names; `None` if it is none of CPUs.
    pub fn cpus(&self, value: &str) -> Option<Cpus> {
        match self {
            Self::Rps { .. } | Self::Xps { .. } => cpus::from_mask(value),
            Self::Affinity(_) | Self::Irq { .. } => cpus::from_list(value),
            Self::Nice(_) | Self::Resume { .. } => None,
        }
    }

    /// Whether it ends by itself, often and unannounced: its absence is no fault.
    pub fn may_end(&self) -> bool {
        matches!(self, Self::Affinity(_) | Self::Nice(_) | Self::Irq { .. })
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut queue = |file: &str, netns: &Option<PathBuf>, device: &str, queue: u16| {
            write!(f, "{file} of queue {queue} of {device}")?;
            netns.as_ref().map_or(Ok(()), |netns| write!(f, " in {}", netns.display()))
        };
        match self {
            Self::Rps { netns, device, queue: number } => queue("rps_cpus", netns, device, *number),
            Self::Xps { netns, device, queue: number } => queue("xps_cpus", netns, device, *number),
            Self::Resume { cpu } => write!(f, "pm_qos_resume_latency_us of CPU {cpu}"),
            Self::Affinity(thread) => {
                write!(f, "CPUs of thread {} of process {}", thread.thread, thread.process)
            }
            Self::Nice(thread) => {
                write!(f, "nice value of thread {} of process {}", thread.thread, thread.process)
            }
            Self::Irq { number } => write!(f, "CPUs of interrupt {number}"),
        }
    }
}
