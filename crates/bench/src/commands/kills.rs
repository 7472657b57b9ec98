//! How traffic goes on when the switch is killed, again and again.
//!
//! ```text
//!  this process: two guests, frames with numbers both ways, as fast as the rings take them
//!                    ║ rings
//!  tidegate switch ◀─╨─ kill -9 at random times, a new one at once
//!  tidegate agent       stays: it keeps the descriptors, guests never connect again
//! ```

use super::Outcome;
use crate::kills::guests::{Counts, Guests};
use crate::kills::host::Host;
use clap::Args as ClapArgs;
use serde::Serialize;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Longest wait for a ring to move: one that has not moved by then is stuck.
const PATIENCE: Duration = Duration::from_secs(5);

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
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = super::ring)]
    ring: u16,
    /// Bytes of each frame
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = clap::value_parser!(u16).range(64..=1514))]
    frame: u16,
    /// Where the random times begin: the same seed gives the same times
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// CPUs of the switch's workers
    #[arg(long, value_name = "LIST")]
    switch_cpus: Option<String>,
}

/// What came of it.
#[derive(Debug, Serialize)]
pub struct Report {
    layout: &'static str,
    what: &'static str,
    kills: u32,
    /// Kills within 20 ms of a start: maybe before anything moved.
    early_kills: u32,
    /// Rings that had not moved for [`PATIENCE`] after a start.
    stuck_rings: u32,
    /// Times a guest had to connect again, because of those.
    reconnections: u32,
    sent: u64,
    received: u64,
    /// Sent, given back by the switch and never received.
    lost: u64,
    /// Received more than once.
    duplicated: u64,
    /// Received after a later one.
    reordered: u64,
    /// Buffers that the switch had taken and not given back at the end.
    buffers_leaked: u64,
    /// From the start of the new process to frames that it carried, both ways, ms.
    traffic_again_ms: Spread,
    /// The longest time without a frame at either guest around each change, ms.
    silence_ms: Spread,
    /// Frames per second, both ways together, before the first and after the last.
    rate_before: f64,
    rate_after: f64,
}

/// Of a number of times.
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

/// Kills and looks.
///
/// # Errors
/// The processes cannot be started, or a guest cannot connect.
pub fn run(args: &Args) -> Outcome<Report> {
    let beside = || Ok::<_, std::io::Error>(std::env::current_exe()?.with_file_name("tidegate"));
    let tidegate = args.tidegate.clone().map_or_else(beside, Ok)?;
    let mut host = Host::start(&tidegate, args.switch_cpus.as_deref())?;
    let guests = Guests::connect(&host, args.ring, args.frame.into(), args.packed)?;
    let mut random = Random(args.seed);
    let pause = |random: &mut Random| Duration::from_micros(20_000 + random.below(280_000));

    guests.wait_for(|counts| counts.each.iter().all(|n| *n > 1000), PATIENCE);
    let rate_before = guests.rate(Duration::from_secs(1));
    let (mut early_kills, mut stuck_rings, mut reconnections) = (0, 0, 0);
    let (mut again, mut silence) = (Vec::new(), Vec::new());
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
            Some(at) => again.push(at.saturating_duration_since(started).as_secs_f64() * 1e3),
            None => {
                let now = guests.counts();
                let stuck = now.each.iter().zip(&before.each).filter(|(now, before)| now == before).count();
                stuck_rings += stuck as u32;
                eprintln!("{stuck} rings stuck after {kills} kills: {}", host.last_words());
                reconnections += guests.reconnect()?;
            }
        }
        silence.push(guests.longest_silence() as f64 / 1e6);
    }
    guests.wait_for(|_| false, Duration::from_millis(500));
    let rate_after = guests.rate(Duration::from_secs(1));
    let end = guests.finish(PATIENCE)?;
    Ok(Report {
        layout: if args.packed { "packed" } else { "split" },
        what: if args.replace { "replace" } else { "kill -9" },
        kills,
        early_kills,
        stuck_rings,
        reconnections,
        sent: end.sent,
        received: end.received,
        lost: end.sent - end.received,
        duplicated: end.duplicated,
        reordered: end.reordered,
        buffers_leaked: end.leaked,
        traffic_again_ms: Spread::of(again),
        silence_ms: Spread::of(silence),
        rate_before,
        rate_after,
    })
}

impl Report {
    /// For people.
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
            self.buffers_leaked,
            spread(&self.traffic_again_ms),
            spread(&self.silence_ms),
            self.rate_before,
            self.rate_after,
        )
    }
}

/// xorshift64*: numbers that repeat.
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
