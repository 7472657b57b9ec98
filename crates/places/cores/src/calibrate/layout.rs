//! Layouts: which CPU does what in one window. Pure.

use std::collections::{BTreeMap, BTreeSet};

/// One flow of datagrams: a sender, the network stack behind a veth pair, and a receiver that stands for a virtual CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The CPU of the sender.
    pub transmit: usize,
    /// The CPU of the stack for received frames.
    pub soft: usize,
    /// The CPU of the receiver.
    pub receiver: usize,
}

/// All work of one window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Flows, each with a veth pair of its own; at most [`Layout::FLOWS`].
    pub flows: Vec<Flow>,
    /// CPUs of a polling worker, and of a receiver to which it hands frames through shared memory.
    pub handed: Option<(usize, usize)>,
    /// Two CPUs between which a cache line goes to and fro.
    pub line: Option<(usize, usize)>,
    /// CPUs that copy memory without end.
    pub copies: Vec<usize>,
    /// CPUs without work of ours, whose used time is measured.
    pub idle: Vec<usize>,
}

impl Layout {
    /// Most flows of a layout.
    pub const FLOWS: usize = 2;

    /// Returns a layout of flows alone.
    pub fn flows(flows: &[Flow]) -> Self {
        Self { flows: flows.to_vec(), ..Self::default() }
    }

    /// Returns the CPUs of all work.
    pub fn cpus(&self) -> BTreeSet<usize> {
        let pairs = [self.handed, self.line].into_iter().flatten().flat_map(|(one, other)| [one, other]);
        self.measured().into_iter().chain(pairs).chain(self.copies.iter().copied()).collect()
    }

    /// Returns the CPUs whose used time can be measured: no work there polls.
    pub fn measured(&self) -> BTreeSet<usize> {
        let flows = self.flows.iter().flat_map(|flow| [flow.transmit, flow.soft, flow.receiver]);
        flows.chain(self.idle.iter().copied()).collect()
    }
}

/// What was counted in one window.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Window {
    /// Its length, ns.
    pub span: f64,
    /// Frames that were received, of all flows.
    pub frames: f64,
    /// Frames that were lost.
    pub lost: f64,
    /// Used time of each measured CPU, ns: ours, and that of other programs.
    pub used: BTreeMap<usize, f64>,
    /// CPU time of a frame at a polling worker and at its receiver, ns.
    pub handed: [f64; 2],
    /// Copies of the first CPU that copies, or round trips of the line.
    pub turns: f64,
}
