//! The eBPF programs' notes on a worker, against its thread's real behaviour: nothing while it ran or
//! slept, and the task that had its CPU.

#![allow(clippy::unwrap_used, reason = "tests")]

use rustix::thread::{CpuSet, gettid, sched_getaffinity, sched_setaffinity, set_current_timer_slack};
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc;
use std::thread::{Builder, park, sleep};
use std::time::{Duration, Instant};
use tidegate_place_switch::noise::{Interval, Noise, NoiseMeter};
use tidegate_switch::clock::clock;

const ROUNDS: usize = 30;
/// A worker's run in a round, and the other thread's runs while it sleeps.
const RUNS: Duration = Duration::from_millis(2);
const OTHERS: usize = 4;

/// Pins the calling thread to the last allowed CPU; returns its number.
fn on_the_last_cpu() -> u32 {
    let allowed = sched_getaffinity(None).unwrap();
    let last = (0..CpuSet::MAX_CPU).rev().find(|cpu| allowed.is_set(*cpu)).unwrap();
    let mut only = CpuSet::new();
    only.set(last);
    sched_setaffinity(None, &only).unwrap();
    gettid().as_raw_nonzero().get() as u32
}

fn spin(time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {}
}

/// Timers that end before the thread has given up its CPU: it is woken while it runs.
fn wake_itself() {
    set_current_timer_slack(NonZeroU64::new(1)).unwrap();
    (0..50).for_each(|_| sleep(Duration::from_nanos(1)));
}

#[test]
fn a_worker_is_not_its_own_culprit() {
    let Some(meter) = tidegate_testkit::unless_skipped(NoiseMeter::load(std::process::id())) else { return };
    let (tell, told) = mpsc::channel();
    let worker = Builder::new().name("worker-0".into()).spawn(move || {
        let thread = on_the_last_cpu();
        for _ in 0..ROUNDS {
            wake_itself();
            spin(RUNS);
            tell.send(thread).unwrap();
            park();
        }
        spin(100 * RUNS);
    });
    let worker = worker.unwrap();
    static SPINS: AtomicBool = AtomicBool::new(false);
    let other = Builder::new().name("other".into()).spawn(|| {
        let thread = on_the_last_cpu();
        while !SPINS.load(SeqCst) {
            park();
        }
        spin(50 * RUNS);
        thread
    });
    let other = other.unwrap();
    let (mut noted, mut asleep, mut itself) = (Vec::new(), Vec::new(), 0);
    for _ in 0..ROUNDS {
        itself = told.recv().unwrap();
        // It sleeps by then.
        sleep(RUNS);
        let from = clock();
        for _ in 0..OTHERS {
            sleep(RUNS);
            other.thread().unpark();
        }
        asleep.push((from, clock()));
        noted.extend(meter.take());
        worker.thread().unpark();
    }
    SPINS.store(true, SeqCst);
    other.thread().unpark();
    let other = other.join().unwrap();
    worker.join().unwrap();
    noted.extend(meter.take());

    let by = |pid: u32| {
        let of = move |i: &&Interval| matches!(&i.noise, Noise::Task(task) if task.pid == pid);
        noted.iter().filter(of).collect::<Vec<_>>()
    };
    assert!(by(itself).is_empty(), "it ran: {:?}", by(itself));
    assert!(!by(other).is_empty(), "both spun on one CPU, and it was not told: {noted:?}");
    // A sleeping CPU of a virtual machine may get a timer late, which is noted, too.
    let within = |(from, to): (u64, u64), i: &Interval| i.to.min(to).saturating_sub(i.from.max(from));
    let idle = || noted.iter().filter(|i| i.noise == Noise::Idle);
    let idle: u64 = asleep.iter().map(|span| idle().map(|i| within(*span, i)).sum::<u64>()).sum();
    let slept: u64 = asleep.iter().map(|(from, to)| to - from).sum();
    assert!(idle < slept / 2, "it slept: idle for {idle} of {slept} ns");
}
