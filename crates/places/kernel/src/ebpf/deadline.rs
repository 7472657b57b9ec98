//! Delays of real-time frames to another vNIC of this host, and the ends of late ones: the programs of
//! `deadline.bpf.c`.
//!
//! ```text
//!  watch(promise, deadline) ─▶ senders, delays ◀─ the programs, at every frame's end
//!                                        └─▶ read(promise) ─▶ Delays
//! ```
//!
//! A frame's clock starts when it leaves its class on the IFB: the later of its arrival and its conformance
//! to the envelope. It ends when the receiver has it: a process read it from the tap, or the other end of
//! the veth received it.
//!
//! The programs run while the [`DeadlineMeter`] lives, at every frame that ends anywhere on the host: a
//! host without deadlines should have none. If they miss a frame's departure from the receiver's queue, it
//! arrives when consumed, and its whole time there counts for the queue. Of two frames that end on one
//! processor at once, one in an interrupt of the other, only one is counted.

use crate::ebpf::wait::{BUCKETS, namespace};
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, Object, ObjectBuilder};
use std::collections::BTreeMap;
use std::fmt;

/// `REMEMBERED` of `deadline.h`.
const REMEMBERED: usize = 8;
/// `struct miss`: a time, three parts, a loss.
const MISS: usize = 5;
/// `struct delays`, in words of 8 bytes.
const WORDS: usize = 3 + 3 + 3 + 2 * REMEMBERED * MISS + BUCKETS;

const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/deadline.bpf.o"));

/// A sender with a deadline and its receiver: interface indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Promise {
    /// The sender's netdev.
    pub from: u32,
    /// The receiver's netdev.
    pub to: u32,
}

impl Promise {
    fn key(self) -> Vec<u8> {
        [self.from.to_ne_bytes(), self.to.to_ne_bytes()].concat()
    }
}

/// A part of a frame's path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Between the two queues: bridging, routing, the processor.
    Host,
    /// Behind other frames, in the queue of the receiver's netdev.
    Queue,
    /// In the receiver's hands.
    Receiver,
}

/// Why a frame was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Loss {
    /// A reason without a name here.
    Other,
    /// The queue of the receiver's netdev was full.
    QueueFull,
    /// The receiver had taken no frame while its ring filled.
    RingFull,
}

/// One miss. Times are ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissSeen {
    /// When (CLOCK_MONOTONIC).
    pub at: u64,
    /// Time in each [`Part`]; the sum is the delay.
    pub parts: [u64; 3],
    /// Why the frame was dropped, if it was.
    pub lost: Option<Loss>,
}

impl MissSeen {
    /// Returns the longest part, as the programs count it.
    pub fn longest(&self) -> Part {
        let [host, queue, receiver] = self.parts;
        if host > queue && host > receiver {
            Part::Host
        } else if receiver > queue {
            Part::Receiver
        } else {
            Part::Queue
        }
    }
}

/// Results of one promise since its watch with this deadline began; a super-frame is one frame.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delays {
    /// Larger delays are misses (ns).
    pub deadline: u64,
    /// Longest delay of an arrived frame (ns).
    pub max: u64,
    /// Sum of their delays (ns).
    pub sum: u64,
    /// Late frames by their longest part.
    pub late: BTreeMap<Part, u64>,
    /// Lost frames.
    pub lost: BTreeMap<Loss, u64>,
    /// The latest misses, oldest first: eight of each kind and processor.
    pub latest: Vec<MissSeen>,
    /// Arrived frames by delay. Log-linear, [`BUCKETS`] of them.
    pub buckets: Vec<u64>,
}

impl Delays {
    /// Returns the arrived frames, in time or late.
    pub fn delivered(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Adds the counters of one processor.
    fn add(&mut self, bytes: &[u8]) {
        let mut words = bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word));
        let mut next = || words.next().unwrap_or_default();
        self.deadline = next();
        self.max = self.max.max(next());
        self.sum += next();
        for part in [Part::Host, Part::Queue, Part::Receiver] {
            *self.late.entry(part).or_default() += next();
        }
        for loss in LOSSES {
            *self.lost.entry(loss).or_default() += next();
        }
        for number in 0..2 * REMEMBERED {
            let (at, parts, loss) = (next(), [next(), next(), next()], next());
            let lost = (number >= REMEMBERED)
                .then(|| LOSSES.get(usize::try_from(loss).unwrap_or_default()).copied())
                .flatten();
            if at != 0 {
                self.latest.push(MissSeen { at, parts, lost });
            }
        }
        for bucket in &mut self.buckets {
            *bucket += next();
        }
    }
}

/// `enum loss`.
const LOSSES: [Loss; 3] = [Loss::Other, Loss::QueueFull, Loss::RingFull];

/// Deadlines cannot be watched, or the results cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what}: {source}")]
pub struct DeadlineError {
    what: &'static str,
    source: libbpf_rs::Error,
}

fn failed(what: &'static str) -> impl FnOnce(libbpf_rs::Error) -> DeadlineError {
    move |source| DeadlineError { what, source }
}

/// The running programs.
pub struct DeadlineMeter {
    senders: MapHandle,
    delays: MapHandle,
    // Dropped first: the programs end with them.
    _links: Vec<Link>,
    _object: Object,
}

impl DeadlineMeter {
    /// Loads the programs.
    ///
    /// # Errors
    /// No right to (`CAP_BPF` and `CAP_PERFMON`), or a kernel without BTF, or without a reason in its
    /// tracepoint `kfree_skb` (5.17 has it).
    pub fn load() -> Result<Self, DeadlineError> {
        let mut builder = ObjectBuilder::default();
        let mut opened = builder.open_memory(PROGRAM).map_err(failed("read the eBPF programs"))?;
        // `namespace`, the only constant.
        let mut constants = opened.maps_mut().find(|map| map.name().to_string_lossy().ends_with(".rodata"));
        let constants = constants.as_mut().expect("deadline.bpf.c has a constant");
        let namespace =
            namespace().map_err(libbpf_rs::Error::from).map_err(failed("tell the network namespace"))?;
        constants.set_initial_value(&namespace.to_ne_bytes()).map_err(failed("set the network namespace"))?;
        let object = opened.load().map_err(failed("load the eBPF programs that watch deadlines"))?;
        let links = object.progs_mut().map(|program| program.attach()).collect::<Result<_, _>>();
        let links = links.map_err(failed("attach the eBPF programs that watch deadlines"))?;
        let reach = |name: &str| {
            let map = object.maps().find(|map| map.name() == name);
            MapHandle::try_from(&map.expect("deadline.bpf.c has maps of these names"))
        };
        let [senders, delays] = [reach("senders"), reach("delays")]
            .map(|map| map.map_err(failed("reach the maps of the eBPF programs")));
        Ok(Self { senders: senders?, delays: delays?, _links: links, _object: object })
    }

    /// Watches a promise. A watch with the same deadline continues; with another it begins anew.
    ///
    /// # Errors
    /// The kernel has no memory, or watches 4096 promises.
    pub fn watch(&self, promise: Promise, deadline_ns: u64) -> Result<(), DeadlineError> {
        if self.read(promise)?.is_some_and(|seen| seen.deadline == deadline_ns) {
            return Ok(());
        }
        let mut value = vec![0; WORDS * 8];
        value[..8].copy_from_slice(&deadline_ns.to_ne_bytes());
        let cpus = libbpf_rs::num_possible_cpus().map_err(failed("count the processors"))?;
        let values = vec![value; cpus];
        let watched = self.delays.update_percpu(&promise.key(), &values, MapFlags::ANY);
        watched.map_err(failed("watch one promise more"))?;
        let sender = promise.from.to_ne_bytes();
        self.senders.update(&sender, &[0; 4], MapFlags::ANY).map_err(failed("watch one sender more"))
    }

    /// Ends the watch of a promise, and forgets its results.
    ///
    /// # Errors
    /// It was not watched.
    pub fn forget(&self, promise: Promise) -> Result<(), DeadlineError> {
        self.delays.delete(&promise.key()).map_err(failed("stop watching a promise"))?;
        if self.watched().iter().any(|other| other.from == promise.from) {
            return Ok(());
        }
        self.senders.delete(&promise.from.to_ne_bytes()).map_err(failed("stop watching a sender"))
    }

    /// Returns the watched promises.
    pub fn watched(&self) -> Vec<Promise> {
        let promise = |key: Vec<u8>| {
            let [from, to] = *key.as_chunks().0 else { return None };
            Some(Promise { from: u32::from_ne_bytes(from), to: u32::from_ne_bytes(to) })
        };
        self.delays.keys().filter_map(promise).collect()
    }

    /// Returns the results; `None` for an unwatched promise.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn read(&self, promise: Promise) -> Result<Option<Delays>, DeadlineError> {
        let values = self.delays.lookup_percpu(&promise.key(), MapFlags::ANY);
        let Some(values) = values.map_err(failed("read what was seen of a promise"))? else {
            return Ok(None);
        };
        let mut seen = Delays { buckets: vec![0; BUCKETS], ..Delays::default() };
        values.iter().for_each(|value| seen.add(value));
        seen.late.retain(|_, n| *n > 0);
        seen.lost.retain(|_, n| *n > 0);
        seen.latest.sort_by_key(|miss| miss.at);
        Ok(Some(seen))
    }
}

impl fmt::Debug for DeadlineMeter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeadlineMeter").field("watched", &self.watched()).finish_non_exhaustive()
    }
}
