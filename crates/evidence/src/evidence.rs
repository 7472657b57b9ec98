//! All that a place counted at one look.

use crate::{
    FarMiss, Figure, LogStats, Miss, NetworkPath, PairStatus, PeerStatus, RdmaStatus, SocketCounts, Unknown,
    VnicStats, WorkerStats,
};
use std::collections::BTreeMap;
use std::time::Instant;

/// The counters of a place.
#[derive(Clone, Debug)]
pub struct Evidence {
    /// Time of the look.
    pub taken: Instant,
    /// Counters by vNIC.
    pub vnics: BTreeMap<String, VnicStats>,
    /// The source of these counters, such as `the host switch: shared memory`.
    pub source: String,
    /// Figures by vNIC, if each has a source of its own.
    pub figures: BTreeMap<String, Vec<Figure>>,
    /// The parts of `vnics` that the place does not count, by vNIC.
    pub unknown: BTreeMap<String, Unknown>,
    /// The latest misses by vNIC, oldest first; vNICs without misses are left out.
    pub misses: BTreeMap<String, Vec<Miss>>,
    /// Number of misses by vNIC and by the kind of culprit that delayed the worker.
    pub culprits: BTreeMap<String, BTreeMap<String, u64>>,
    /// Why culprits are not observed; `None` if they are.
    pub unobserved: Option<String>,
    /// The workers' counters.
    pub workers: Vec<WorkerStats>,
    /// Whether the place counts how often the host exceeds its budget H.
    pub counts_latency: bool,
    /// Whether the place counts waiting flows and frames marked (ECN).
    pub counts_flows: bool,
    /// System calls denied to the place's process.
    pub denied_calls: u64,
    /// Lines that the log of the place's process did not write; `None` if the place has no process.
    pub log: Option<LogStats>,
    /// Other hosts.
    pub peers: Vec<PeerStatus>,
    /// Pairs of vNICs with frames that carry stamps, by uplink.
    pub pairs: BTreeMap<String, Vec<PairStatus>>,
    /// RDMA, by uplink.
    pub rdma: BTreeMap<String, RdmaStatus>,
    /// Frames of NICs' queues to workers, by uplink.
    pub sockets: BTreeMap<String, Vec<SocketCounts>>,
    /// The latest frames that other hosts reported as late, oldest first.
    pub far_misses: Vec<FarMiss>,
    /// Paths through the network, by the vNIC that sends.
    pub paths: BTreeMap<String, Vec<NetworkPath>>,
}

impl Evidence {
    /// No counters, read from `source`.
    pub fn empty(source: &str) -> Self {
        Self {
            taken: Instant::now(),
            vnics: BTreeMap::new(),
            source: source.into(),
            figures: BTreeMap::new(),
            unknown: BTreeMap::new(),
            misses: BTreeMap::new(),
            culprits: BTreeMap::new(),
            unobserved: None,
            workers: vec![],
            counts_latency: false,
            counts_flows: false,
            denied_calls: 0,
            log: None,
            peers: vec![],
            pairs: BTreeMap::new(),
            rdma: BTreeMap::new(),
            sockets: BTreeMap::new(),
            far_misses: vec![],
            paths: BTreeMap::new(),
        }
    }
}
