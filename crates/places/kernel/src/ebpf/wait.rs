//! How long frames wait in the queues of this place: what the programs of `wait.bpf.c` measure.
//!
//! ```text
//!  watch(queue) ─▶ map `queues` ◀─ classifier or qdisc_enqueue, qdisc_dequeue (every frame)
//!                      │
//!                      └─▶ read(queue) ─▶ Waits
//! ```
//!
//! The programs run for as long as the [`Meter`] lives. A host that measures no queue pays for two comparisons per
//! frame.

use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, Object, ObjectBuilder};
use std::fmt;

/// `BUCKETS` of `histogram.h`: 32 per power of two, up to 2^35 ns.
pub const BUCKETS: usize = 31 * 32;
/// `struct waits`: how arrivals are known, four counters, and the buckets.
const VALUE: usize = (5 + BUCKETS) * 8;

const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/wait.bpf.o"));

/// One queue of a netdev.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Queue {
    /// Interface index.
    pub index: u32,
    /// Of what the host receives from it; else of what the host sends into it.
    pub ingress: bool,
}

impl Queue {
    /// `struct end`.
    fn key(self) -> [u8; 8] {
        let mut key = [0; 8];
        key[..4].copy_from_slice(&self.index.to_ne_bytes());
        key[4..].copy_from_slice(&u32::from(self.ingress).to_ne_bytes());
        key
    }
}

/// How it is known when a frame came to a queue that is not on the IFB; there the classifier writes it into each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Came {
    /// By its address, noted when it is enqueued.
    #[default]
    Address,
    /// By what `fq_codel` keeps with each.
    FqCodel,
    /// By what `cake` keeps.
    Cake,
    /// By what marks congestion before the queue, which writes it into each as the classifier does.
    Stamped,
    /// It is not: super-frames are cut, and their parts have addresses of their own.
    Unknown,
}

/// How long frames waited in a queue since it was watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waits {
    /// Time with frames that waited for tokens, ns. A frame that left within 20 us met tokens.
    pub throttled_ns: u64,
    /// The longest wait, ns.
    pub max: u64,
    /// All waits together, ns.
    pub sum: u64,
    /// Frames by how long they waited; a super-frame is one, or its parts, where it is cut. Log-linear, [`BUCKETS`] of them.
    pub buckets: Vec<u64>,
}

/// Waits cannot be measured, or not read.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what}: {source}")]
pub struct MeterError {
    what: &'static str,
    source: libbpf_rs::Error,
}

fn failed(what: &'static str) -> impl FnOnce(libbpf_rs::Error) -> MeterError {
    move |source| MeterError { what, source }
}

/// The programs, at work.
pub struct Meter {
    queues: MapHandle,
    // Dropped first: they end with the programs.
    _links: Vec<Link>,
    _object: Object,
}

impl Meter {
    /// Loads the programs, and has every frame measured that passes a watched queue.
    ///
    /// # Errors
    /// No right to (`CAP_BPF` and `CAP_PERFMON`), or a kernel without BTF or the tracepoints `qdisc_enqueue` and `qdisc_dequeue`
    /// (5.15 has them).
    pub fn load() -> Result<Self, MeterError> {
        let mut builder = ObjectBuilder::default();
        let mut opened = builder.open_memory(PROGRAM).map_err(failed("read the eBPF programs"))?;
        // `namespace`, the only constant.
        let mut constants = opened.maps_mut().find(|map| map.name().to_string_lossy().ends_with(".rodata"));
        let constants = constants.as_mut().expect("wait.bpf.c has a constant");
        let namespace =
            namespace().map_err(libbpf_rs::Error::from).map_err(failed("tell the network namespace"))?;
        constants.set_initial_value(&namespace.to_ne_bytes()).map_err(failed("set the network namespace"))?;
        let object = opened.load().map_err(failed("load the eBPF programs that measure waits"))?;
        let links = object.progs_mut().map(|program| program.attach());
        let links = links.collect::<Result<_, _>>();
        let links = links.map_err(failed("attach the eBPF programs that measure waits"))?;
        let map = object.maps().find(|map| map.name() == "queues");
        let map = map.expect("wait.bpf.c has a map of this name");
        let queues = MapHandle::try_from(&map).map_err(failed("reach the map of the eBPF programs"))?;
        Ok(Self { queues, _links: links, _object: object })
    }

    /// Measures a queue from now on, to which frames came as `came` says; one that is measured already goes on.
    ///
    /// # Errors
    /// The kernel has no memory, or 4096 queues are measured.
    pub fn watch(&self, queue: Queue, came: Came) -> Result<(), MeterError> {
        if self.read(queue)?.is_some() {
            return Ok(());
        }
        let mut nothing = [0; VALUE];
        nothing[..8].copy_from_slice(&(came as u64).to_ne_bytes());
        self.queues.update(&queue.key(), &nothing, MapFlags::ANY).map_err(failed("measure one queue more"))
    }

    /// Measures a queue no longer, and forgets what was measured.
    ///
    /// # Errors
    /// It was not measured.
    pub fn forget(&self, queue: Queue) -> Result<(), MeterError> {
        self.queues.delete(&queue.key()).map_err(failed("stop measuring a queue"))
    }

    /// The queues that are measured.
    pub fn watched(&self) -> Vec<Queue> {
        let queue = |key: Vec<u8>| {
            let (index, ingress) = key.split_at_checked(4)?;
            let number = |bytes: &[u8]| bytes.try_into().ok().map(u32::from_ne_bytes);
            Some(Queue { index: number(index)?, ingress: number(ingress)? != 0 })
        };
        self.queues.keys().filter_map(queue).collect()
    }

    /// What was measured; `None` of a queue that is not.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn read(&self, queue: Queue) -> Result<Option<Waits>, MeterError> {
        let value =
            self.queues.lookup(&queue.key(), MapFlags::ANY).map_err(failed("read what was measured"))?;
        Ok(value.map(|bytes| waits(&bytes)))
    }
}

impl fmt::Debug for Meter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Meter").field("watched", &self.watched()).finish_non_exhaustive()
    }
}

/// The number of this thread's network namespace.
pub(crate) fn namespace() -> std::io::Result<u32> {
    use std::os::unix::fs::MetadataExt;
    let inode = std::fs::metadata("/proc/thread-self/ns/net")?.ino();
    u32::try_from(inode).map_err(std::io::Error::other)
}

/// From `struct waits`.
fn waits(bytes: &[u8]) -> Waits {
    let mut words = bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word));
    let mut next = || words.next().unwrap_or_default();
    let (_came, throttled_ns, _left, max, sum) = (next(), next(), next(), next(), next());
    Waits { throttled_ns, max, sum, buckets: words.collect() }
}
