//! A thread that writes frames into taps for a worker.

use crate::clock::clock;
use crate::frame::{FRAME_MAX, VnetHdr};
use crate::vhost_user::notifier::cpu_time;
use rtrb::{Consumer, Producer, RingBuffer};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::thread::Thread;
use std::time::Duration;
use tidegate_service::housekeeping;

/// Most frames of one worker at its writer.
pub(super) const BUFFERS: usize = 32;

/// Most frames of one tap there.
pub(in crate::link) const DEPTH: usize = 8;

/// Bytes of each.
pub(super) const BUFFER: usize = VnetHdr::LEN + FRAME_MAX;

/// Longest CPU time of a tap's frames at the writer (ns), by its last ones; one frame is always allowed.
pub(super) const PART: u64 = 1_000_000;

/// Attempts of a write for which the kernel has no memory, and the pause between two.
pub(super) const ATTEMPTS: (u32, Duration) = (5, Duration::from_micros(200));

/// Results of a write.
pub(super) const WRITTEN: u8 = 0;

pub(super) const DOWN: u8 = 1;

pub(super) const REFUSED: u8 = 2;

/// The writer's progress with one tap's frames, numbered from 0.
#[derive(Default)]
pub(crate) struct Progress {
    /// Number of ended frames.
    pub(super) ended: AtomicU64,
    /// Frames before this one must not be written any more.
    pub(super) given_up: AtomicU64,
    /// Results of the last ones.
    pub(super) outcomes: [AtomicU8; DEPTH],
    /// Duration of the last write, but at least half of the former value (ns of CPU time).
    pub(super) write_time: AtomicU64,
    /// Its end (ns).
    pub(super) ended_at: AtomicU64,
}

/// A frame to write.
pub(super) struct Job {
    pub(super) file: Arc<OwnedFd>,
    pub(super) progress: Arc<Progress>,
    /// Its number at its tap.
    pub(super) number: u64,
    pub(super) buffer: Box<[u8]>,
    pub(super) len: usize,
}

/// A worker's end.
pub struct TapWriter {
    pub(super) worker: u16,
    pub(super) jobs: Producer<Job>,
    pub(super) back: Consumer<Box<[u8]>>,
    pub(super) free: Vec<Box<[u8]>>,
    pub(super) thread: Thread,
}

/// A worker's writer: its thread [runs](Self::run) it.
pub struct Writer {
    pub(super) jobs: Consumer<Job>,
    pub(super) back: Producer<Box<[u8]>>,
}

impl Writer {
    /// Returns a writer, and a function for its worker's [`TapWriter`] once its thread exists.
    pub fn new() -> (Self, impl FnOnce(u16, Thread) -> TapWriter) {
        let (jobs, jobs_in) = RingBuffer::new(BUFFERS);
        let (back, back_in) = RingBuffer::new(BUFFERS);
        let hand = move |worker, thread| {
            // Unwritten memory takes no page.
            let free = (0..BUFFERS).map(|_| vec![0; BUFFER].into_boxed_slice()).collect();
            TapWriter { worker, jobs, back: back_in, free, thread }
        };
        (Self { jobs: jobs_in, back }, hand)
    }

    /// Writes frames, and calls `ring` after each, until the worker is gone.
    pub fn run(mut self, ring: impl Fn()) {
        loop {
            housekeeping::follow();
            while self.write_one() {
                ring();
                housekeeping::follow();
            }
            if self.jobs.is_abandoned() {
                return;
            }
            std::thread::park();
        }
    }
}

impl Writer {
    /// Writes the next frame; `false` without one.
    pub fn write_one(&mut self) -> bool {
        let Ok(job) = self.jobs.pop() else { return false };
        let buffer = job.write();
        let fits = self.back.push(buffer).is_ok();
        debug_assert!(fits, "there is a place for each buffer");
        true
    }

    /// The same, as if it took so many ns.
    #[cfg(test)]
    pub fn write_one_as_if_it_took(&mut self, ns: u64) {
        let progress = self.jobs.peek().unwrap().progress.clone();
        assert!(self.write_one());
        progress.write_time.store(ns, Ordering::Relaxed);
        progress.ended_at.store(clock(), Ordering::Relaxed);
    }
}

impl Job {
    pub(super) fn is_given_up(&self) -> bool {
        self.number < self.progress.given_up.load(Ordering::Relaxed)
    }

    /// Writes the frame; returns its buffer.
    pub(super) fn write(self) -> Box<[u8]> {
        let Progress { ended, outcomes, write_time, ended_at: at, .. } = &*self.progress;
        if !self.is_given_up() {
            let began = cpu_time();
            let outcome = self.outcome();
            let last = write_time.load(Ordering::Relaxed);
            write_time.store(cpu_time().saturating_sub(began).max(last / 2), Ordering::Relaxed);
            at.store(clock(), Ordering::Relaxed);
            outcomes[self.number as usize % DEPTH].store(outcome, Ordering::Relaxed);
        }
        ended.store(self.number + 1, Ordering::Release);
        self.buffer
    }

    pub(super) fn outcome(&self) -> u8 {
        let (attempts, pause) = ATTEMPTS;
        for attempt in 1..=attempts {
            match rustix::io::retry_on_intr(|| rustix::io::write(&self.file, &self.buffer[..self.len])) {
                Ok(_) => return WRITTEN,
                Err(Errno::AGAIN | Errno::NOBUFS) if attempt < attempts && !self.is_given_up() => {
                    std::thread::sleep(pause);
                }
                Err(Errno::IO | Errno::BADFD | Errno::NODEV) => return DOWN,
                Err(_) => return REFUSED,
            }
        }
        REFUSED
    }
}

impl TapWriter {
    /// Takes a buffer for a tap with `held` frames of `write_time` ns each: no tap takes all buffers, or all of
    /// the time.
    pub(super) fn buffer(&mut self, held: u64, write_time: u64) -> Option<Box<[u8]>> {
        while let Ok(buffer) = self.back.pop() {
            self.free.push(buffer);
        }
        let has_part = held == 0 || (held + 1).saturating_mul(write_time) <= PART;
        let has_share = held < self.free.len().min(DEPTH) as u64;
        if has_part && has_share { self.free.pop() } else { None }
    }
}

impl Drop for TapWriter {
    fn drop(&mut self) {
        // The writer ends when its worker is gone.
        let (gone, _) = RingBuffer::new(1);
        self.jobs = gone;
        self.thread.unpark();
    }
}
