//! `tidegate-bench worker-share`: a vNIC's share of its worker beside ports that want all of it.
//!
//! ```text
//!  bulk, sink, voice, ear: weight w ┐                  ┌──────────────── a round ────────────────┐
//!  hostile ports: weight 1 each     ├─ one worker      alone ──▶ beside ──▶ alone, at that pace ──▶ alone ...
//!  one more, which they need        ┘
//! ```
//!
//! A vNIC of weight w beside n hostile ones of weight 1 has a share of w / (w + n) of what it had alone.
//! Ports that feed tiny buffers need one more port that sends to them: then the share is w / (w + n + 1).
//!
//! The guests of this program touch a frame's bytes once. Alone at full speed these bytes stay in the
//! worker's cache; at the slower pace beside others, other programs evict them. The cost of a frame alone
//! at that slower pace separates the two causes.

use crate::clock;
use crate::frames::Size;
use crate::guest::Guest;
use crate::host::{Host, Work};
use crate::load::median;
use crate::measurement::Outcome;
use crate::neighbours::{Neighbours, Window, quantile, vnic};
use clap::ValueEnum;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tidegate_contract::Mac;
use tidegate_frontend::attack::Attack;

/// Pause between two voice frames (ns).
const EVERY: u64 = 200_000;
/// Honest vNICs, and the additional port of the hostile ones.
const HONEST: [&str; 4] = ["bulk", "sink", "voice", "ear"];
const OTHER: &str = "other";
/// Size of a tiny receive buffer (bytes): a header and little more.
const TINY: u32 = 64;
/// Length of the frames that fill tiny buffers (bytes).
const FILLING: usize = tidegate_contract::frame::FRAME as usize;
/// Virtqueue size of the hostile ports (entries).
const RING: u16 = 1024;
const WARM_UP: Duration = Duration::from_millis(250);
/// Traffic between two windows of different kinds.
const SETTLED: Duration = Duration::from_millis(50);
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
    /// How long a window lasts, s
    #[arg(long, value_name = "S", default_value = "0.2", value_parser = crate::measurement::seconds)]
    time: Duration,
    /// How often the honest guests are measured alone, beside the hostile ports, and alone at the pace they had there
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// The program under test; the one beside this program where absent
    #[arg(long, value_name = "PATH")]
    tidegate: Option<PathBuf>,
    /// CPU of the switch's worker; not pinned where absent
    #[arg(long, value_name = "N")]
    switch_cpu: Option<usize>,
}

/// The harm that hostile ports do.
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

#[derive(Debug, Serialize)]
pub struct Report {
    load: Load,
    weight: u16,
    hostile: u16,
    /// w / (w + n), or w / (w + n + 1) if one more port has to send.
    share: f64,
    rounds: Vec<Round>,
    /// Over all windows together.
    alone: Voice,
    beside: Voice,
}

/// Delays of voice frames.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Voice {
    /// Of the frames under way while no CPU was taken away (us).
    p50_us: f64,
    p99_us: f64,
    p999_us: f64,
    /// Share of these frames among all.
    undisturbed: f64,
    /// Of all frames (us).
    p999_of_all_us: f64,
    lost: u64,
}

/// One round: alone, beside the hostile ports, and alone at the pace that bulk had beside them.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Round {
    /// Goodput alone, before and after (Mbit/s).
    alone_mbit: f64,
    /// Goodput beside the hostile ports (Mbit/s).
    beside_mbit: f64,
    /// Goodput beside the hostile ports, relative to the share of that alone.
    kept: f64,
    /// Worker time beside the hostile ports, relative to the share of that alone.
    time: f64,
    /// p99.9 of voice relative to that alone: of the frames under way while no CPU was taken away.
    p999: f64,
    /// p99.9 of voice relative to that alone: of all frames.
    p999_of_all: f64,
    /// Worker time of a bulk frame alone (ns).
    frame_ns_alone: f64,
    /// Worker time of a bulk frame alone, at the pace beside the hostile ports (ns).
    frame_ns_paced: f64,
    /// Worker time of a bulk frame beside the hostile ports (ns).
    frame_ns_beside: f64,
    /// Frames between hostile ports, or kicks, per second.
    hostile_per_second: f64,
}

impl Report {
    pub fn table(&self) -> String {
        let of = |of: fn(&Round) -> f64| -> Vec<f64> { self.rounds.iter().map(of).collect() };
        let spread = |values: &[f64], digits: usize| {
            let (least, most) = values.iter().fold((f64::MAX, f64::MIN), |(a, b), v| (a.min(*v), b.max(*v)));
            let middle = median(values.iter().copied());
            format!("{middle:.digits$} ({least:.digits$} to {most:.digits$})")
        };
        format!(
            "weight {} beside {} hostile ({:?}, {:.0} a second): goodput {} of its share of {:.2}, time {}; \
             a frame takes {} ns alone, {} alone at that pace, {} beside; \
             p99.9 {} times that alone, of the {:.0} and {:.0} % of frames while no CPU was taken away (p50 {:.0} and {:.0} us, \
             p99.9 {:.0} and {:.0} us in all windows), {} of all",
            self.weight,
            self.hostile,
            self.load,
            median(of(|round| round.hostile_per_second)),
            spread(&of(|round| round.kept), 2),
            self.share,
            spread(&of(|round| round.time), 2),
            spread(&of(|round| round.frame_ns_alone), 0),
            spread(&of(|round| round.frame_ns_paced), 0),
            spread(&of(|round| round.frame_ns_beside), 0),
            spread(&of(|round| round.p999), 1),
            self.alone.undisturbed * 100.0,
            self.beside.undisturbed * 100.0,
            self.alone.p50_us,
            self.beside.p50_us,
            self.alone.p999_us,
            self.beside.p999_us,
            spread(&of(|round| round.p999_of_all), 1),
        )
    }
}

fn mac(n: usize) -> [u8; 6] {
    [0x52, 0x54, 0, 0, 2, n as u8]
}

/// Measures. `cpu` is the CPU of this thread, which drives the honest guests.
///
/// # Errors
/// The processes cannot be started, or a guest cannot connect.
pub fn run(args: &Args, cpu: Option<usize>) -> Outcome<Report> {
    let beside = || Ok::<_, std::io::Error>(std::env::current_exe()?.with_file_name("tidegate"));
    let tidegate = args.tidegate.clone().map_or_else(beside, Ok)?;
    let reserved_cpus: Vec<usize> = cpu.into_iter().chain(args.switch_cpu).collect();
    let hostile: Vec<String> = (0..args.hostile).map(|n| format!("hostile{n}")).collect();
    let names: Vec<&str> =
        HONEST.into_iter().chain([OTHER]).chain(hostile.iter().map(String::as_str)).collect();
    let weight = format!("weight = {}", args.weight);
    let lines = |n: usize| if n < HONEST.len() { weight.as_str() } else { "" };
    let vnics: Vec<_> = names.iter().enumerate().map(|(n, name)| (*name, mac(n), lines(n))).collect();
    // The switch and the agent must not inherit the honest guests' CPU.
    clock::keep_off(&reserved_cpus);
    let host = Host::start(&tidegate, args.switch_cpu.as_slice(), &vnics)?;
    if let Some(cpu) = cpu {
        clock::pin(cpu)?;
    }
    let honest = Neighbours::connect(&host, [0, 1, 2, 3].map(|n| (HONEST[n], mac(n))), EVERY)?;
    let mut scene = Scene { args, host: &host, hostile: &hostile, reserved_cpus: &reserved_cpus, honest };
    scene.honest.watch(host.switch_pid())?;
    scene.honest.measure(WARM_UP);
    let mut samples = vec![scene.take_sample()?];
    let mut rounds = Vec::new();
    for _ in 0..args.rounds {
        let (beside, harm) = scene.sample_beside()?;
        scene.honest.pace(beside.window.rate());
        scene.honest.measure(SETTLED);
        let paced = scene.take_sample()?;
        scene.honest.pace(0.0);
        scene.honest.measure(SETTLED);
        samples.push(scene.take_sample()?);
        rounds.push((beside, paced, harm));
    }
    let share = f64::from(args.weight) / f64::from(args.weight + args.hostile + args.load.accomplices());
    let of_rounds = samples.windows(2).zip(&rounds).map(|(alone, (beside, paced, harm))| {
        let middle = |of: fn(&Sample) -> f64| median(alone.iter().map(of));
        let (rate, time) = (middle(|sample| sample.window.rate()), middle(|sample| sample.time));
        Round {
            alone_mbit: middle(|sample| sample.window.figures().bulk_mbit),
            beside_mbit: beside.window.figures().bulk_mbit,
            kept: beside.window.rate() / rate / share,
            time: beside.time / time / share,
            p999: quantile(&beside.window.undisturbed(), 0.999)
                / middle(|sample| quantile(&sample.window.undisturbed(), 0.999)),
            p999_of_all: beside.window.figures().voice_p999_us
                / middle(|sample| sample.window.figures().voice_p999_us),
            frame_ns_alone: middle(|sample| sample.frame_ns),
            frame_ns_paced: paced.frame_ns,
            frame_ns_beside: beside.frame_ns,
            hostile_per_second: *harm,
        }
    });
    let of_rounds = of_rounds.collect();
    let beside: Vec<Sample> = rounds.into_iter().map(|(beside, ..)| beside).collect();
    let (alone, beside) = (Voice::of(samples), Voice::of(beside));
    Ok(Report {
        load: args.load,
        weight: args.weight,
        hostile: args.hostile,
        share,
        rounds: of_rounds,
        alone,
        beside,
    })
}

struct Sample {
    window: Window,
    /// Bulk's share of the time that the worker charged.
    time: f64,
    /// Worker time charged to one bulk frame (ns).
    frame_ns: f64,
}

impl Voice {
    fn of(samples: Vec<Sample>) -> Self {
        let mut all = Window::default();
        samples.into_iter().for_each(|sample| all.join(sample.window));
        let (undisturbed, figures) = (all.undisturbed(), all.figures());
        Self {
            p50_us: quantile(&undisturbed, 0.5),
            p99_us: quantile(&undisturbed, 0.99),
            p999_us: quantile(&undisturbed, 0.999),
            undisturbed: undisturbed.len() as f64 / all.arrived().max(1) as f64,
            p999_of_all_us: figures.voice_p999_us,
            lost: figures.lost,
        }
    }
}

struct Scene<'a> {
    args: &'a Args,
    host: &'a Host,
    hostile: &'a [String],
    /// CPUs that the hostile ports must not use.
    reserved_cpus: &'a [usize],
    honest: Neighbours,
}

impl Scene<'_> {
    fn take_sample(&mut self) -> Outcome<Sample> {
        let worked = self.host.work()?;
        let window = self.honest.window(self.args.time);
        let now = self.host.work()?;
        let spent =
            |name: &str| now.get(name).map_or(0, |work| work.ns) - worked.get(name).map_or(0, |work| work.ns);
        let all: u64 = now.keys().map(|name| spent(name)).sum();
        let bulk = HONEST[0];
        let frames = |of: &BTreeMap<String, Work>| of.get(bulk).map_or(0, |work| work.frames);
        Ok(Sample {
            time: spent(bulk) as f64 / all.max(1) as f64,
            frame_ns: spent(bulk) as f64 / (frames(&now) - frames(&worked)).max(1) as f64,
            window,
        })
    }

    /// Measures the honest guests for a window beside the hostile ports. Returns also the hostile steps per
    /// second.
    fn sample_beside(&mut self) -> Outcome<(Sample, f64)> {
        let (stop, steps) = (AtomicBool::new(false), AtomicU64::new(0));
        let (load, host, hostile, reserved_cpus) =
            (self.args.load, self.host, self.hostile, self.reserved_cpus);
        let (sample, harm) = std::thread::scope(|scope| {
            let crowd = scope.spawn(|| {
                clock::keep_off(reserved_cpus);
                load.run(host, hostile, &stop, &steps).map_err(|error| error.to_string())
            });
            let started = Instant::now();
            while steps.load(Ordering::Relaxed) == 0 && !crowd.is_finished() && started.elapsed() < PREPARED {
                self.honest.measure(SETTLED);
            }
            // The queues become empty of earlier frames.
            self.honest.measure(SETTLED);
            let (start, before) = (Instant::now(), steps.load(Ordering::Relaxed));
            let sample = self.take_sample();
            let harm = (steps.load(Ordering::Relaxed) - before) as f64 / start.elapsed().as_secs_f64();
            stop.store(true, Ordering::Relaxed);
            while !crowd.is_finished() {
                self.honest.measure(SETTLED);
            }
            crowd.join().expect("it does not panic")?;
            Ok::<_, Box<dyn std::error::Error>>((sample?, harm))
        })?;
        if harm == 0.0 {
            return Err("the hostile ports did nothing".into());
        }
        Ok((sample, harm))
    }
}

impl Load {
    /// Returns the number of ports besides the hostile ones that want worker time.
    fn accomplices(self) -> u16 {
        u16::from(self == Self::Tiny)
    }

    /// Does harm from the ports `names` until `stop`, and counts it in `steps`.
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
