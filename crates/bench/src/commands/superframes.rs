//! `tidegate-bench superframes`: bytes per second in 64 KB super-frames, compared with memcpy between the
//! same buffers.
//!
//! ```text
//!  guest A's frames ──switch──▶ guest B's buffers    one window
//!  guest A's frames ──memcpy──▶ guest B's buffers    the next, on the switch's CPU
//! ```
//!
//! Both walk the same memory in the same order beside a polling core, and no program writes or reads a
//! payload. The difference is the work of the switch besides copying.

use crate::clock;
use crate::frames::{SEGMENTS, Size, VNET_HDR};
use crate::guest::Guest;
use crate::load::{Load, Plan, Watch, Window, median};
use crate::measurement::{Outcome, Windows, ring};
use crate::scene::Scene;
use serde::Serialize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const BUFFER: u32 = 65_536;
/// Time without a frame after which memcpy begins.
const QUIET: Duration = Duration::from_millis(20);
/// Copies between two looks at the clock.
const COPIES: usize = 16;

/// Arguments of `superframes`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// vNIC that sends; the first of the file where absent
    #[arg(long, value_name = "NAME")]
    from: Option<String>,
    /// vNIC that receives; the second of the file where absent
    #[arg(long, value_name = "NAME")]
    to: Option<String>,
    /// CPU for memcpy: the one the switch runs on
    #[arg(long, value_name = "N")]
    memcpy_cpu: Option<usize>,
    /// Bytes of a receive buffer; below 65536 a frame comes in several
    #[arg(long, value_name = "BYTES", default_value_t = BUFFER, value_parser = clap::value_parser!(u32).range(2048..=65_536))]
    buffer: u32,
    /// Entries of each virtqueue: with 64 KB each they decide how much memory is walked
    #[arg(long, value_name = "N", default_value = "256", value_parser = ring)]
    ring: u16,
    #[command(flatten)]
    windows: Windows,
}

#[derive(Debug, Serialize)]
pub struct Report {
    from: String,
    to: String,
    /// Bytes of a frame in memory, and its number of segments.
    frame_bytes: usize,
    segments: usize,
    receive_buffer: u32,
    /// Size of the frames that are walked, and of the buffers (bytes).
    walked_bytes: usize,
    /// Medians over the windows.
    switch_bytes_per_second: f64,
    memcpy_bytes_per_second: f64,
    /// Median of the ratios of each window to the memcpy after it.
    ratio: f64,
    windows: Vec<Pair>,
}

#[derive(Debug, Serialize)]
struct Pair {
    switch: Window,
    memcpy_bytes: u64,
    memcpy_seconds: f64,
}

impl Pair {
    fn switched(&self) -> f64 {
        self.switch.bytes as f64 / self.switch.seconds
    }

    fn copied(&self) -> f64 {
        self.memcpy_bytes as f64 / self.memcpy_seconds
    }
}

impl Report {
    pub fn table(&self) -> String {
        let mut text = format!(
            "{} bytes a frame, buffers of {}, {} MB walked: {:.2} GB/s, memcpy {:.2} GB/s, ratio {:.3}\n",
            self.frame_bytes,
            self.receive_buffer,
            self.walked_bytes / 1_000_000,
            self.switch_bytes_per_second / 1e9,
            self.memcpy_bytes_per_second / 1e9,
            self.ratio
        );
        text += "    GB/s   memcpy   ratio   taken us   starved\n";
        for pair in &self.windows {
            text += &format!(
                "{:8.2} {:8.2} {:7.3} {:10} {:9.2}\n",
                pair.switched() / 1e9,
                pair.copied() / 1e9,
                pair.switched() / pair.copied(),
                pair.switch.taken_ns / 1000,
                pair.switch.starved
            );
        }
        text.trim_end().to_owned()
    }
}

pub fn run(scene: &Scene, args: &Args, watch: &Watch, cpu: Option<usize>) -> Outcome<Report> {
    let named = |name: &Option<String>, number: usize| match name {
        Some(name) => scene.vnic(name),
        None => Ok(&scene.first(Some(2))?[number]),
    };
    let (from, to) = (named(&args.from, 0)?, named(&args.to, 1)?);
    let mut sender = Guest::connect(from, args.ring, Size::Super, BUFFER)?;
    let receiver = Guest::connect(to, args.ring, Size::Super, args.buffer)?;
    sender.load(|_| Size::Super.build(receiver.mac(), from.mac, 0));
    let len = Size::Super.bytes();
    let mut load = Load { guests: vec![sender, receiver], senders: vec![0], receivers: vec![1] };
    load.start();
    let plan = Plan::from(args.windows);
    let mut windows = Vec::new();
    for _ in 0..plan.windows {
        load.run(plan.warm_up);
        let switch = load.window(plan.window, watch)?;
        if switch.bytes != switch.frames * len as u64 {
            return Err(format!(
                "{} frames came with {} bytes: the frames were truncated",
                switch.frames, switch.bytes
            )
            .into());
        }
        load.settle(QUIET);
        if let Some(cpu) = args.memcpy_cpu {
            clock::pin(cpu).map_err(|error| format!("--memcpy-cpu {cpu}: {error}"))?;
        }
        let (memcpy_bytes, memcpy_seconds) = beside_a_busy_core(cpu, || {
            memcpy(&load, plan.warm_up);
            memcpy(&load, plan.window)
        });
        if let Some(cpu) = cpu.filter(|_| args.memcpy_cpu.is_some()) {
            clock::pin(cpu)?;
        }
        windows.push(Pair { switch, memcpy_bytes, memcpy_seconds });
    }
    Ok(Report {
        from: from.name.clone(),
        to: to.name.clone(),
        frame_bytes: len,
        segments: SEGMENTS,
        receive_buffer: args.buffer,
        walked_bytes: usize::from(args.ring) * (VNET_HDR + len),
        switch_bytes_per_second: median(windows.iter().map(Pair::switched)),
        memcpy_bytes_per_second: median(windows.iter().map(Pair::copied)),
        ratio: median(windows.iter().map(|pair| pair.switched() / pair.copied())),
        windows,
    })
}

/// Runs `what` while the generator's core polls, as it does while the switch copies: two cores may share
/// caches and execution units.
fn beside_a_busy_core<T>(cpu: Option<usize>, what: impl FnOnce() -> T) -> T {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        if let Some(cpu) = cpu {
            let done = &done;
            scope.spawn(move || {
                // It polls even if it cannot be pinned.
                let _ = clock::pin(cpu);
                while !done.load(Ordering::Relaxed) {}
            });
        }
        let result = what();
        done.store(true, Ordering::Relaxed);
        result
    })
}

/// Copies frames for `time`. Returns bytes and seconds.
fn memcpy(load: &Load, time: Duration) -> (u64, f64) {
    let (sender, receiver) = (&load.guests[0], &load.guests[1]);
    let start = clock::now();
    let (mut number, mut buffer) = (0, 0);
    loop {
        for _ in 0..COPIES {
            buffer = sender.copy_to(receiver, number, VNET_HDR + Size::Super.bytes(), buffer);
            number += 1;
        }
        let took = clock::now() - start;
        if took >= time.as_nanos() as u64 {
            return ((number * Size::Super.bytes()) as u64, took as f64 / 1e9);
        }
    }
}
