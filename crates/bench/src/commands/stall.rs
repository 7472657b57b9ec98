//! `tidegate-bench stall`: pairs of ports at full load, and one receiver that stalls.
//!
//! ```text
//!  one round:   before ────────▶│ stall │ settle ▶│ after ───────────▶
//!               all send        │ receiver 1 gives no buffers        all send
//! ```
//!
//! What a stall costs while it lasts is its receiver's own affair. What is measured is what it leaves
//! behind: throughput and losses before the stall, and from 100 ms after it on.

use super::{Outcome, ring};
use crate::frames::Size;
use crate::guest::{Guest, Rings};
use crate::load::{Load, Watch, median};
use crate::scene::Scene;
use serde::Serialize;
use std::time::Duration;

/// After a stall the switch has so long to be as it was before.
const SETTLE: Duration = Duration::from_millis(100);
/// Traffic before the first round.
const WARM_UP: Duration = Duration::from_millis(300);

/// Arguments of `stall`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Pairs of ports: the first of the file sends to the second, the third to the fourth
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..))]
    pairs: u16,
    /// Bytes of a frame without FCS, 42 to 9014
    #[arg(long, value_name = "BYTES", default_value = "1518")]
    frame: Size,
    /// Entries of each virtqueue
    #[arg(long, value_name = "N", default_value = "256", value_parser = ring)]
    ring: u16,
    /// Packed virtqueues instead of split ones
    #[arg(long)]
    packed: bool,
    /// How long the first receiver stalls in each round, s
    #[arg(long, value_name = "S", default_value = "0.005", value_parser = super::seconds)]
    stall: Duration,
    /// Rounds
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Length of a round, s
    #[arg(long, value_name = "S", default_value = "1", value_parser = super::seconds)]
    round: Duration,
}

/// What was measured.
#[derive(Debug, Serialize)]
pub struct Report {
    pairs: u16,
    frame: String,
    ring: u16,
    packed: bool,
    stall_seconds: f64,
    rounds: Vec<Round>,
    /// Medians over the rounds.
    before_frames_per_second: f64,
    after_frames_per_second: f64,
    /// Of all frames sent before stalls, and after them, those that did not arrive.
    before_lost_percent: f64,
    after_lost_percent: f64,
}

/// One round.
#[derive(Debug, Serialize)]
struct Round {
    before: Part,
    /// The stall, and what the switch has to settle.
    stalled: Part,
    after: Part,
    /// As in the windows of `forward`.
    taken_ns: u64,
    switch_taken_ns: u64,
}

/// A part of a round.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Part {
    sent: u64,
    received: u64,
    seconds: f64,
}

impl Part {
    fn new((sent, received, ns): (u64, u64, u64)) -> Self {
        Self { sent, received, seconds: ns as f64 / 1e9 }
    }

    fn per_second(self) -> f64 {
        self.received as f64 / self.seconds
    }
}

/// Of all that was sent, what did not arrive, %. Frames under way at the ends of a part count as one of both.
fn lost(parts: impl Iterator<Item = Part>) -> f64 {
    let (sent, received) = parts.fold((0, 0), |sum, part| (sum.0 + part.sent, sum.1 + part.received));
    (sent as f64 - received as f64) / (sent as f64).max(1.0) * 100.0
}

impl Report {
    /// For people.
    pub fn table(&self) -> String {
        let mut text = format!(
            "{} pairs, {} bytes, {} rings of {}, a stall of {:.0} ms in each round\n\
             before: {:.3} Mpps, lost {:.3} %; from 100 ms after it: {:.3} Mpps, lost {:.3} %\n",
            self.pairs,
            self.frame,
            if self.packed { "packed" } else { "split" },
            self.ring,
            self.stall_seconds * 1e3,
            self.before_frames_per_second / 1e6,
            self.before_lost_percent,
            self.after_frames_per_second / 1e6,
            self.after_lost_percent,
        );
        text += "before Mpps  after Mpps  lost in and after the stall  taken us  of the switch us\n";
        for round in &self.rounds {
            text += &format!(
                "{:11.3} {:11.3} {:28} {:9} {:17}\n",
                round.before.per_second() / 1e6,
                round.after.per_second() / 1e6,
                round.stalled.sent.saturating_sub(round.stalled.received),
                round.taken_ns / 1000,
                round.switch_taken_ns / 1000,
            );
        }
        text.trim_end().to_owned()
    }
}

/// Measures.
pub fn run(scene: &Scene, args: &Args, watch: &Watch) -> Outcome<Report> {
    let rest = args.round.saturating_sub(args.stall + SETTLE) / 2;
    if rest < SETTLE {
        return Err(
            format!("a round of {:?} is too short for a stall of {:?}", args.round, args.stall).into()
        );
    }
    let vnics = scene.first(Some(2 * usize::from(args.pairs)))?;
    let rings = Rings { size: args.ring, packed: args.packed };
    let connect = |vnic| Guest::connect(vnic, rings, args.frame, args.frame.buffer());
    let mut guests = vnics.iter().map(connect).collect::<Result<Vec<_>, _>>()?;
    for sender in (0..guests.len()).step_by(2) {
        let (from, to) = (guests[sender].mac(), guests[sender + 1].mac());
        guests[sender].load(|_| args.frame.build(to, from, sender as u16));
    }
    let ports = 0..guests.len();
    let (senders, receivers) = (ports.clone().step_by(2).collect(), ports.skip(1).step_by(2).collect());
    let mut load = Load { guests, senders, receivers };
    load.start();
    load.run(WARM_UP);
    let mut rounds = Vec::new();
    for _ in 0..args.rounds {
        let taken = watch.read()?;
        let before = Part::new(load.phase(rest, None));
        let (sent, received, ns) = load.phase(args.stall, Some(1));
        let (more_sent, more_received, more_ns) = load.phase(SETTLE, None);
        let stalled = Part::new((sent + more_sent, received + more_received, ns + more_ns));
        let after = Part::new(load.phase(rest, None));
        let now = watch.read()?;
        rounds.push(Round {
            before,
            stalled,
            after,
            taken_ns: now.0 - taken.0,
            switch_taken_ns: now.1 - taken.1,
        });
    }
    if rounds.iter().all(|round| round.before.received == 0) {
        return Err("no frame arrived: are these contracts in force, in one segment?".into());
    }
    Ok(Report {
        pairs: args.pairs,
        frame: args.frame.to_string(),
        ring: args.ring,
        packed: args.packed,
        stall_seconds: args.stall.as_secs_f64(),
        before_frames_per_second: median(rounds.iter().map(|round| round.before.per_second())),
        after_frames_per_second: median(rounds.iter().map(|round| round.after.per_second())),
        before_lost_percent: lost(rounds.iter().map(|round| round.before)),
        after_lost_percent: lost(rounds.iter().map(|round| round.after)),
        rounds,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_did_not_arrive_is_a_share_of_what_was_sent() {
        let part = |sent, received| Part { sent, received, seconds: 0.5 };
        assert_eq!(lost([part(100, 90), part(100, 100)].into_iter()), 5.0);
        assert_eq!(lost(std::iter::empty()), 0.0);
        assert_eq!(part(0, 100).per_second(), 200.0);
    }
}
