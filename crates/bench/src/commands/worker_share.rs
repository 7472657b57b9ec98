//! `tidegate-bench worker-share`: what a vNIC keeps of its worker beside ports that want all of it.
//!
//! ```text
//!  bulk, sink, voice, ear: weight w ┐
//!  hostile ports: weight 1 each     ├─ one worker       alone ──▶ beside ──▶ alone
//!  one more, which they need        ┘
//! ```
//!
//! A vNIC of weight w beside n hostile ones of weight 1 has a share of w / (w + n) of what it had alone.

use super::Outcome;
use crate::clock;
use crate::frames::Size;
use crate::guest::Guest;
use crate::host::Host;
use crate::neighbours::{Neighbours, Seen, vnic};
use clap::ValueEnum;
use serde::Serialize;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tidegate_contract::Mac;
use tidegate_frontend::attack::Attack;

/// Pause between two frames of the voice, ns.
const EVERY: u64 = 200_000;
/// Honest vNICs, and the hostile ones' own.
const HONEST: [&str; 4] = ["bulk", "sink", "voice", "ear"];
const OTHER: &str = "other";
/// Bytes of a receive buffer of a port that feeds tiny ones: a header, and little more.
const TINY: u32 = 64;
/// Bytes of the frames that fill them.
const FILLING: usize = 1514;
/// Entries of the hostile ports' virtqueues.
const RING: u16 = 1024;
/// Longest time until a hostile port does harm.
const PREPARED: Duration = Duration::from_secs(10);

/// Arguments of `worker-share`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What the hostile ports do
    #[arg(long, value_enum, default_value_t = Load::Flood)]
    load: Load,
    /// The honest vNICs' weight
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    weight: u16,
    /// Hostile ports
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=16))]
    hostile: u16,
    /// How long each of the three measurements lasts, s
    #[arg(long, value_name = "S", default_value = "1", value_parser = super::seconds)]
    time: Duration,
    /// The program under test; the one beside this program where absent
    #[arg(long, value_name = "PATH")]
    tidegate: Option<PathBuf>,
    /// CPU of the switch's worker; not pinned where absent
    #[arg(long, value_name = "N")]
    switch_cpu: Option<usize>,
}

/// What hostile ports do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Load {
    /// Each sends 64 B frames as fast as it can, to one more port that takes them
    Flood,
    /// Each gives mergeable receive buffers of 64 B; one more port sends them 1514 B frames as fast as it can
    Tiny,
    /// Each kicks a queue that has nothing, by two threads
    Kicks,
}

/// What was measured.
#[derive(Debug, Serialize)]
pub struct Report {
    load: Load,
    weight: u16,
    hostile: u16,
    /// The mean of before and after.
    alone: Seen,
    beside: Seen,
    /// w / (w + n).
    share: f64,
    /// Goodput beside the hostile ports, of that alone.
    goodput: f64,
    /// The same, as a part of the share.
    kept: f64,
    /// The voice's p99.9, in times of that alone.
    p999: f64,
    /// Frames that went between hostile ports a second, or kicks.
    hostile_per_second: f64,
}

impl Report {
    /// For people.
    pub fn table(&self) -> String {
        format!(
            "weight {} beside {} hostile ({:?}, {:.0} a second): goodput {:.2} of {:.0} Mbit/s, {:.2} of its share of {:.2}; \
             p99.9 {:.1} times {:.0} us",
            self.weight,
            self.hostile,
            self.load,
            self.hostile_per_second,
            self.goodput,
            self.alone.bulk_mbit,
            self.kept,
            self.share,
            self.p999,
            self.alone.voice_p999_us,
        )
    }
}

fn mac(n: usize) -> [u8; 6] {
    [0x52, 0x54, 0, 0, 2, n as u8]
}

/// Measures. `cpu` is where this thread was pinned to: it is the honest guests'.
///
/// # Errors
/// The processes cannot be started, or a guest cannot connect.
pub fn run(args: &Args, cpu: Option<usize>) -> Outcome<Report> {
    let beside = || Ok::<_, std::io::Error>(std::env::current_exe()?.with_file_name("tidegate"));
    let tidegate = args.tidegate.clone().map_or_else(beside, Ok)?;
    let taken: &[usize] = &cpu.into_iter().chain(args.switch_cpu).collect::<Vec<_>>();
    let hostile: Vec<String> = (0..args.hostile).map(|n| format!("hostile{n}")).collect();
    let names: Vec<&str> =
        HONEST.into_iter().chain([OTHER]).chain(hostile.iter().map(String::as_str)).collect();
    let weight = format!("weight = {}", args.weight);
    let lines = |n: usize| if n < HONEST.len() { weight.as_str() } else { "" };
    let vnics: Vec<_> = names.iter().enumerate().map(|(n, name)| (*name, mac(n), lines(n))).collect();
    // The switch and the agent are not to inherit the honest guests' CPU.
    clock::keep_off(taken);
    let host = Host::start(&tidegate, args.switch_cpu.as_slice(), &vnics)?;
    if let Some(cpu) = cpu {
        clock::pin(cpu)?;
    }
    let mut honest = Neighbours::connect(&host, [0, 1, 2, 3].map(|n| (HONEST[n], mac(n))), EVERY)?;
    honest.measure(args.time / 4);
    let before = honest.measure(args.time);

    let (stop, steps) = (AtomicBool::new(false), AtomicU64::new(0));
    let (seen, harm) = std::thread::scope(|scope| {
        let crowd = scope.spawn(|| {
            clock::keep_off(taken);
            args.load.run(&host, &hostile, &stop, &steps).map_err(|error| error.to_string())
        });
        let started = Instant::now();
        while steps.load(Ordering::Relaxed) == 0 && !crowd.is_finished() && started.elapsed() < PREPARED {
            honest.measure(Duration::from_millis(50));
        }
        // What the queues held before is gone.
        honest.measure(args.time / 4);
        let (start, before) = (Instant::now(), steps.load(Ordering::Relaxed));
        let seen = honest.measure(args.time);
        let harm = (steps.load(Ordering::Relaxed) - before) as f64 / start.elapsed().as_secs_f64();
        stop.store(true, Ordering::Relaxed);
        while !crowd.is_finished() {
            honest.measure(Duration::from_millis(50));
        }
        crowd.join().expect("it does not panic").map(|()| (seen, harm))
    })?;
    if harm == 0.0 {
        return Err("the hostile ports did nothing".into());
    }
    honest.measure(args.time / 4);
    let alone = before.mean(&honest.measure(args.time));
    let share = f64::from(args.weight) / f64::from(args.weight + args.hostile);
    let goodput = seen.bulk_mbit / alone.bulk_mbit;
    Ok(Report {
        load: args.load,
        weight: args.weight,
        hostile: args.hostile,
        alone,
        beside: seen,
        share,
        goodput,
        kept: goodput / share,
        p999: seen.voice_p999_us / alone.voice_p999_us,
        hostile_per_second: harm,
    })
}

impl Load {
    /// Does harm from the ports called `names` until `stop`, and counts it in `steps`.
    fn run(self, host: &Host, names: &[String], stop: &AtomicBool, steps: &AtomicU64) -> Outcome<()> {
        let place = |n: usize, name: &str| vnic(name, Mac(mac(n)), &host.socket(name));
        let first = HONEST.len() + 1;
        let other = |size, buffer| Guest::connect(&place(HONEST.len(), OTHER), RING, size, buffer);
        let connect = |size, buffer: u32| {
            let all = names.iter().enumerate();
            all.map(|(n, name)| Guest::connect(&place(first + n, name), RING, size, buffer))
                .collect::<Result<Vec<_>, _>>()
        };
        match self {
            Self::Flood => {
                let size = Size::Frame(64);
                let (mut sink, mut senders) = (other(size, 2048)?, connect(size, 2048)?);
                for sender in &mut senders {
                    let (to, from) = (sink.mac(), sender.mac());
                    sender.load(|flow| size.build(to, from, flow));
                    sender.start();
                }
                while !stop.load(Ordering::Relaxed) {
                    senders.iter_mut().for_each(Guest::refill);
                    steps.fetch_add(sink.drain(), Ordering::Relaxed);
                }
            }
            Self::Tiny => {
                let size = Size::Frame(FILLING);
                let (mut source, mut receivers) = (other(size, 2048)?, connect(size, TINY)?);
                let (from, to): (_, Vec<Mac>) = (source.mac(), receivers.iter().map(Guest::mac).collect());
                source.load(|flow| size.build(to[usize::from(flow) % to.len()], from, flow));
                source.start();
                while !stop.load(Ordering::Relaxed) {
                    source.refill();
                    let frames = receivers.iter_mut().map(Guest::drain).sum();
                    steps.fetch_add(frames, Ordering::Relaxed);
                }
            }
            Self::Kicks => {
                let kick = |name: &String| Attack::KickFlood.run(&host.socket(name), stop, steps);
                std::thread::scope(|scope| {
                    let all: Vec<_> = names.iter().map(|name| scope.spawn(move || kick(name))).collect();
                    all.into_iter().try_for_each(|one| one.join().expect("it does not panic"))
                })?;
            }
        }
        Ok(())
    }
}
