//! Work without the kernel's network: a polling worker and its receiver, a cache line between two CPUs, copies.

use super::threads::{Gate, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Words of a frame of 256 bytes.
const WORDS: usize = 32;
/// Slots of the ring.
const SLOTS: usize = 256;
/// Frames that the worker writes in a loop.
const BATCH: u64 = 32;
/// Bytes of a copy: the largest frame.
const COPY: usize = 65_536;

/// A ring of frames, with one writer and one reader.
#[derive(Debug)]
pub struct Ring {
    frames: Vec<[AtomicU64; WORDS]>,
    written: Line,
    read: Line,
    sleeps: AtomicBool,
}

/// A counter with a cache line (and its neighbour, which CPUs fetch, too) for itself.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Line(AtomicU64);

impl Default for Ring {
    fn default() -> Self {
        let frame = || std::array::from_fn(|_| AtomicU64::new(0));
        let frames = (0..SLOTS).map(|_| frame()).collect();
        Self { frames, written: Line::default(), read: Line::default(), sleeps: AtomicBool::new(false) }
    }
}

/// Writes frames as a worker does, which polls while the ring is full. Returns its time for a frame, ns, without polling.
pub fn work(cpu: usize, ring: &Ring, reader: &std::thread::Thread, gate: &Gate) -> Result<f64, String> {
    pin(cpu)?;
    gate.wait_warm();
    let (mut written, mut frames, mut busy) = (0_u64, 0_u64, Duration::ZERO);
    while gate.works() {
        if written + BATCH > ring.read.0.load(Ordering::Acquire) + SLOTS as u64 {
            std::hint::spin_loop();
            continue;
        }
        let begin = Instant::now();
        for number in written..written + BATCH {
            let frame = &ring.frames[number as usize % SLOTS];
            frame.iter().for_each(|word| word.store(number, Ordering::Relaxed));
        }
        written += BATCH;
        ring.written.0.store(written, Ordering::SeqCst);
        if ring.sleeps.load(Ordering::SeqCst) {
            reader.unpark();
        }
        if gate.is_open() {
            busy += begin.elapsed();
            frames += BATCH;
        }
    }
    Ok(busy.as_nanos() as f64 / frames.max(1) as f64)
}

/// Reads frames as a virtual CPU does, which sleeps while there are none. Returns frames in the measured time, and the CPU time of one, ns.
pub fn read(cpu: usize, ring: &Ring, gate: &Gate) -> Result<(f64, f64), String> {
    pin(cpu)?;
    let (mut read, mut measured, mut begun) = (0_u64, 0_u64, None);
    let mut sum = 0_u64;
    while gate.works() {
        if begun.is_none() && gate.is_open() {
            begun = Some(cpu_time());
        }
        let written = ring.written.0.load(Ordering::Acquire);
        if read == written {
            ring.sleeps.store(true, Ordering::SeqCst);
            if ring.written.0.load(Ordering::SeqCst) == read {
                std::thread::park_timeout(Duration::from_millis(5));
            }
            ring.sleeps.store(false, Ordering::Relaxed);
            continue;
        }
        for number in read..written {
            let frame = &ring.frames[number as usize % SLOTS];
            sum = frame.iter().fold(sum, |sum, word| sum.wrapping_add(word.load(Ordering::Relaxed)));
        }
        if begun.is_some() {
            measured += written - read;
        }
        read = written;
        ring.read.0.store(read, Ordering::Release);
    }
    std::hint::black_box(sum);
    let spent = begun.map_or(0.0, |begun| cpu_time().saturating_sub(begun).as_nanos() as f64);
    Ok((measured as f64, spent / measured.max(1) as f64))
}

/// CPU time of the calling thread.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// One end of a line that goes to and fro; the first end begins. Returns its round trips in the measured time.
pub fn bounce(cpu: usize, line: &Line, first: bool, gate: &Gate) -> Result<f64, String> {
    pin(cpu)?;
    gate.wait_warm();
    let (mine, mut trips) = (u64::from(!first), 0_u64);
    loop {
        // The other end may have ended: the gate has to be seen while waiting, and not at every look.
        let mut looks = 0_u32;
        while line.0.load(Ordering::Acquire) & 1 != mine {
            looks += 1;
            if looks.is_multiple_of(1024) {
                if !gate.works() {
                    return Ok(trips as f64);
                }
                // The other end may wait for this CPU.
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
        line.0.fetch_add(1, Ordering::AcqRel);
        trips += u64::from(gate.is_open());
    }
}

/// Copies without end. Returns the number of copies in the measured time.
pub fn copy(cpu: usize, gate: &Gate) -> Result<f64, String> {
    pin(cpu)?;
    gate.wait_warm();
    let (source, mut target) = (vec![1_u8; COPY], vec![0_u8; COPY]);
    let mut copies = 0_u64;
    while gate.works() {
        std::hint::black_box(&mut target[..]).copy_from_slice(std::hint::black_box(&source));
        copies += u64::from(gate.is_open());
    }
    Ok(copies as f64)
}
