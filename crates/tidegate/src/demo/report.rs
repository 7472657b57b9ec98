//! What the demo found, for people and as JSON.

use super::chart;
use super::contracts::{DEADLINE, Where};
use crate::format;
use crate::table::{Align, Table};
use serde::Serialize;
use tidegate_switch::stats::Histogram;

/// What one phase measured, over its window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measured {
    /// Voice frames sent.
    pub sent: u64,
    /// Of those, frames that came.
    pub received: u64,
    /// How late the host woke voice's sender, which is not part of the delay below: what
    /// any wake-up costs on this host, in this window, without a network.
    pub timer: Histogram,
    /// One-way delay of voice from application to application.
    pub delay: Histogram,
    /// The longest of it, ns, exactly.
    pub longest: u64,
    /// Tr - Ts of voice, as the switch counted it.
    pub switch_delay: Histogram,
    /// Misses the switch counted; it counts none without a deadline.
    pub counted_misses: Option<u64>,
    /// Bulk goodput, bit/s.
    pub bulk: u64,
}

/// The object that `--json` prints.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Under a plain FIFO.
    pub fifo: Figures,
    /// Under contract.
    pub edf: Figures,
    /// Who kept the contracts.
    pub place: Where,
    /// Whether the switch's worker and voice's threads ran under SCHED_FIFO, in both phases.
    pub realtime_priority: bool,
}

/// One phase's figures.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figures {
    /// One-way delay of voice from application to application.
    pub voice_delay_us: Quantiles,
    /// Tr - Ts of voice inside the switch, or as the kernel's place measures it.
    pub switch_delay_us: Quantiles,
    /// How late the host woke voice's sender by its timer: the same window, no network.
    pub host_wakeup_us: Quantiles,
    /// Voice frames that never came.
    pub voice_lost: u64,
    /// Voice frames that came after their deadline, or never.
    pub voice_misses: u64,
    /// Goodput of all bulk connections, Mbit/s.
    pub bulk_mbps: f64,
}

/// A distribution in microseconds, with one decimal.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Quantiles {
    /// Median.
    pub p50: f64,
    /// 99 % took no longer.
    pub p99: f64,
    /// 99.9 % took no longer.
    pub p999: f64,
    /// The longest.
    pub max: f64,
}

impl Quantiles {
    fn of(histogram: &Histogram, longest: u64) -> Self {
        let us = |ns: u64| (ns.min(longest) as f64 / 100.0).round() / 10.0;
        Self {
            p50: us(histogram.quantile(0.5)),
            p99: us(histogram.quantile(0.99)),
            p999: us(histogram.quantile(0.999)),
            max: us(longest),
        }
    }

    fn all(&self) -> [f64; 4] {
        [self.p50, self.p99, self.p999, self.max]
    }
}

impl Measured {
    /// The figures. Where the switch counted no misses (no deadline), those are the frames
    /// that took longer than [`DEADLINE`] from application to application, and the lost ones.
    pub fn figures(&self) -> Figures {
        let lost = self.sent.saturating_sub(self.received);
        Figures {
            voice_delay_us: Quantiles::of(&self.delay, self.longest),
            switch_delay_us: Quantiles::of(&self.switch_delay, self.switch_delay.max()),
            host_wakeup_us: Quantiles::of(&self.timer, self.timer.max()),
            voice_lost: lost,
            voice_misses: self.counted_misses.unwrap_or_else(|| self.delay.above(DEADLINE) + lost),
            bulk_mbps: (self.bulk as f64 / 1e5).round() / 10.0,
        }
    }
}

/// The table, the histogram and the sentence that sums them up.
pub fn text(fifo: &Measured, contract: &Measured, place: Where, realtime: bool) -> String {
    let both = [fifo.figures(), contract.figures()];
    let mut table = Table::new(&[("", Align::Left), ("FIFO", Align::Right), ("contracts", Align::Right)]);
    let us = |us: f64| format::duration((us * 1000.0) as u64);
    let mut delays = |title: &str, of: [Quantiles; 2]| {
        table.row([title]);
        for (i, name) in ["  p50", "  p99", "  p99.9", "  max"].into_iter().enumerate() {
            table.row([name.to_owned(), us(of[0].all()[i]), us(of[1].all()[i])]);
        }
    };
    delays("voice, application to application", both.each_ref().map(|f| f.voice_delay_us));
    let inside = match place {
        Where::Switch => "voice, inside the switch (Tr - Ts)",
        Where::Kernel => "voice, as the kernel's place measures",
    };
    delays(inside, both.each_ref().map(|f| f.switch_delay_us));
    delays("a timer on this host, for scale", both.each_ref().map(|f| f.host_wakeup_us));
    let mut row = |name: &str, cell: &dyn Fn(&Figures) -> String| {
        table.row([name.to_owned(), cell(&both[0]), cell(&both[1])]);
    };
    row("voice frames lost", &|f| format::count(f.voice_lost));
    row("voice deadline misses (1 ms)", &|f| format::count(f.voice_misses));
    row("bulk goodput", &|f| format::rate(f.bulk_mbps * 1e6));

    let chart = chart::render(["FIFO", "contracts"], [&fifo.delay, &contract.delay]);
    format!(
        "{}\nvoice, application to application\n{chart}\n{}\n{}\n",
        table.render(),
        summary(&both),
        priority(place, realtime)
    )
}

fn priority(place: Where, realtime: bool) -> &'static str {
    match (place, realtime) {
        (Where::Switch, true) => {
            "The switch's worker and voice's own threads ran under SCHED_FIFO, in both phases."
        }
        (Where::Kernel, true) => "Voice's own threads ran under SCHED_FIFO, in both phases.",
        (_, false) => {
            "Nothing ran under real-time priority: what the CPUs were busy with is in the figures. To have it, run as \
         root, or allow it (rtprio in limits.conf(5))."
        }
    }
}

fn summary(both: &[Figures; 2]) -> String {
    let [fifo, contract] = both;
    let (slow, fast) = (fifo.voice_delay_us.p999, contract.voice_delay_us.p999);
    let bulk = contract.bulk_mbps / fifo.bulk_mbps.max(f64::MIN_POSITIVE);
    if fast >= slow {
        return "Contracts did not shorten voice's p99.9 in this run.".into();
    }
    format!(
        "Under contract 99.9 % of voice frames arrive within {}, {:.0} times sooner than through the FIFO; \
         bulk keeps {} of its goodput.",
        format::duration((fast * 1000.0) as u64),
        slow / fast.max(0.1),
        format::percent(bulk)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::order::histogram;

    fn measured(delay: u64, misses: Option<u64>) -> Measured {
        Measured {
            sent: 6_000,
            received: 5_998,
            delay: histogram(&[(delay, 5_998)]),
            longest: delay,
            switch_delay: histogram(&[(delay / 2, 5_998)]),
            timer: histogram(&[(5_000, 6_000)]),
            counted_misses: misses,
            bulk: 941_230_000,
        }
    }

    #[test]
    fn json_is_one_object_of_two_phases() {
        let report = Report {
            fifo: measured(12_000_000, None).figures(),
            edf: measured(50_000, Some(0)).figures(),
            place: Where::Switch,
            realtime_priority: true,
        };
        let expected = serde_json::json!({
            "fifo": {
                "voice_delay_us": {"p50": 12000.0, "p99": 12000.0, "p999": 12000.0, "max": 12000.0},
                "switch_delay_us": {"p50": 6000.0, "p99": 6000.0, "p999": 6000.0, "max": 6000.0},
                "host_wakeup_us": {"p50": 5.0, "p99": 5.0, "p999": 5.0, "max": 5.0},
                "voice_lost": 2, "voice_misses": 6000, "bulk_mbps": 941.2
            },
            "edf": {
                "voice_delay_us": {"p50": 50.0, "p99": 50.0, "p999": 50.0, "max": 50.0},
                "switch_delay_us": {"p50": 25.0, "p99": 25.0, "p999": 25.0, "max": 25.0},
                "host_wakeup_us": {"p50": 5.0, "p99": 5.0, "p999": 5.0, "max": 5.0},
                "voice_lost": 2, "voice_misses": 0, "bulk_mbps": 941.2
            },
            "place": "switch",
            "realtime_priority": true
        });
        assert_eq!(serde_json::to_value(report).unwrap(), expected);
    }

    #[test]
    fn the_table_stands_side_by_side() {
        let text = text(&measured(12_000_000, None), &measured(50_000, Some(0)), Where::Switch, false);
        let expected = "\
                                          FIFO   contracts
voice, application to application
  p50                                  12.0 ms     50.0 us
  p99                                  12.0 ms     50.0 us
  p99.9                                12.0 ms     50.0 us
  max                                  12.0 ms     50.0 us
voice, inside the switch (Tr - Ts)
  p50                                  6.00 ms     25.0 us
  p99                                  6.00 ms     25.0 us
  p99.9                                6.00 ms     25.0 us
  max                                  6.00 ms     25.0 us
a timer on this host, for scale
  p50                                  5.00 us     5.00 us
  p99                                  5.00 us     5.00 us
  p99.9                                5.00 us     5.00 us
  max                                  5.00 us     5.00 us
voice frames lost                            2           2
voice deadline misses (1 ms)             6,000           0
bulk goodput                        941 Mbit/s  941 Mbit/s

voice, application to application
";
        assert!(text.trim_start().starts_with(expected), "{text}");
        assert!(
            text.contains(
                "within 50.0 us, 240 times sooner than through the FIFO; bulk keeps 100 % of its goodput.\n"
            ),
            "{text}"
        );
    }

    #[test]
    fn a_run_that_proves_nothing_says_so() {
        let text = text(&measured(50_000, None), &measured(50_000, Some(0)), Where::Switch, false);
        assert!(text.contains("did not shorten voice's p99.9 in this run.\n"), "{text}");
    }
}
