//! `tidegate-bench rates`: a set rate against the rate that arrives.
//!
//! ```text
//!  sender, its ring always full ─▶ tx.max ─▶ rx.max ─▶ receiver: (time, bytes) of every look
//!                                                        ├─ rate: from a frame to a frame
//!                                                        └─ envelope: bytes beyond rate * time + burst
//! ```
//!
//! The rate is counted from just after one arrival to just after another: a window that begins and ends
//! between frames would count up to one frame too many or too few.

use crate::clock;
use crate::frames::Size;
use crate::guest::Guest;
use crate::load::{Load, Watch};
use crate::measurement::{Outcome, ring};
use crate::scene::{Scene, SceneError};
use clap::ValueEnum;
use serde::Serialize;
use std::time::Duration;
use tidegate_contract::testing::envelope::Envelope;
use tidegate_contract::{Bytes, Rate, Vnic};

/// The limit that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Limit {
    /// `tx.max` of the sender
    Tx,
    /// `rx.max` of the receiver
    Rx,
}

/// Arguments of `rates`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// vNIC that sends
    #[arg(long, value_name = "NAME")]
    from: String,
    /// vNIC that receives
    #[arg(long, value_name = "NAME")]
    to: String,
    /// Which limit is measured
    #[arg(long, value_enum, default_value_t = Limit::Tx)]
    limit: Limit,
    /// Bytes of a frame without FCS, 42 to 9014, or `super` for 64 KB TCP super-frames; several are taken in
    /// turn, of single frames
    #[arg(long, value_name = "BYTES", value_delimiter = ',', default_value = "1518")]
    frame: Vec<Size>,
    /// Entries of each virtqueue
    #[arg(long, value_name = "N", default_value = "256", value_parser = ring)]
    ring: u16,
    /// Traffic before the rate is measured, s: it has to use up the burst
    #[arg(long, value_name = "S", default_value = "1", value_parser = crate::measurement::seconds)]
    warm_up: Duration,
    /// How long to measure, s
    #[arg(long, value_name = "S", default_value = "10", value_parser = crate::measurement::seconds)]
    seconds: Duration,
}

#[derive(Debug, Serialize)]
pub struct Report {
    limit: Limit,
    frame: String,
    /// Bytes of the longest frame, as the contract counts them.
    wire_bytes: u64,
    set_bits_per_second: u64,
    burst_bytes: u64,
    bytes: u64,
    seconds: f64,
    bits_per_second: f64,
    error_percent: f64,
    /// Bytes beyond rate and burst in the worst interval, first burst included: the largest possible value,
    /// and the certain part. Negative if the burst was never used up.
    over_seen_bytes: f64,
    over_certain_bytes: f64,
    /// The same, from the end of the warm-up on.
    over_seen_later_bytes: f64,
    over_certain_later_bytes: f64,
    longest_gap_ns: u64,
    /// Parts of about a second, each from an arrival to an arrival.
    windows: Vec<Window>,
}

#[derive(Debug, Serialize)]
struct Window {
    seconds: f64,
    bytes: u64,
    error_percent: f64,
    /// As in the windows of `forward`.
    longest_gap_ns: u64,
    taken_ns: u64,
    switch_taken_ns: u64,
}

impl Report {
    pub fn table(&self) -> String {
        format!(
            "{:?}.max {} with frames of {}: {:.3} Mbit/s, error {:+.3} %\n\
             beyond rate and burst of {} bytes: {:.0} bytes seen, {:.0} certain; later {:.0}, {:.0}; a frame has {}\n\
             {} bytes in {:.3} s; longest gap {} us\n\
             seconds one by one, %: {}",
            self.limit,
            Rate::from_bits(self.set_bits_per_second).map_or_else(String::new, |rate| rate.to_string()),
            self.frame,
            self.bits_per_second / 1e6,
            self.error_percent,
            self.burst_bytes,
            self.over_seen_bytes,
            self.over_certain_bytes,
            self.over_seen_later_bytes,
            self.over_certain_later_bytes,
            self.wire_bytes,
            self.bytes,
            self.seconds,
            self.longest_gap_ns / 1000,
            self.windows
                .iter()
                .map(|window| format!("{:+.3}", window.error_percent))
                .collect::<Vec<_>>()
                .join(" "),
        )
    }
}

fn limit_of(args: &Args, from: &Vnic, to: &Vnic) -> Result<(Rate, Bytes), SceneError> {
    let (vnic, key, max) = match args.limit {
        Limit::Tx => (from, "tx.max", from.tx.max),
        Limit::Rx => (to, "rx.max", to.rx.max),
    };
    let rate = max.ok_or_else(|| SceneError::NoKey { name: vnic.name.clone(), key })?;
    let burst = match args.limit {
        Limit::Tx => from.tx.burst_or_default(rate),
        Limit::Rx => to.rx.burst_or_default(rate),
    };
    Ok((rate, burst))
}

pub fn run(scene: &Scene, args: &Args, watch: &Watch) -> Outcome<Report> {
    let (from, to) = (scene.vnic(&args.from)?, scene.vnic(&args.to)?);
    let (rate, burst) = limit_of(args, from, to)?;
    let merged = args.frame.contains(&Size::Super);
    if merged && args.frame.len() > 1 {
        return Err("`super` cannot be mixed with other frames: --frame super".into());
    }
    let buffer = args.frame.iter().map(|size| size.buffer()).max().unwrap_or_default();
    let longest = args.frame.iter().copied().max_by_key(|size| size.wire_bytes()).ok_or("--frame: none")?;
    let mut sender = Guest::connect(from, args.ring, longest, buffer)?;
    let receiver = Guest::connect(to, args.ring, longest, buffer)?;
    let size = |number: u16| args.frame[usize::from(number) % args.frame.len()];
    sender.load(|number| size(number).build(receiver.mac(), from.mac, 0));
    let mut load = Load { guests: vec![sender, receiver], senders: vec![0], receivers: vec![1] };
    // Each segment of a super-frame counts with its headers. Super-frames are never mixed with other
    // frames.
    let wire = |bytes: u64| bytes * longest.wire_bytes() / longest.bytes() as u64;
    let wire = |bytes: u64| if merged { wire(bytes) } else { bytes };
    let error =
        |bytes: u64, ns: u64| ((bytes * 8) as f64 / (ns as f64 / 1e9) / rate.bits() as f64 - 1.0) * 100.0;
    let mut whole = Envelope::new(rate.bits());
    load.start();
    let mut last = clock::now();
    let warm = last + args.warm_up.as_nanos() as u64;
    while last < warm {
        let (began, now, bytes) = turn(&mut load);
        if bytes > 0 {
            whole.observe(last, now, wire(bytes));
        }
        last = began;
    }
    let mut later = Envelope::new(rate.bits());
    let mut all = Arrivals::default();
    let mut windows = Vec::new();
    let parts = args.seconds.as_secs().max(1);
    let mut longest_gap = 0;
    for part in 1..=parts {
        let end = warm + args.seconds.as_nanos() as u64 * part / parts;
        let (before, counted, mut longest) = (watch.read()?, all, 0);
        while last < end {
            let (began, now, bytes) = turn(&mut load);
            longest = longest.max(now - last);
            if bytes > 0 {
                whole.observe(last, now, wire(bytes));
                later.observe(last, now, wire(bytes));
                all.arrived(now, wire(bytes));
            }
            last = began;
        }
        let taken = watch.read()?;
        longest_gap = longest_gap.max(longest);
        let (bytes, ns) = all.since(&counted);
        if bytes > 0 {
            windows.push(Window {
                seconds: ns as f64 / 1e9,
                bytes,
                error_percent: error(bytes, ns),
                longest_gap_ns: longest,
                taken_ns: taken.0 - before.0,
                switch_taken_ns: taken.1 - before.1,
            });
        }
    }
    let (bytes, nanoseconds) = all.since(&Arrivals::default());
    if bytes == 0 {
        return Err(format!("fewer than two arrivals in {:?}: measure for longer", args.seconds).into());
    }
    let received = load.received();
    if args.frame.len() == 1 && received.bytes != received.frames * longest.bytes() as u64 {
        return Err(format!(
            "{} frames came with {} bytes: the frames were truncated",
            received.frames, received.bytes
        )
        .into());
    }
    let seconds = nanoseconds as f64 / 1e9;
    let beyond = |bytes: f64| bytes - burst.get() as f64;
    let ((seen, certain), (seen_later, certain_later)) = (whole.excess(), later.excess());
    Ok(Report {
        limit: args.limit,
        frame: args.frame.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
        wire_bytes: longest.wire_bytes(),
        set_bits_per_second: rate.bits(),
        burst_bytes: burst.get(),
        bytes,
        seconds,
        bits_per_second: (bytes * 8) as f64 / seconds,
        error_percent: error(bytes, nanoseconds),
        over_seen_bytes: beyond(seen),
        over_certain_bytes: beyond(certain),
        over_seen_later_bytes: beyond(seen_later),
        over_certain_later_bytes: beyond(certain_later),
        longest_gap_ns: longest_gap,
        windows,
    })
}

/// As [`Load::turn`], with the bytes that arrived instead of the frames.
#[inline]
fn turn(load: &mut Load) -> (u64, u64, u64) {
    let before = load.received().bytes;
    let (began, looked, _) = load.poll_rings();
    (began, looked, load.received().bytes - before)
}

/// Bytes after the first arrival, and the times of the first and the last arrival (ns).
#[derive(Clone, Copy, Debug, Default)]
struct Arrivals {
    first: Option<u64>,
    last: u64,
    bytes: u64,
}

impl Arrivals {
    /// Counting begins after the bytes of the first arrival.
    fn arrived(&mut self, now: u64, bytes: u64) {
        if self.first.is_none() {
            self.first = Some(now);
        } else {
            self.bytes += bytes;
        }
        self.last = now;
    }

    /// Returns the bytes after the last arrival that `before` includes, and the time from that arrival to
    /// the last one (ns); (0, 0) without a new arrival.
    fn since(&self, before: &Self) -> (u64, u64) {
        let from = if before.first.is_some() { before.last } else { self.first.unwrap_or(self.last) };
        (self.bytes - before.bytes, self.last - from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_paced_sender_has_its_rate_wherever_the_windows_lie() {
        for start in [0, 1, 99, 100] {
            let mut arrivals = Arrivals::default();
            assert_eq!(arrivals.since(&arrivals), (0, 0));
            let (mut cut, mut parts) = (arrivals, Vec::new());
            // One byte every 100 ns, seen at 100, 200, ...
            for now in (1..=50).map(|n| n * 100).filter(|now| *now >= start) {
                arrivals.arrived(now, 1);
                if now % 700 == 0 {
                    parts.push(arrivals.since(&cut));
                    cut = arrivals;
                }
            }
            parts.push(arrivals.since(&cut));
            let whole = arrivals.since(&Arrivals::default());
            assert_eq!(whole, parts.iter().fold((0, 0), |sum, part| (sum.0 + part.0, sum.1 + part.1)));
            assert!(whole.0 > 40 && parts.iter().all(|(bytes, ns)| *ns == bytes * 100), "{parts:?}");
        }
    }
}
