//! Guests that send and receive as fast as the switch permits, and their counts per window.

use crate::clock::{self, StolenTime};
use crate::guest::{Guest, Received, RingPolls};
use serde::Serialize;
use std::io;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    pub warm_up: Duration,
    pub windows: usize,
    pub window: Duration,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub struct Window {
    /// Begin (CLOCK_MONOTONIC, ns), to compare with other logs.
    pub start_ns: u64,
    pub seconds: f64,
    pub frames: u64,
    /// Bytes received, in memory, without virtio_net_hdr.
    pub bytes: u64,
    /// Time for which the generator was ready but did not run (schedstat).
    pub taken_ns: u64,
    /// Time for which the switch's workers were ready but did not run; 0 if the switch's process is
    /// unknown.
    pub switch_taken_ns: u64,
    /// Longest time between two looks at the rings.
    pub longest_gap_ns: u64,
    /// Share of looks at a transmit ring that found more than three quarters of it empty: near 1, the
    /// switch may have waited for the generator.
    pub starved: f64,
}

/// CPU time of the generator and of the switch.
#[derive(Debug)]
pub struct Watch {
    generator: StolenTime,
    switch: StolenTime,
}

impl Watch {
    /// Watches this thread, and the workers of the switch with process id `switch`.
    ///
    /// # Errors
    /// The process does not exist, or has no worker.
    pub fn new(switch: Option<u32>) -> io::Result<Self> {
        let switch = switch.map_or_else(|| Ok(StolenTime::none()), |pid| StolenTime::of(pid, "worker"))?;
        Ok(Self { generator: StolenTime::here()?, switch })
    }

    /// Returns the CPU time that others took so far from the generator and from the switch (ns).
    ///
    /// # Errors
    /// The switch ended.
    pub fn read(&self) -> io::Result<(u64, u64)> {
        Ok((self.generator.read()?, self.switch.read()?))
    }

    /// Returns for how long the switch's workers ran so far (ns).
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn switch_ran(&self) -> io::Result<u64> {
        self.switch.ran()
    }
}

/// A time in which every guest's behaviour is constant.
#[derive(Clone, Copy, Debug)]
pub struct Phase {
    /// Its end (CLOCK_MONOTONIC, ns).
    pub until: u64,
    /// A receiver that takes nothing and gives no buffers.
    pub stalled: Option<usize>,
}

#[derive(Clone, Debug)]
pub struct Counts {
    /// The time (CLOCK_MONOTONIC, ns).
    pub at: u64,
    pub guests: Vec<Count>,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Count {
    /// Frames that the switch gave back: sent or dropped.
    pub sent: u64,
    pub received: u64,
    pub refills: RingPolls,
    pub drains: RingPolls,
}

pub struct Load {
    pub guests: Vec<Guest>,
    pub senders: Vec<usize>,
    pub receivers: Vec<usize>,
}

impl Load {
    pub fn start(&mut self) {
        for &sender in &self.senders {
            self.guests[sender].start();
        }
    }

    /// Runs from phase to phase. Returns each guest's counts at the begin of the first phase, and at the
    /// end of each.
    pub fn phases(&mut self, phases: &[Phase]) -> Vec<Counts> {
        let mut counts = vec![self.counts(clock::now())];
        for Phase { until, stalled } in phases {
            let mut now = 0;
            while now < *until {
                self.senders.iter().for_each(|sender| self.guests[*sender].refill());
                for receiver in self.receivers.iter().filter(|receiver| Some(**receiver) != *stalled) {
                    self.guests[*receiver].drain();
                }
                now = clock::now();
            }
            counts.push(self.counts(now));
        }
        counts
    }

    fn counts(&self, at: u64) -> Counts {
        let count = |guest: &Guest| Count {
            sent: guest.sent,
            received: guest.received.frames,
            refills: guest.refills,
            drains: guest.drains,
        };
        Counts { at, guests: self.guests.iter().map(count).collect() }
    }

    /// Looks at every ring once. Returns when it began with the receivers, when it had finished, and the
    /// number of frames received. Each frame arrived after the previous turn began with the receivers, and
    /// before this turn finished.
    #[inline]
    pub fn poll_rings(&mut self) -> (u64, u64, u64) {
        for &sender in &self.senders {
            self.guests[sender].refill();
        }
        let began = clock::now();
        let mut frames = 0;
        for &receiver in &self.receivers {
            frames += self.guests[receiver].drain();
        }
        let polled_at = if frames > 0 { clock::now() } else { began };
        (began, polled_at, frames)
    }

    pub fn run(&mut self, time: Duration) {
        let end = clock::now() + time.as_nanos() as u64;
        while self.poll_rings().0 < end {}
    }

    /// Receives frames under way, without sending, until no guest received a frame for `quiet`.
    pub fn settle(&mut self, quiet: Duration) {
        let mut last = clock::now();
        loop {
            let frames: u64 = self.guests.iter_mut().map(Guest::drain).sum();
            let now = clock::now();
            if frames > 0 {
                last = now;
            } else if now - last > quiet.as_nanos() as u64 {
                return;
            }
        }
    }

    /// Returns all frames and bytes received so far.
    pub fn received(&self) -> Received {
        self.receivers.iter().fold(Received::default(), |sum, &receiver| {
            let got = self.guests[receiver].received;
            Received { frames: sum.frames + got.frames, bytes: sum.bytes + got.bytes }
        })
    }

    /// Runs and counts, window by window.
    ///
    /// # Errors
    /// The switch ended.
    pub fn measure(&mut self, plan: Plan, watch: &Watch) -> io::Result<Vec<Window>> {
        self.run(plan.warm_up);
        (0..plan.windows).map(|_| self.window(plan.window, watch)).collect()
    }

    /// Runs and counts for one window.
    ///
    /// # Errors
    /// As [`measure`](Self::measure).
    pub fn window(&mut self, length: Duration, watch: &Watch) -> io::Result<Window> {
        let (before, counts_before, taken_before) = (self.received(), self.refill_counts(), watch.read()?);
        let start = clock::now();
        let end = start + length.as_nanos() as u64;
        let (mut last, mut longest) = (start, 0);
        while last < end {
            let (now, ..) = self.poll_rings();
            longest = longest.max(now - last);
            last = now;
        }
        let (after, counts_after) = (self.received(), self.refill_counts());
        let taken = watch.read()?;
        let refills = counts_after.0 - counts_before.0;
        Ok(Window {
            start_ns: start,
            // Includes the time of the last turn, which received frames.
            seconds: (clock::now() - start) as f64 / 1e9,
            frames: after.frames - before.frames,
            bytes: after.bytes - before.bytes,
            taken_ns: taken.0 - taken_before.0,
            switch_taken_ns: taken.1 - taken_before.1,
            longest_gap_ns: longest,
            starved: (counts_after.1 - counts_before.1) as f64 / refills.max(1) as f64,
        })
    }

    fn refill_counts(&self) -> (u64, u64) {
        self.senders.iter().fold((0, 0), |(refills, starved), &sender| {
            let polls = self.guests[sender].refills;
            (refills + polls.count, starved + polls.late)
        })
    }
}

/// Returns the median; 0 without values.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        n if n % 2 == 1 => values[n / 2],
        n => f64::midpoint(values[n / 2 - 1], values[n / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median([]), 0.0);
        assert_eq!(median([3.0, 1.0, 9.0]), 3.0);
        assert_eq!(median([3.0, 1.0, 9.0, 4.0]), 3.5);
    }
}
