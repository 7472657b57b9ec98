//! How long frames wait in the queues of this place: measured by the programs of `wait.bpf.c`.
//!
//! ```text
//!  watch(queue) ─▶ map `queues` ◀─ classifier or qdisc_enqueue, qdisc_dequeue (every frame)
//!                      │
//!                      └─▶ read(queue) ─▶ Waits
//! ```
//!
//! The programs run while the [`Meter`] lives. A host without measured queues pays two comparisons per
//! frame.

use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, Object, ObjectBuilder};
use std::fmt;

/// `BUCKETS` of `histogram.h`: 32 per power of two, up to 2^35 ns.
pub const BUCKETS: usize = 31 * 32;
/// `struct waits`: the kind of arrival, four counters, and the buckets.
const VALUE: usize = (5 + BUCKETS) * 8;

const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/wait.bpf.o"));

/// One queue of a netdev.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Queue {
    /// Interface index.
    pub index: u32,
    /// For frames that the host receives from it; else those that the host sends into it.
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

/// How a frame's arrival in a queue outside the IFB is known; on the IFB the classifier writes it into the
/// frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ArrivalSource {
    /// By the frame's address, noted at its enqueueing.
    #[default]
    Address,
    /// By a field of `fq_codel`.
    FqCodel,
    /// By a field of `cake`.
    Cake,
    /// By the congestion filter before the queue, which writes it into the frame as the classifier does.
    Stamped,
    /// Unknown: super-frames are cut, and their parts have addresses of their own.
    Unknown,
}

/// Waits in a queue since its watch began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waits {
    /// Time with frames that waited for tokens (ns). A frame that left within 20 us found tokens.
    pub throttled_ns: u64,
    /// The longest wait, ns.
    pub max: u64,
    /// Sum of waits (ns).
    pub sum: u64,
    /// Frames by their wait; a super-frame is one, or its parts if it is cut. Log-linear, [`BUCKETS`] of
    /// them.
    pub buckets: Vec<u64>,
}

/// Waits cannot be measured or read.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what}: {source}")]
pub struct MeterError {
    what: &'static str,
    source: libbpf_rs::Error,
}

fn failed(what: &'static str) -> impl FnOnce(libbpf_rs::Error) -> MeterError {
    move |source| MeterError { what, source }
}

/// The running programs.
pub struct Meter {
    queues: MapHandle,
    // Dropped first: the programs end with them.
    _links: Vec<Link>,
    _object: Object,
}

impl Meter {
    /// Loads the programs; every frame in a watched queue is measured.
    ///
    /// # Errors
    /// No right to (`CAP_BPF` and `CAP_PERFMON`), or a kernel without BTF or the tracepoints
    /// `qdisc_enqueue` and `qdisc_dequeue` (5.15 has them).
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

    /// Measures a queue, with arrivals known by `arrival`; a measured one continues.
    ///
    /// # Errors
    /// The kernel has no memory, or measures 4096 queues.
    pub fn watch(&self, queue: Queue, arrival: ArrivalSource) -> Result<(), MeterError> {
        if self.read(queue)?.is_some() {
            return Ok(());
        }
        let mut nothing = [0; VALUE];
        nothing[..8].copy_from_slice(&(arrival as u64).to_ne_bytes());
        self.queues.update(&queue.key(), &nothing, MapFlags::ANY).map_err(failed("measure one queue more"))
    }

    /// Ends the measurement of a queue, and forgets its results.
    ///
    /// # Errors
    /// It was not measured.
    pub fn forget(&self, queue: Queue) -> Result<(), MeterError> {
        self.queues.delete(&queue.key()).map_err(failed("stop measuring a queue"))
    }

    /// Returns the measured queues.
    pub fn watched(&self) -> Vec<Queue> {
        let queue = |key: Vec<u8>| {
            let (index, ingress) = key.split_at_checked(4)?;
            let number = |bytes: &[u8]| bytes.try_into().ok().map(u32::from_ne_bytes);
            Some(Queue { index: number(index)?, ingress: number(ingress)? != 0 })
        };
        self.queues.keys().filter_map(queue).collect()
    }

    /// Returns the results; `None` for an unmeasured queue.
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

/// Returns the number of this thread's network namespace.
pub(crate) fn namespace() -> std::io::Result<u32> {
    use std::os::unix::fs::MetadataExt;
    let inode = std::fs::metadata("/proc/thread-self/ns/net")?.ino();
    u32::try_from(inode).map_err(std::io::Error::other)
}

/// Parses `struct waits`.
fn waits(bytes: &[u8]) -> Waits {
    let mut words = bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word));
    let mut next = || words.next().unwrap_or_default();
    let (_arrival, throttled_ns, _left, max, sum) = (next(), next(), next(), next(), next());
    Waits { throttled_ns, max, sum, buckets: words.collect() }
}
