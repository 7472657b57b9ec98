//! `tidegate-bench stall`: pairs of ports at full load, and one receiver that stalls.
//!
//! ```text
//!  one round:   before ────────▶│ stall │ 100 ms ▶│ after ───────────▶
//!               all send        │ the first receiver gives no buffers  all send
//!
//!  senders:   thread on --cpu           ┐ one thread for both
//!  receivers: thread on --sink-cpu      ┘ without --sink-cpu
//! ```
//!
//! Losses of the stalling receiver itself do not count. The measurement covers the other pairs, and the
//! time after the stall: throughput and losses before, during and after it.

use crate::clock::{self, StolenTime};
use crate::frames::Size;
use crate::guest::{Guest, RingPolls, Rings};
use crate::load::{Count, Counts, Load, Phase, Watch, median};
use crate::measurement::{Outcome, ring};
use crate::scene::Scene;
use serde::Serialize;
use std::io;
use std::time::Duration;

/// Time for the switch to recover after a stall.
const SETTLE: Duration = Duration::from_millis(100);
/// Traffic before the first round.
const WARM_UP: Duration = Duration::from_millis(200);

/// Arguments of `stall`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Pairs of ports
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..))]
    pairs: u16,
    /// A port sends to the port this many places after it in the file. The switch assigns ports to its W workers in
    /// turn: 1 is a port of another worker, W a port of the same one
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    stride: u16,
    /// Bytes of a frame without FCS, 42 to 9014
    #[arg(long, value_name = "BYTES", default_value = "1518")]
    frame: Size,
    /// Entries of each virtqueue
    #[arg(long, value_name = "N", default_value = "256", value_parser = ring)]
    ring: u16,
    /// Packed virtqueues instead of split ones
    #[arg(long)]
    packed: bool,
    /// CPU of a thread of its own for the receivers
    #[arg(long, value_name = "N")]
    sink_cpu: Option<usize>,
    /// How long the first receiver stalls in each round, s; 0: not at all
    #[arg(long, value_name = "S", default_value = "0.005", value_parser = crate::measurement::seconds)]
    stall: Duration,
    /// Rounds
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Length of a round, s
    #[arg(long, value_name = "S", default_value = "1", value_parser = crate::measurement::seconds)]
    round: Duration,
}

#[derive(Debug, Serialize)]
pub struct Report {
    pairs: u16,
    stride: u16,
    frame: String,
    ring: u16,
    packed: bool,
    stall_seconds: f64,
    rounds: Vec<Round>,
    /// Medians over the rounds.
    before_frames_per_second: f64,
    during_frames_per_second: f64,
    soon_frames_per_second: f64,
    after_frames_per_second: f64,
    /// Frames received per second of CPU time of the switch's workers; 0 if the switch's process is
    /// unknown.
    frames_per_cpu_second: f64,
    /// Share of sent frames that did not arrive, before stalls and from 100 ms after them on (%).
    before_lost_percent: f64,
    after_lost_percent: f64,
}

#[derive(Debug, Serialize)]
struct Round {
    before: Part,
    /// During the stall of the first receiver, and in the 100 ms after it.
    during: Part,
    soon: Part,
    after: Part,
    /// Frames lost in the stall and in the 100 ms after it: to the stalled receiver, and to the others.
    lost_at_stalled: i64,
    lost_at_others: i64,
    /// Before the stall: share of looks at a transmit ring that found more than three quarters of it empty,
    /// and at a receive ring that found as much of it filled. Near 1, the generator is the limit.
    senders_late: f64,
    receivers_late: f64,
    /// Frames in the whole round per second of CPU time of the switch's workers.
    frames_per_cpu_second: f64,
    /// As in the windows of `forward`, for both threads of the generator.
    taken_ns: u64,
    switch_taken_ns: u64,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Part {
    sent: u64,
    received: u64,
    seconds: f64,
}

impl Part {
    fn per_second(self) -> f64 {
        self.received as f64 / self.seconds.max(1e-9)
    }

    /// A frame under way at the end of a part counts as sent in it, and as received in the next.
    fn lost(self) -> i64 {
        self.sent as i64 - self.received as i64
    }
}

/// Returns the share of sent frames that did not arrive (%).
fn lost(parts: impl Iterator<Item = Part>) -> f64 {
    let (sent, lost) = parts.fold((0, 0), |sum, part| (sum.0 + part.sent, sum.1 + part.lost()));
    lost as f64 / (sent as f64).max(1.0) * 100.0
}

/// Returns the share of late looks between the first and the last of `counts`.
fn late(counts: &[Counts], of: fn(&Count) -> RingPolls) -> f64 {
    let sum = |at: &Counts| at.guests.iter().map(of).fold((0, 0), |sum, l| (sum.0 + l.count, sum.1 + l.late));
    let (before, after) = (sum(&counts[0]), sum(&counts[counts.len() - 1]));
    (after.1 - before.1) as f64 / (after.0 - before.0).max(1) as f64
}

/// Returns sender and receiver of each pair, as positions in the file: blocks of `stride` senders and as
/// many receivers.
fn pairs(count: usize, stride: usize) -> Vec<(usize, usize)> {
    let sender = |pair: usize| pair / stride * 2 * stride + pair % stride;
    (0..count).map(|pair| (sender(pair), sender(pair) + stride)).collect()
}

impl Report {
    pub fn table(&self) -> String {
        let mut text = format!(
            "{} pairs, {} bytes, {} rings of {}, a stall of {:.0} ms in each round\n\
             before: {:.3} Mpps, lost {:.3} %; from 100 ms after it: {:.3} Mpps, lost {:.3} %\n\
             {:.3} million frames for a second of the switch's CPU time\n",
            self.pairs,
            self.frame,
            if self.packed { "packed" } else { "split" },
            self.ring,
            self.stall_seconds * 1e3,
            self.before_frames_per_second / 1e6,
            self.before_lost_percent,
            self.after_frames_per_second / 1e6,
            self.after_lost_percent,
            self.frames_per_cpu_second / 1e6,
        );
        text +=
            "   Mpps: before  during    soon   after   lost: stalled  others   taken us  of the switch us\n";
        for round in &self.rounds {
            let mpps = |part: Part| part.per_second() / 1e6;
            text += &format!(
                "{:15.3} {:7.3} {:7.3} {:7.3} {:15} {:7} {:10} {:17}\n",
                mpps(round.before),
                mpps(round.during),
                mpps(round.soon),
                mpps(round.after),
                round.lost_at_stalled,
                round.lost_at_others,
                round.taken_ns / 1000,
                round.switch_taken_ns / 1000,
            );
        }
        text.trim_end().to_owned()
    }
}

/// The guests: pair `n` is the `n`th sender and the `n`th receiver.
struct Endpoints {
    senders: Load,
    receivers: Load,
    /// CPU of the receivers' thread; `None` if one thread drives both.
    sink_cpu: Option<usize>,
}

impl Endpoints {
    fn connect(scene: &Scene, args: &Args) -> Outcome<Self> {
        let pairs = pairs(args.pairs.into(), args.stride.into());
        let vnics = scene.first(pairs.iter().map(|(_, receiver)| receiver + 1).max())?;
        let rings = Rings { size: args.ring, packed: args.packed };
        let connect = |port: usize| Guest::connect(&vnics[port], rings, args.frame, args.frame.buffer());
        let (mut senders, mut receivers) = (Vec::new(), Vec::new());
        for (sender, receiver) in &pairs {
            let (mut from, to) = (connect(*sender)?, connect(*receiver)?);
            let (source, destination) = (from.mac(), to.mac());
            from.load(|_| args.frame.build(destination, source, *sender as u16));
            senders.push(from);
            receivers.push(to);
        }
        let all = (0..pairs.len()).collect::<Vec<_>>();
        Ok(Self {
            senders: Load { guests: senders, senders: all.clone(), receivers: Vec::new() },
            receivers: Load { guests: receivers, senders: Vec::new(), receivers: all },
            sink_cpu: args.sink_cpu,
        })
    }

    /// Goes through `phases`. Returns the counts of senders and receivers, and for how long the receivers'
    /// thread was ready but did not run (ns).
    fn phases(&mut self, phases: &[Phase]) -> io::Result<(Vec<Counts>, Vec<Counts>, u64)> {
        let Self { senders, receivers, sink_cpu } = self;
        let Some(cpu) = *sink_cpu else {
            return Ok(Self::by_turns(senders, receivers, phases));
        };
        std::thread::scope(|scope| {
            let sink = scope.spawn(move || {
                clock::pin(cpu)?;
                let stolen_time = StolenTime::here()?;
                let before = stolen_time.read()?;
                let counts = receivers.phases(phases);
                Ok::<_, io::Error>((counts, stolen_time.read()? - before))
            });
            let sent = senders.phases(phases);
            let (received, taken) = sink.join().expect("it does not panic")?;
            Ok((sent, received, taken))
        })
    }

    /// Does the same on this thread only.
    fn by_turns(
        senders: &mut Load,
        receivers: &mut Load,
        phases: &[Phase],
    ) -> (Vec<Counts>, Vec<Counts>, u64) {
        let pairs = senders.guests.len();
        let mut all = Load {
            guests: senders.guests.drain(..).chain(receivers.guests.drain(..)).collect(),
            senders: (0..pairs).collect(),
            receivers: (pairs..2 * pairs).collect(),
        };
        let stalled = |phase: &Phase| Phase { stalled: phase.stalled.map(|port| port + pairs), ..*phase };
        let counts = all.phases(&phases.iter().map(stalled).collect::<Vec<_>>());
        receivers.guests = all.guests.split_off(pairs);
        senders.guests = all.guests;
        let part = |range: std::ops::Range<usize>| {
            counts
                .iter()
                .map(|all| Counts { at: all.at, guests: all.guests[range.clone()].to_vec() })
                .collect()
        };
        (part(0..pairs), part(pairs..2 * pairs), 0)
    }
}

pub fn run(scene: &Scene, args: &Args, watch: &Watch) -> Outcome<Report> {
    let undisturbed_time = args.round.saturating_sub(args.stall + SETTLE) / 2;
    if undisturbed_time < SETTLE {
        return Err(
            format!("a round of {:?} is too short for a stall of {:?}", args.round, args.stall).into()
        );
    }
    let mut endpoints = Endpoints::connect(scene, args)?;
    endpoints.senders.start();
    let after_now = |time: Duration| clock::now() + time.as_nanos() as u64;
    endpoints.phases(&[Phase { until: after_now(WARM_UP), stalled: None }])?;
    let lengths = [(undisturbed_time, None), (args.stall, Some(0)), (SETTLE, None), (undisturbed_time, None)];
    let mut rounds = Vec::new();
    for _ in 0..args.rounds {
        let (taken, ran) = (watch.read()?, watch.switch_ran()?);
        let mut until = clock::now();
        let phases = lengths.map(|(length, stalled)| {
            until += length.as_nanos() as u64;
            Phase { until, stalled }
        });
        let (sent, received, taken_of_sink) = endpoints.phases(&phases)?;
        let (now, ran) = (watch.read()?, watch.switch_ran()? - ran);
        let taken = (now.0 - taken.0 + taken_of_sink, now.1 - taken.1);
        rounds.push(Round::new(&sent, &received, taken, ran));
    }
    if rounds.iter().all(|round| round.before.received == 0) {
        return Err("no frame arrived: are these contracts in force, in one segment?".into());
    }
    let rate = |of: fn(&Round) -> Part| median(rounds.iter().map(|round| of(round).per_second()));
    Ok(Report {
        pairs: args.pairs,
        stride: args.stride,
        frame: args.frame.to_string(),
        ring: args.ring,
        packed: args.packed,
        stall_seconds: args.stall.as_secs_f64(),
        before_frames_per_second: rate(|round| round.before),
        during_frames_per_second: rate(|round| round.during),
        soon_frames_per_second: rate(|round| round.soon),
        after_frames_per_second: rate(|round| round.after),
        frames_per_cpu_second: median(rounds.iter().map(|round| round.frames_per_cpu_second)),
        before_lost_percent: lost(rounds.iter().map(|round| round.before)),
        after_lost_percent: lost(rounds.iter().map(|round| round.after)),
        rounds,
    })
}

impl Round {
    /// Computes a round from the counts at its begin and at the end of each part, the time `taken` from
    /// generator and switch, and the time that the switch's workers `ran` (ns).
    fn new(sent: &[Counts], received: &[Counts], taken: (u64, u64), ran: u64) -> Self {
        let part = |from: usize, to: usize, pairs: std::ops::Range<usize>| {
            let sum =
                |at: &Counts, of: fn(&Count) -> u64| at.guests[pairs.clone()].iter().map(of).sum::<u64>();
            Part {
                sent: sum(&sent[to], |guest| guest.sent) - sum(&sent[from], |guest| guest.sent),
                received: sum(&received[to], |guest| guest.received)
                    - sum(&received[from], |guest| guest.received),
                seconds: (received[to].at - received[from].at) as f64 / 1e9,
            }
        };
        let all = 0..sent[0].guests.len();
        let whole = part(0, 4, all.clone());
        Self {
            before: part(0, 1, all.clone()),
            during: part(1, 2, all.clone()),
            soon: part(2, 3, all.clone()),
            after: part(3, 4, all.clone()),
            lost_at_stalled: part(1, 3, 0..1).lost(),
            lost_at_others: part(1, 3, 1..all.end).lost(),
            senders_late: late(&sent[..2], |guest| guest.refills),
            receivers_late: late(&received[..2], |guest| guest.drains),
            frames_per_cpu_second: if ran > 0 { whole.received as f64 / (ran as f64 / 1e9) } else { 0.0 },
            taken_ns: taken.0,
            switch_taken_ns: taken.1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loss_is_a_share_of_the_sent_frames() {
        let part = |sent, received| Part { sent, received, seconds: 0.5 };
        assert_eq!(lost([part(100, 90), part(100, 100)].into_iter()), 5.0);
        assert_eq!(lost(std::iter::empty()), 0.0);
        assert_eq!(part(0, 100).per_second(), 200.0);
    }

    /// The switch assigns ports to the workers in turn: port `n` to worker `n % 2`.
    #[test]
    fn the_stride_determines_the_worker_of_the_receiver() {
        assert_eq!(pairs(3, 1), [(0, 1), (2, 3), (4, 5)], "each on both workers");
        assert_eq!(pairs(3, 2), [(0, 2), (1, 3), (4, 6)], "each on one worker, by turns");
        assert_eq!(pairs(5, 4)[4], (8, 12));
    }

    #[test]
    fn losses_are_counted_by_receiver() {
        let at = |ms: u64, guests: [(u64, u64); 2]| {
            let refills = RingPolls { count: ms, late: ms / 4 };
            let count = |(sent, received)| Count { sent, received, refills, drains: RingPolls::default() };
            Counts { at: ms * 1_000_000, guests: guests.map(count).into() }
        };
        let sent = [0, 100, 110, 200, 300].map(|n| at(n, [(10 * n, 0), (20 * n, 0)]));
        let mut received = [0, 100, 110, 200, 300].map(|n| at(n, [(0, 10 * n), (0, 20 * n)]));
        for (later, counts) in received.iter_mut().skip(2).enumerate() {
            counts.guests[0].received -= 60 + 40 * u64::from(later > 0);
            counts.guests[1].received -= 7;
        }
        let round = Round::new(&sent, &received, (1, 2), 300_000_000);
        assert_eq!((round.lost_at_stalled, round.lost_at_others), (100, 7));
        assert_eq!((round.before.received, round.before.lost(), round.after.lost()), (3000, 0, 0));
        assert_eq!((round.during.lost(), round.soon.lost()), (67, 40));
        assert_eq!((round.senders_late, round.receivers_late), (0.25, 0.0));
        assert!((round.frames_per_cpu_second - (9000.0 - 107.0) / 0.3).abs() < 1e-6);
        assert!((round.before.per_second() - 30_000.0).abs() < 1e-6);
    }
}
