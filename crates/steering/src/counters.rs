//! Where frames went. All counts start when the program was loaded, and wrap around.

use crate::maps::Count;
use serde::Serialize;
use std::collections::BTreeMap;

/// The counters of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Of each entry, by its name.
    pub entries: BTreeMap<String, EntryCount>,
    /// Frames to each CPU, by an entry or by their hash; those that were on it already, too.
    pub sent: BTreeMap<usize, Count>,
    /// Among them, frames that went by their hash.
    pub spread_to: BTreeMap<usize, Count>,
    /// Frames that were sent to a CPU and did not fit into its queue (2,048 frames); absent if the kernel does not let us count them. Counted
    /// since this process attached.
    pub dropped: Option<BTreeMap<usize, u64>>,
    /// What became of frames.
    pub outcomes: Outcomes,
}

/// The counters of an entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EntryCount {
    /// The CPU that its frames go to.
    pub cpu: usize,
    /// Its frames, by the CPU of the NIC's interrupt.
    pub received_on: BTreeMap<usize, Count>,
}

impl EntryCount {
    /// Returns the frames of all CPUs.
    pub fn total(&self) -> Count {
        self.received_on.values().copied().sum()
    }
}

/// What became of frames, by the CPU of the NIC's interrupt. Those without a target go to the kernel on that CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Outcomes {
    /// By an entry.
    pub matched: BTreeMap<usize, Count>,
    /// By their hash, to one of the CPUs for frames without an entry.
    pub spread: BTreeMap<usize, Count>,
    /// No entry, and no such CPUs.
    pub unmatched: BTreeMap<usize, Count>,
    /// The CPU is off.
    pub no_target: BTreeMap<usize, Count>,
    /// A fragment, of the frame or of the one inside: only the first has ports.
    pub fragment: BTreeMap<usize, Count>,
    /// The frame ends within its headers.
    pub truncated: BTreeMap<usize, Count>,
    /// Headers that are not IP, or break their own rules.
    pub unknown: BTreeMap<usize, Count>,
}

/// Names each CPU that counted anything.
pub(crate) fn by_cpu(counts: &[Count]) -> BTreeMap<usize, Count> {
    counts.iter().copied().enumerate().filter(|(_, count)| count.frames != 0).collect()
}
