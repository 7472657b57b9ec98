//! The rows of the demo's table, for one run or several.

use super::contracts::Where;
use super::figures::{Figures, Quantiles, Report};
use crate::format;

/// Which of two values is worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Worse {
    More,
    Less,
}

/// Returns a row's value in a phase, if there is one.
pub type Value = Box<dyn Fn(&Figures) -> Option<f64>>;

pub struct Row {
    pub title: &'static str,
    pub value: Value,
    pub show: fn(f64) -> String,
    pub worse: Worse,
}

/// Rows under one title.
pub struct Section {
    pub title: &'static str,
    pub rows: Vec<Row>,
}

pub fn sections(place: Where) -> Vec<Section> {
    let mut inside = delays(|f| f.switch_delay_us);
    inside.extend([
        row("  p99.9, lower bound", us, |f| f.switch_delay_least_us.map(|q| q.p999)),
        row("  misses (1 ms)", count, |f| Some(f.voice_misses as f64)),
        row("    of those unexplained", count, |f| f.misses_blame.map(|b| b.unexplained as f64)),
        row("  possible misses", count, |f| f.voice_misses_possible.map(|n| n as f64)),
        row("  possible by the worker's sleep", count, |f| f.voice_misses_asleep.map(|n| n as f64)),
    ]);
    let mut outside = delays(|f| f.voice_delay_us);
    outside.extend([
        row("  later than 1 ms", count, |f| Some(f.voice_late as f64)),
        row("    of those unexplained", count, |f| f.late_blame.map(|b| b.unexplained as f64)),
        row("  lost", count, |f| Some(f.voice_lost as f64)),
    ]);
    let mut rest = vec![Row { worse: Worse::Less, ..row("bulk goodput", rate, |f| Some(f.bulk_mbps)) }];
    let (title, rest) = match place {
        Where::Switch => {
            rest.insert(0, row("CPU of the switch's worker", share, |f| f.worker_cpu));
            ("voice, inside the switch (Tr - Ts)", rest)
        }
        Where::Kernel => ("voice, as the kernel's place measures", rest),
    };
    vec![
        Section { title, rows: inside },
        Section { title: "voice, application to application", rows: outside },
        Section { title: "a bare timer, same window and CPU", rows: delays(|f| f.timer_us) },
        Section { title: "", rows: rest },
    ]
}

fn row(title: &'static str, show: fn(f64) -> String, value: fn(&Figures) -> Option<f64>) -> Row {
    Row { title, value: Box::new(value), show, worse: Worse::More }
}

fn delays(of: fn(&Figures) -> Quantiles) -> Vec<Row> {
    let quantile = |(index, title)| {
        let value: Value = Box::new(move |figures| Some(of(figures).all()[index]));
        Row { value, ..row(title, us, |_| None) }
    };
    ["  p50", "  p99", "  p99.9", "  worst"].into_iter().enumerate().map(quantile).collect()
}

/// A ratio by which a run is judged.
#[derive(Clone, Copy)]
pub struct Ratio {
    pub value: fn(&Report) -> f64,
    pub worse: Worse,
}

/// p99.9 inside: FIFO to contract.
pub const BELOW_FIFO: Ratio =
    Ratio { value: |r| times(r.fifo.switch_delay_us.p999, r.edf.switch_delay_us.p999), worse: Worse::Less };
/// p99.9 between the applications: FIFO to contract.
pub const BELOW_FIFO_OUTSIDE: Ratio =
    Ratio { value: |r| times(r.fifo.voice_delay_us.p999, r.edf.voice_delay_us.p999), worse: Worse::Less };
/// p99.9 between the applications under contract, to that of the bare timer.
pub const OF_TIMER: Ratio =
    Ratio { value: |r| times(r.edf.voice_delay_us.p999, r.edf.timer_us.p999), worse: Worse::More };
/// Goodput under contract, to that under the FIFO.
pub const OF_BULK: Ratio =
    Ratio { value: |r| r.edf.bulk_mbps / r.fifo.bulk_mbps.max(f64::MIN_POSITIVE), worse: Worse::Less };

/// Returns the median and the worst value; of an even number of values, the worse of the middle two. `None`
/// without values.
pub fn spread(values: impl IntoIterator<Item = f64>, worse: Worse) -> Option<(f64, f64)> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    if worse == Worse::Less {
        values.reverse();
    }
    Some((*values.get(values.len() / 2)?, *values.last()?))
}

pub fn us(us: f64) -> String {
    format::duration((us * 1000.0) as u64)
}

fn times(over: f64, under: f64) -> f64 {
    over / under.max(0.1)
}

fn count(n: f64) -> String {
    format::count(n as u64)
}

fn rate(mbps: f64) -> String {
    format::rate(mbps * 1e6)
}

fn share(share: f64) -> String {
    format::percent(share)
}
