//! Two guests beside the liar: one sends numbered frames with a deadline, the other counts.

use crate::harness::{Guest, PATIENCE, Stream, TestSwitch, ring, vnic};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tidegate_evidence::Miss;

pub struct Neighbours {
    received: Arc<AtomicU64>,
    done: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Neighbours {
    pub fn start(host: &TestSwitch) -> Self {
        let contract = "tx = { max = \"20mbit\", burst = \"15kB\" }\ndeadline = \"50ms\"\nto = [\"b\"]";
        let a = host.guest_with(&vnic("a", 1, contract), ring(1024));
        let b = host.guest_with(&vnic("b", 2, ""), ring(1024));
        let (received, done) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (count, stop) = (received.clone(), done.clone());
        let thread = std::thread::spawn(move || exchange(a, b, &count, &stop));
        Self { received, done, thread }
    }

    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    pub fn wait_for_more(&self, after: &str) {
        let (start, before) = (Instant::now(), self.received());
        while self.received() == before {
            assert!(start.elapsed() < PATIENCE && !self.thread.is_finished(), "neighbours, after: {after}");
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Waits for every frame. A deadline may be missed because this machine delayed the worker or the
    /// receiver, or behind own frames so delayed; never behind another port's.
    pub fn finish(self, host: &TestSwitch) -> Value {
        self.done.store(true, Ordering::Relaxed);
        let frames = self.received.clone();
        self.thread.join().expect("every frame arrived, in order");
        let stats = host.stats("a");
        let behind = |miss: &Miss| miss.behind.as_ref().is_some_and(|name| name != "a");
        let misses = host.stats.misses("a");
        assert!(!misses.iter().any(behind), "behind another's frames: {misses:#?}");
        assert!(stats.tx.dropped.is_empty(), "{:?}", stats.tx.dropped);
        json!({
            "frames": frames.load(Ordering::Relaxed),
            "lost": 0,
            "deadline_ms": 50,
            "deadlines_missed": stats.misses,
            "worst_delay_us": stats.realtime_worst_ns / 1000,
        })
    }
}

fn exchange(mut a: Guest, mut b: Guest, count: &AtomicU64, stop: &AtomicBool) {
    let mut stream = Stream::new(&a, &b);
    let mut start = Instant::now();
    while !(stop.load(Ordering::Relaxed) && stream.is_complete()) {
        if !stop.load(Ordering::Relaxed) {
            stream.send(&mut a);
            start = Instant::now();
        }
        assert!(start.elapsed() < PATIENCE, "frames are missing in the end");
        b.each(|frame| stream.check(frame));
        count.store(stream.received.into(), Ordering::Relaxed);
        std::thread::sleep(Duration::from_micros(500));
    }
}
