//! Traffic while the switch is killed repeatedly.
//!
//! ```text
//!  this process: two guests, frames with numbers both ways, as fast as the rings take them
//!                    ║ rings
//!  tidegate switch ◀─╨─ kill -9 at random times, a new one at once
//!  tidegate agent       keeps running and keeps the descriptors: guests never connect again
//! ```

use crate::host::Host;
use crate::kills::MACS;
use crate::kills::guests::{Counts, Guests};
use crate::measurement::Outcome;
use crate::reliability::{Part, Verdict};
use clap::Args as ClapArgs;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Longest wait for a ring to move. A ring that does not move in this time is stuck.
const PATIENCE: Duration = Duration::from_secs(5);

/// Time after a start within which traffic must flow (ms).
const WITHIN_MS: f64 = 200.0;

/// Arguments of `kills`.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// Kills
    #[arg(long, value_name = "N", default_value_t = 100)]
    count: u32,
    /// Guests with packed rings instead of split ones
    #[arg(long)]
    packed: bool,
    /// Upgrade live (`tidegate switch --replace`) instead of killing
    #[arg(long)]
    replace: bool,
    /// The program under test; the one beside this program where absent
    #[arg(long, value_name = "PATH")]
    tidegate: Option<PathBuf>,
    /// Entries of each virtqueue
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = crate::measurement::ring)]
    ring: u16,
    /// Bytes of each frame
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = clap::value_parser!(u16).range(64..=1514))]
    frame: u16,
    /// Where the random times begin: the same seed gives the same times
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// CPUs of the switch's workers, such as 2,3: a worker on each; one that is not pinned where absent
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    switch_cpus: Vec<usize>,
    /// Also write the rows of docs/reliability.md there; those of the other layout of rings stay
    #[arg(long, value_name = "PATH")]
    report: Option<PathBuf>,
}

#[derive(Debug, Serialize)]
pub struct Report {
    layout: &'static str,
    what: &'static str,
    asked: u32,
    kills: u32,
    /// Kills within 20 ms of a start, possibly before a frame moved.
    early_kills: u32,
    /// Rings that did not move for [`PATIENCE`] after a start.
    stuck_rings: u32,
    /// Kills that were followed by a stuck ring.
    stuck_at: u32,
    /// Reconnections of guests because of a stuck ring.
    reconnections: u32,
    sent: u64,
    received: u64,
    /// Frames sent, given back by the switch, but never received.
    lost: u64,
    /// Frames that the switch counted as dropped, by reason. The next process continues the count.
    dropped: BTreeMap<String, u64>,
    /// `lost` without drops at a full receiver: frames lost by the kills or upgrades.
    lost_by_it: u64,
    duplicated: u64,
    reordered: u64,
    /// Buffers that the switch had taken and not given back at the end.
    buffers_leaked: u64,
    /// Time from the start of a new process until it has carried frames in both directions (ms).
    traffic_again_ms: Spread,
    /// Longest time without frames at one of the guests around each change (ms).
    silence_ms: Spread,
    /// Rate before the first and after the last change (frames/s, both directions).
    rate_before: f64,
    rate_after: f64,
}

#[derive(Debug, Default, Serialize)]
pub struct Spread {
    median: f64,
    p90: f64,
    worst: f64,
    count: usize,
}

impl Spread {
    fn of(mut times: Vec<f64>) -> Self {
        times.sort_by(f64::total_cmp);
        let at = |q: f64| times.get(((times.len() as f64 * q) as usize).min(times.len().saturating_sub(1)));
        Self {
            median: at(0.5).copied().unwrap_or(0.0),
            p90: at(0.9).copied().unwrap_or(0.0),
            worst: times.last().copied().unwrap_or(0.0),
            count: times.len(),
        }
    }
}

/// Kills and measures.
///
/// # Errors
/// The processes cannot be started, or a guest cannot connect.
pub fn run(args: &Args) -> Outcome<Report> {
    let report = measure(args)?;
    if let Some(path) = &args.report {
        let mine = format!(", {} rings", report.layout);
        report.part(path)?.write(path, |measure| !measure.ends_with(&mine))?;
    }
    Ok(report)
}

fn measure(args: &Args) -> Outcome<Report> {
    let beside = || Ok::<_, std::io::Error>(std::env::current_exe()?.with_file_name("tidegate"));
    let tidegate = args.tidegate.clone().map_or_else(beside, Ok)?;
    let mut host = Host::start(&tidegate, &args.switch_cpus, &[("a", MACS[0], ""), ("b", MACS[1], "")])?;
    let guests = Guests::connect(&host, args.ring, args.frame.into(), args.packed)?;
    let mut random = Random(args.seed);
    let pause = |random: &mut Random| Duration::from_micros(20_000 + random.below(280_000));

    guests.wait_for(|counts| counts.each.iter().all(|n| *n > 1000), PATIENCE);
    let rate_before = guests.rate(Duration::from_secs(1));
    let (mut early_kills, mut stuck_rings, mut stuck_at, mut reconnections) = (0, 0, 0, 0);
    let (mut again_ms, mut silence) = (Vec::new(), Vec::new());
    let mut kills = 0;
    while kills < args.count {
        let early = !args.replace && random.below(10) == 0;
        std::thread::sleep(if early {
            Duration::from_micros(random.below(20_000))
        } else {
            pause(&mut random)
        });
        guests.longest_silence();
        let (started, before): (Instant, Counts);
        if args.replace {
            before = guests.counts();
            started = Instant::now();
            host.replace()?;
        } else {
            host.kill()?;
            before = guests.settled();
            started = Instant::now();
            host.start_switch()?;
        }
        kills += 1;
        if early {
            early_kills += 1;
            continue;
        }
        let moved = |now: &Counts| now.each.iter().zip(&before.each).all(|(now, before)| now > before);
        match guests.wait_for(moved, PATIENCE) {
            Some(at) => again_ms.push(at.saturating_duration_since(started).as_secs_f64() * 1e3),
            None => {
                let now = guests.counts();
                let stuck = now.each.iter().zip(&before.each).filter(|(now, before)| now == before).count();
                (stuck_rings, stuck_at) = (stuck_rings + stuck as u32, stuck_at + 1);
                eprintln!("{stuck} rings stuck after {kills} kills: {}", host.last_words());
                reconnections += guests.reconnect()?;
            }
        }
        silence.push(guests.longest_silence() as f64 / 1e6);
    }
    guests.wait_for(|_| false, Duration::from_millis(500));
    let rate_after = guests.rate(Duration::from_secs(1));
    let end = guests.finish(PATIENCE)?;
    let dropped = host.dropped()?;
    let lost = end.sent - end.received;
    Ok(Report {
        layout: if args.packed { "packed" } else { "split" },
        what: if args.replace { "replace" } else { "kill -9" },
        asked: args.count,
        kills,
        early_kills,
        stuck_rings,
        stuck_at,
        reconnections,
        sent: end.sent,
        received: end.received,
        lost,
        lost_by_it: lost.saturating_sub(full(&dropped)),
        dropped,
        duplicated: end.duplicated,
        reordered: end.reordered,
        buffers_leaked: end.leaked,
        traffic_again_ms: Spread::of(again_ms),
        silence_ms: Spread::of(silence),
        rate_before,
        rate_after,
    })
}

/// Counts frames dropped because their receiver had no buffers: not a fault of the kill.
fn full(dropped: &BTreeMap<String, u64>) -> u64 {
    ["ring_share", "queue_full", "no_buffers", "worker_behind", "held_too_long"]
        .iter()
        .filter_map(|reason| dropped.get(*reason))
        .sum()
}

impl Report {
    fn reasons(&self) -> String {
        let each: Vec<_> = self.dropped.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
        if each.is_empty() { "none".into() } else { each.join(", ") }
    }

    /// Builds the rows for docs/reliability.md.
    fn part(&self, path: &Path) -> std::io::Result<Part> {
        let replace = self.what == "replace";
        let (name, option) = if replace { ("upgrade", " --replace") } else { ("kills", "") };
        let command = format!(
            "tidegate-bench kills{option} --count {} --report {}, again with --packed",
            self.asked,
            path.display()
        );
        let mut part = Part::new(name, &command)?;
        let layout = self.layout;
        let count = |n: u64| n.to_string();
        let none = |n: u64| if n == 0 { Verdict::Kept } else { Verdict::Missed };
        let ms = |ms: f64| format!("{ms:.1} ms");
        let mut row = |measure: &str, asked: &str, seen: String, verdict| {
            part.row(format!("{measure}, {layout} rings"), asked, seen, verdict);
        };
        let survived = if replace { "upgrades" } else { "kills survived" };
        let stuck = none(self.stuck_rings.into());
        row(survived, &self.asked.to_string(), count(u64::from(self.kills - self.stuck_at)), stuck);
        row("stuck rings", "0", count(self.stuck_rings.into()), stuck);
        row("frames received twice", "0", count(self.duplicated), none(self.duplicated));
        row("buffers leaked", "0", count(self.buffers_leaked), none(self.buffers_leaked));
        row("frames sent", "", count(self.sent), Verdict::Info);
        row("frames lost", "", count(self.lost), Verdict::Info);
        let counted = format!("{} ({})", full(&self.dropped), self.reasons());
        row(
            "of those, for a full receiver, as at any time (all that is counted)",
            "",
            counted,
            Verdict::Info,
        );
        if replace {
            row("of those, lost by the upgrade", "0", count(self.lost_by_it), none(self.lost_by_it));
            row("nothing received for, median", "", ms(self.silence_ms.median), Verdict::Info);
            row("nothing received for, worst", "", ms(self.silence_ms.worst), Verdict::Info);
        } else {
            let again_ms = &self.traffic_again_ms;
            let within = |ms: f64| if ms <= WITHIN_MS { Verdict::Kept } else { Verdict::Missed };
            row(
                "traffic again after the start, median",
                "200 ms",
                ms(again_ms.median),
                within(again_ms.median),
            );
            row("traffic again after the start, 90 %", "200 ms", ms(again_ms.p90), within(again_ms.p90));
            row("traffic again after the start, worst", "200 ms", ms(again_ms.worst), within(again_ms.worst));
        }
        let rate = |rate: f64| format!("{rate:.0} frames/s");
        row("rate before", "", rate(self.rate_before), Verdict::Info);
        row("rate after", "", rate(self.rate_after), Verdict::Info);
        part.note("Two guests on one thread, frames with numbers both ways as fast as their rings take them; a receiver that is not looked after meanwhile is full, and what is dropped for that is counted.");
        Ok(part)
    }

    pub fn table(&self) -> String {
        let spread = |of: &Spread| {
            format!(
                "median {:.1}, 90 % {:.1}, worst {:.1} ms ({} times)",
                of.median, of.p90, of.worst, of.count
            )
        };
        format!(
            "{} {} of the switch ({} within 20 ms of its start), {} rings, both ways at full load\n\
             stuck rings      {}   (guests connected again: {})\n\
             frames           {} sent, {} lost, {} twice, {} out of order\n\
             of those lost    {} for a full receiver, as at any time; {} not (counted: {})\n\
             buffers leaked   {}\n\
             traffic again    {}\n\
             longest silence  {}\n\
             frames/s         {:.0} before, {:.0} after",
            self.kills,
            self.what,
            self.early_kills,
            self.layout,
            self.stuck_rings,
            self.reconnections,
            self.sent,
            self.lost,
            self.duplicated,
            self.reordered,
            full(&self.dropped),
            self.lost_by_it,
            self.reasons(),
            self.buffers_leaked,
            spread(&self.traffic_again_ms),
            spread(&self.silence_ms),
            self.rate_before,
            self.rate_after,
        )
    }
}

/// xorshift64*: pseudo-random numbers, equal for equal seeds.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        let Self(state) = self;
        *state = if *state == 0 { 0x9e37_79b9_7f4a_7c15 } else { *state };
        *state ^= *state >> 12;
        *state ^= *state << 25;
        *state ^= *state >> 27;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d) % n
    }
}
