//! What keeps the switch's workers from their CPUs, as seen by the programs of `noise.bpf.c`.
//!
//! ```text
//!  sched, softirq, irq, timer tracepoints ─▶ map `intervals`, the latest 4096 ─▶ NoiseMeter::take ─▶ Interval
//! ```
//!
//! The programs find workers by the switch's process id and thread names (`worker-N`): a switch that lies
//! about its process id exposes threads of that process only. They run while the [`NoiseMeter`] lives.

use libbpf_rs::{Link, MapCore, MapHandle, Object, ObjectBuilder};
use std::fmt;

const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/noise.bpf.o"));

/// Shorter intervals are not noted, ns.
pub const SHORTEST: u64 = 50_000;
/// Intervals stored until they are fetched: `max_entries` of `intervals`.
pub const KEPT: usize = 4096;
/// `NAME` of `noise.h`.
const NAME: usize = 16;
/// `struct interval`.
const SIZE: usize = 2 * 8 + 6 * 4 + NAME;
/// Inode of the PID namespace of the kernel's process numbers (PROC_PID_INIT_INO).
const INITIAL: u64 = 0xefff_fffc;

/// The kernel's softirqs, by their numbers (linux/interrupt.h).
const SOFTIRQS: [&str; 10] =
    ["HI", "TIMER", "NET_TX", "NET_RX", "BLOCK", "IRQ_POLL", "TASKLET", "SCHED", "HRTIMER", "RCU"];

/// A thread.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Task {
    /// Its number in the initial PID namespace.
    pub pid: u32,
    /// Its name: up to 15 printable ASCII characters, others are `?`. A user can choose it.
    pub name: String,
}

/// A cause that keeps a worker from its CPU.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Noise {
    /// Another task ran while the worker was runnable.
    Task(Task),
    /// The CPU was idle although the worker was runnable, or a timer due.
    Idle,
    /// A softirq; `task` is the interrupted task, `None` for the worker itself.
    Softirq {
        /// Such as `NET_RX`.
        name: &'static str,
        /// Such as `ksoftirqd/2`.
        task: Option<Task>,
    },
    /// A device's interrupt, by its handler's name.
    Interrupt(String),
    /// The host of this virtual machine ran something else.
    Stolen,
}

/// A time in which a worker did not get its CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interval {
    /// CLOCK_MONOTONIC, ns.
    pub from: u64,
    /// See `from`; later than that.
    pub to: u64,
    /// The worker's number.
    pub worker: usize,
    /// The CPU.
    pub cpu: u32,
    /// The cause.
    pub noise: Noise,
}

impl Interval {
    /// Parses `struct interval`; `None` if it is invalid.
    fn read(bytes: &[u8]) -> Option<Self> {
        if bytes.len() < SIZE {
            return None;
        }
        let word = |at: usize| bytes[at..at + 8].try_into().map(u64::from_ne_bytes).unwrap_or_default();
        let half = |at: usize| bytes[at..at + 4].try_into().map(u32::from_ne_bytes).unwrap_or_default();
        let (from, to) = (word(0), word(8));
        let [kind, worker, cpu, pid, number, own] = [16, 20, 24, 28, 32, 36].map(half);
        let name = printable(&bytes[40..40 + NAME]);
        let noise = match kind {
            0 => Noise::Task(Task { pid, name }),
            1 => Noise::Idle,
            2 => {
                let softirq = SOFTIRQS.get(number as usize).copied().unwrap_or("softirq");
                Noise::Softirq { name: softirq, task: (own == 0).then_some(Task { pid, name }) }
            }
            3 => Noise::Interrupt(name),
            4 => Noise::Stolen,
            _ => return None,
        };
        (from < to).then_some(Self { from, to, worker: worker as usize, cpu, noise })
    }
}

fn printable(name: &[u8]) -> String {
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    name.iter().map(|b| if (0x20..0x7f).contains(b) { char::from(*b) } else { '?' }).collect()
}

/// CPUs cannot be observed.
#[derive(Debug, thiserror::Error)]
pub enum NoiseError {
    /// The kernel, or a missing right.
    #[error("cannot {what}: {source}")]
    Kernel {
        /// The attempt.
        what: &'static str,
        /// The error.
        source: libbpf_rs::Error,
    },
    /// Process numbers differ from the kernel's.
    #[error(
        "this process is in a PID namespace of its own, where it cannot recognise the switch's threads in the kernel"
    )]
    PidNamespace,
}

fn failed(what: &'static str) -> impl FnOnce(libbpf_rs::Error) -> NoiseError {
    move |source| NoiseError::Kernel { what, source }
}

/// The running programs.
pub struct NoiseMeter {
    intervals: MapHandle,
    // Dropped first: the programs end with them.
    _links: Vec<Link>,
    _object: Object,
}

impl NoiseMeter {
    /// Loads the programs, which note what keeps threads `worker-N` of this process from running.
    ///
    /// # Errors
    /// No right to (`CAP_BPF` and `CAP_PERFMON`), a PID namespace of our own, or a kernel without BTF or one of the
    /// tracepoints (5.15 has them).
    pub fn load(process: u32) -> Result<Self, NoiseError> {
        use std::os::unix::fs::MetadataExt;
        if std::fs::metadata("/proc/self/ns/pid").is_ok_and(|ns| ns.ino() != INITIAL) {
            return Err(NoiseError::PidNamespace);
        }
        let cpus = libbpf_rs::num_possible_cpus().map_err(failed("count the processors"))?;
        let mut builder = ObjectBuilder::default();
        let mut opened = builder.open_memory(PROGRAM).map_err(failed("read the eBPF programs"))?;
        for mut map in opened.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            if name.ends_with(".rodata") {
                // `process`, which is padded, and `shortest`.
                let constants = [&process.to_ne_bytes()[..], &[0; 4], &SHORTEST.to_ne_bytes()].concat();
                map.set_initial_value(&constants)
                    .map_err(failed("set the constants of the eBPF programs"))?;
            }
            if name == "cpus" {
                map.set_max_entries(cpus as u32).map_err(failed("give the eBPF programs a map"))?;
            }
        }
        let object = opened.load().map_err(failed("load the eBPF programs that observe CPUs"))?;
        let links = object.progs_mut().map(|program| program.attach()).collect::<Result<_, _>>();
        let links = links.map_err(failed("attach the eBPF programs that observe CPUs"))?;
        let map = object.maps().find(|map| map.name() == "intervals");
        let map = map.expect("noise.bpf.c has a map of this name");
        let intervals = MapHandle::try_from(&map).map_err(failed("reach the map of the eBPF programs"))?;
        Ok(Self { intervals, _links: links, _object: object })
    }

    /// Takes the intervals since the last call, in order of their ends: at most [`KEPT`], older ones are
    /// lost.
    pub fn take(&self) -> Vec<Interval> {
        let next = || self.intervals.lookup_and_delete(&[]).ok().flatten();
        // More may come meanwhile.
        std::iter::from_fn(next).take(2 * KEPT).filter_map(|bytes| Interval::read(&bytes)).collect()
    }
}

impl fmt::Debug for NoiseMeter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NoiseMeter").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(kind: u32, number: u32, own: u32, name: &[u8]) -> Vec<u8> {
        let mut bytes = [1_000u64.to_ne_bytes(), 2_000u64.to_ne_bytes()].concat();
        [kind, 1, 2, 77, number, own].iter().for_each(|half| bytes.extend(half.to_ne_bytes()));
        bytes.extend(name);
        bytes.resize(SIZE, 0);
        bytes
    }

    #[test]
    fn intervals_are_read_and_names_of_others_are_plain_text() {
        let noise = |bytes: Vec<u8>| Interval::read(&bytes).map(|found| found.noise);
        let task = |name: &str| Task { pid: 77, name: name.into() };
        let found = Interval::read(&bytes(0, 0, 0, b"stress-ng\0rest!")).unwrap();
        assert_eq!((found.from, found.to, found.worker, found.cpu), (1_000, 2_000, 1, 2));
        assert_eq!(found.noise, Noise::Task(task("stress-ng")));
        assert_eq!(noise(bytes(0, 0, 0, b"\x1b[2J\xff")), Some(Noise::Task(task("?[2J?"))));
        assert_eq!(
            noise(bytes(2, 3, 0, b"ksoftirqd/2")),
            Some(Noise::Softirq { name: "NET_RX", task: Some(task("ksoftirqd/2")) })
        );
        assert_eq!(noise(bytes(2, 99, 1, b"worker-0")), Some(Noise::Softirq { name: "softirq", task: None }));
        assert_eq!(noise(bytes(4, 0, 0, b"")), Some(Noise::Stolen));
        assert_eq!(noise(bytes(9, 0, 0, b"")), None);
        assert_eq!(noise(bytes(0, 0, 0, b"")[..40].to_vec()), None);
    }
}
