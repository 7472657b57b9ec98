//! A qdisc with its settings, as observed or wanted.

use crate::handle::Handle;

/// A qdisc.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Qdisc {
    /// Major 0 if the kernel made it by itself.
    pub handle: Handle,
    /// Root, clsact, a class, or the qdisc below a class that cuts super-frames.
    pub parent: Handle,
    /// Its kind and settings.
    pub setting: Setting,
}

/// Kind of a qdisc, with the settings that the plan compares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Setting {
    /// `htb`.
    Htb {
        /// Minor of the class for frames that no filter classifies; 0 passes them without a limit.
        default: u32,
    },
    /// `bfifo`.
    Bfifo {
        /// Queue limit, bytes.
        limit: u32,
    },
    /// `tbf` that limits nothing: its rate, which no device reaches, encodes the largest uncut super-frame.
    Cut {
        /// The largest super-frame that is not cut, bytes on the wire; of other frames, a larger one is dropped.
        largest: u32,
    },
    /// `fq_codel`, with ECN and its other defaults.
    FqCodel {
        /// CoDel's target, units of 1,024 ns.
        target: u32,
        /// Its interval, units of 1,024 ns.
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

/// The address that tells the host of a frame, for fairness between hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Host {
    /// Source address: for frames that a VM sends.
    #[default]
    Source,
    /// Destination address: for frames that a VM receives.
    Destination,
}
