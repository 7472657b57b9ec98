//! A qdisc with its settings, as observed or wanted.

use crate::handle::Handle;

/// A qdisc.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Qdisc {
    /// Major 0 where the kernel made it by itself.
    pub handle: Handle,
    /// Root, clsact, a class, or what cuts below one.
    pub parent: Handle,
    /// What it is.
    pub setting: Setting,
}

/// Kind of a qdisc, with what the plan cares for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Setting {
    /// `htb`.
    Htb {
        /// Minor of the class for what no filter takes; 0 passes it on without any limit.
        default: u32,
    },
    /// `bfifo`.
    Bfifo {
        /// Most bytes that wait.
        limit: u32,
    },
    /// `tbf` that limits nothing: its rate is one that no device has, and says what it cuts.
    Cut {
        /// The largest super-frame that is not cut, bytes on the wire; of other frames, a larger one is dropped.
        largest: u32,
    },
    /// `fq_codel`, with ECN and what else it has by itself.
    FqCodel {
        /// CoDel's target, units of 1,024 ns.
        target: u32,
        /// Its interval, the same.
        interval: u32,
        /// Most bytes of memory.
        memory: u32,
    },
    /// `cake` without a rate, best effort only.
    Cake {
        /// Target, us.
        target: u32,
        /// Interval, us.
        interval: u32,
        /// Most bytes of memory.
        memory: u32,
        /// Fairness between these hosts first.
        hosts: Option<Host>,
        /// Whether super-frames are cut.
        split: bool,
    },
    /// `clsact`.
    Clsact,
    /// Any other kind.
    Other(String),
}

impl Setting {
    /// As `tc` names it.
    pub fn kind(&self) -> &str {
        match self {
            Self::Htb { .. } => "htb",
            Self::Bfifo { .. } => "bfifo",
            Self::Cut { .. } => "tbf",
            Self::FqCodel { .. } => "fq_codel",
            Self::Cake { .. } => "cake",
            Self::Clsact => "clsact",
            Self::Other(kind) => kind,
        }
    }
}

/// Which address of a frame says of which host it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Host {
    /// Source addresses: what a VM sends.
    #[default]
    Source,
    /// Destination addresses: what it receives.
    Destination,
}
