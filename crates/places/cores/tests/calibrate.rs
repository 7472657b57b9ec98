//! Calibration on this machine: real namespaces, threads, frames. No time is asserted.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tidegate_cores::cpus::Cpus;
use tidegate_cores::machine::{Cpu, Machine};
use tidegate_place_cores::calibrate::{CalibrateError, Calibration, calibrate};

/// The permitted CPUs, as cores of one cache.
fn machine() -> Machine {
    let allowed = rustix::thread::sched_getaffinity(None).unwrap();
    let cpus = (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
    let cpu = |number: usize| (number, Cpu { core: number as u32, ..Cpu::default() });
    Machine { cpus: cpus.map(cpu).collect(), ..Machine::default() }
}

/// Calibrates on a thread of its own, which stays in its private namespace.
fn run(machine: Machine, span: Duration, stop: &AtomicBool) -> Result<Calibration, CalibrateError> {
    let permitted = machine.online();
    std::thread::scope(|scope| {
        let work = scope.spawn(|| calibrate(&machine, &permitted, span, stop, &mut |_, _| {}));
        work.join().unwrap()
    })
}

fn interfaces() -> Vec<String> {
    let text = std::fs::read_to_string("/proc/self/net/dev").unwrap();
    text.lines().filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned())).collect()
}

#[test]
fn every_pairing_has_rounds_or_a_reason() {
    let machine = machine();
    if machine.cpus.len() < 2 {
        return tidegate_testkit::skip::skipped("one CPU");
    }
    let before = interfaces();
    let found = run(machine, Duration::from_secs(3), &AtomicBool::new(false)).unwrap();
    assert!(!found.rows.is_empty());
    for (pair, row) in &found.rows {
        assert!(row.judged.rounds > 0, "{pair:?}: {row:?}");
        assert!(row.judged.apart > 0.0, "{pair:?}: {row:?}");
        assert!(row.frames.is_none_or(|[together, apart]| together > 0.0 && apart > 0.0), "{row:?}");
        println!("{row:?}");
    }
    for (pair, reason) in &found.missing {
        println!("{pair}: {reason}");
        assert!(!reason.is_empty());
    }
    assert_eq!(interfaces(), before, "something is left in this namespace");
}

#[test]
fn it_stops_when_asked_to() {
    let machine = machine();
    if machine.cpus.len() < 2 {
        return tidegate_testkit::skip::skipped("one CPU");
    }
    let (stop, begin) = (AtomicBool::new(false), Instant::now());
    let ended = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(300));
            stop.store(true, Ordering::Relaxed);
        });
        run(machine, Duration::from_secs(600), &stop)
    });
    assert_eq!(ended, Err(CalibrateError::Interrupted));
    assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", begin.elapsed());
}

#[test]
fn one_cpu_can_tell_nothing() {
    let mut machine = machine();
    let first = *machine.cpus.keys().next().unwrap();
    machine.cpus = [(first, Cpu::default())].into();
    assert_eq!(machine.online(), Cpus::from([first]));
    assert_eq!(run(machine, Duration::from_secs(1), &AtomicBool::new(false)), Err(CalibrateError::OneCpu));
}
