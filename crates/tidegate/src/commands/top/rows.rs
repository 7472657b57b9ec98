//! The rows of `top`, from two looks at the counters.

use crate::commands::frame_times::FrameTimes;
use crate::commands::show;
use crate::format::{count, duration, percent, rate};
use crate::table::{Align, Table};
use serde::Serialize;
use std::collections::HashMap;
use std::time::Duration;
use tidegate_agent::views::VnicView;
use tidegate_evidence::Quantity;
use tidegate_evidence::{Delay, VnicStats, Work, total};

const BAR: usize = 8;

/// One vNIC over the interval between two looks, or over the window that was asked for. Rates in bit/s,
/// delays in ns.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    pub name: String,
    /// Length of the window (ns); absent if none was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_ns: Option<u64>,
    /// Connection, or what is wrong.
    pub state: String,
    /// Rate sent over the last second, or over the window; absent if not counted.
    pub tx_rate: Option<f64>,
    /// The lower of `tx.max` and the guest's own limit.
    pub tx_max: Option<u64>,
    /// Whether `tx_max` is the guest's own limit.
    pub tx_soft: bool,
    /// Rate received over the last second, or over the window; absent if not counted.
    pub rx_rate: Option<f64>,
    pub rx_max: Option<u64>,
    /// p99 of the wait of sent frames for the vNIC's own limit; absent without a limit or without frames.
    pub tx_wait_p99: Option<u64>,
    pub tx_wait_p999: Option<u64>,
    /// p99 of the wait of received frames for the vNIC's own limit; absent without a limit or without
    /// frames.
    pub rx_wait_p99: Option<u64>,
    pub rx_wait_p999: Option<u64>,
    /// p99 of the delay of sent frames; absent if none was delivered.
    pub delay_p99: Option<u64>,
    pub delay_p999: Option<u64>,
    /// Longest delay (at most 3.1 % too high).
    pub delay_max: Option<u64>,
    pub deadline: Option<u64>,
    /// Why the deadline is not promised right now; absent if it is promised.
    pub deadline_suspended: Option<String>,
    /// Deadlines missed in all; absent if not counted.
    pub misses: Option<u64>,
    /// Deadlines missed in the interval; absent if not counted.
    pub new_misses: Option<u64>,
    /// Frames dropped in the interval, in both directions; absent if neither is counted.
    pub dropped: Option<u64>,
    /// Share of the interval in which frames waited for tokens, 0 to 1; absent if not counted.
    pub throttled: Option<f64>,
    /// Share of its worker's time charged to the vNIC, 0 to 1; absent without a worker.
    pub worker: Option<f64>,
    /// Worker time per frame, by stage; absent without a worker.
    pub frame_ns: Option<FrameTimes>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    Name,
    Tx,
    Rx,
    Delay,
    Misses,
    Throttled,
    Worker,
}

impl Order {
    pub fn of_key(key: char) -> Option<Self> {
        Some(match key {
            'n' => Self::Name,
            't' => Self::Tx,
            'r' => Self::Rx,
            'd' => Self::Delay,
            'm' => Self::Misses,
            'w' => Self::Throttled,
            'c' => Self::Worker,
            _ => return None,
        })
    }
}

/// Computes the rows of all vNICs in `now`; a new vNIC counts from zero.
pub fn rows(then: &[VnicView], now: &[VnicView], interval: Duration) -> Vec<Row> {
    let before: HashMap<&str, &VnicView> = then.iter().map(|v| (v.name.as_str(), v)).collect();
    now.iter().map(|view| row(before.get(view.name.as_str()).copied(), view, interval)).collect()
}

fn row(then: Option<&VnicView>, now: &VnicView, interval: Duration) -> Row {
    // A port that was made anew has lower counters than before: it counts from zero.
    let none = VnicStats::default();
    let stats = now.stats.as_ref().unwrap_or(&none);
    let is_window = now.window.is_some();
    let before = then
        .and_then(|v| v.stats.as_ref())
        .filter(|s| !is_window && s.delay.count <= stats.delay.count)
        .unwrap_or(&none);
    let interval = now.window.map_or(interval, |window| Duration::from_nanos(window.covers_ns));
    let seconds = interval.as_secs_f64().max(1e-9);
    let grown = |now: u64, then: u64| now.saturating_sub(then);
    let [misses, earlier] = [stats, before].map(|s| total(s.misses.values().copied()));
    let drops = |s: &VnicStats| total(s.tx.dropped.values().chain(s.rx.dropped.values()).copied());
    let delay = delay_difference(&before.delay, &stats.delay);
    let delivered = delay.count() > 0;
    let wait = |of: fn(&VnicStats) -> &Option<Delay>, q: f64| {
        let waits = delay_difference(of(before).as_ref().unwrap_or(&none.delay), of(stats).as_ref()?);
        (waits.count() > 0).then(|| waits.quantile(q))
    };
    let (tx_wait, rx_wait) = (|q| wait(|s| &s.tokens_tx, q), |q| wait(|s| &s.tokens_rx, q));
    let rate = |last_second: Option<u64>, bytes: u64| match is_window {
        true => last_second.map(|_| bytes as f64 * 8.0 / seconds),
        false => last_second.map(|bits| bits as f64),
    };
    let counts = |what: Quantity| now.stats.is_some() && !now.unknown.contains_key(&what);
    let counts_drops = counts(Quantity::Drops) && (counts(Quantity::Tx) || counts(Quantity::Rx));
    let throttled = (grown(stats.throttled_ns, before.throttled_ns) as f64 / 1e9 / seconds).min(1.0);
    let worked = |s: &VnicStats| s.work.as_ref().map_or(0, Work::total_ns);
    let worker = (grown(worked(stats), worked(before)) as f64 / 1e9 / seconds).min(1.0);
    let contract = now.contract.as_ref();
    Row {
        name: now.name.clone(),
        window_ns: now.window.map(|window| window.covers_ns),
        state: show::condition(now),
        tx_rate: rate(now.tx_rate_bps, stats.tx.wire_bytes),
        tx_max: show::soft(now).or(show::tx_max(now)).map(|r| r.bits()),
        tx_soft: show::soft(now).is_some(),
        rx_rate: rate(now.rx_rate_bps, stats.rx.wire_bytes),
        rx_max: contract.and_then(|c| c.rx.max).map(|r| r.bits()),
        tx_wait_p99: tx_wait(0.99),
        tx_wait_p999: tx_wait(0.999),
        rx_wait_p99: rx_wait(0.99),
        rx_wait_p999: rx_wait(0.999),
        delay_p999: delivered.then(|| delay.quantile(0.999)),
        delay_p99: delivered.then(|| delay.quantile(0.99)),
        delay_max: delivered.then(|| delay.max()),
        deadline: show::deadline(now).map(|d| d.get()),
        deadline_suspended: now.deadline_suspended.clone(),
        misses: counts(Quantity::Deadline).then_some(misses),
        new_misses: counts(Quantity::Deadline).then(|| grown(misses, earlier)),
        dropped: counts_drops.then(|| grown(drops(stats), drops(before))),
        throttled: counts(Quantity::Throttled).then_some(throttled),
        worker: stats.work.as_ref().map(|_| worker),
        frame_ns: FrameTimes::between(before, stats),
    }
}

/// Returns the delays recorded between two looks. The work is per bucket, not per frame.
fn delay_difference(then: &Delay, now: &Delay) -> DelayDifference {
    let before: HashMap<u64, u64> = then.buckets.iter().copied().collect();
    DelayDifference(
        now.buckets
            .iter()
            .map(|(end, n)| (*end, n.saturating_sub(before.get(end).copied().unwrap_or(0))))
            .filter(|(_, n)| *n > 0)
            .collect(),
    )
}

/// Buckets (largest value, frames), ascending, without empty ones.
struct DelayDifference(Vec<(u64, u64)>);

impl DelayDifference {
    fn count(&self) -> u64 {
        total(self.0.iter().map(|(_, n)| *n))
    }

    fn max(&self) -> u64 {
        self.0.last().map_or(0, |(end, _)| *end)
    }

    /// Returns the same as `tidegate_evidence::Histogram::quantile`.
    fn quantile(&self, q: f64) -> u64 {
        let rank = ((self.count() as f64 * q).ceil() as u64).max(1);
        let mut seen = 0;
        self.0
            .iter()
            .find(|(_, n)| {
                seen = n.saturating_add(seen);
                seen >= rank
            })
            .map_or(0, |(end, _)| *end)
    }
}

pub fn sort(rows: &mut [Row], order: Order) {
    let key = |row: &Row| match order {
        Order::Name => 0.0,
        Order::Tx => row.tx_rate.unwrap_or(0.0),
        Order::Rx => row.rx_rate.unwrap_or(0.0),
        Order::Delay => row.delay_p99.unwrap_or(0) as f64,
        Order::Misses => row.misses.unwrap_or(0) as f64,
        Order::Throttled => row.throttled.unwrap_or(0.0),
        Order::Worker => row.worker.unwrap_or(0.0),
    };
    rows.sort_by(|a, b| key(b).total_cmp(&key(a)).then_with(|| a.name.cmp(&b.name)));
}

pub const COLUMNS: [(&str, Align); 17] = [
    ("vnic", Align::Left),
    ("state", Align::Left),
    ("tx", Align::Right),
    ("of", Align::Right),
    ("", Align::Left),
    ("rx", Align::Right),
    ("of", Align::Right),
    ("", Align::Left),
    ("tx wait", Align::Right),
    ("rx wait", Align::Right),
    ("delay p99", Align::Right),
    ("p99.9", Align::Right),
    ("max", Align::Right),
    ("deadline", Align::Right),
    ("missed", Align::Right),
    ("throttled", Align::Right),
    ("worker", Align::Right),
];

/// Indices into [`COLUMNS`] in the order in which columns are hidden: bars, then values of the contract,
/// then measured values.
const DISPENSABLE: [usize; 16] = [7, 4, 6, 12, 11, 3, 9, 16, 15, 13, 1, 5, 8, 10, 14, 2];

/// Returns the columns that fit into `room`, with one blank between two. The first column is always among
/// them.
pub fn fitting(widths: &[usize; 17], room: usize) -> Vec<usize> {
    let mut shown: Vec<usize> = (0..COLUMNS.len()).collect();
    for column in DISPENSABLE {
        let needed = shown.iter().map(|c| widths[*c]).sum::<usize>() + shown.len() - 1;
        if needed <= room {
            break;
        }
        shown.retain(|c| *c != column);
    }
    shown
}

/// Returns a row's cells, in the order of [`COLUMNS`].
pub fn cells(row: &Row) -> [String; 17] {
    let limit = |max: Option<u64>| max.map_or_else(|| "-".into(), |bits| rate(bits as f64));
    let time = |ns: Option<u64>| ns.map_or_else(|| "-".into(), duration);
    let promised = row.deadline.filter(|_| row.deadline_suspended.is_none());
    let deadline = match (row.deadline, promised) {
        (Some(_), None) => "not promised".into(),
        (_, promised) => time(promised),
    };
    let missed = match (promised, row.misses, row.new_misses.unwrap_or(0)) {
        (None, ..) | (_, None, _) => "-".into(),
        (Some(_), Some(misses), 0) => count(misses),
        // With a window, all misses are new.
        (Some(_), Some(misses), _) if row.window_ns.is_some() => count(misses),
        (Some(_), Some(misses), new) => format!("{} +{}", count(misses), count(new)),
    };
    let of = |bits: Option<f64>| bits.map_or_else(|| "-".into(), rate);
    [
        row.name.clone(),
        row.state.clone(),
        of(row.tx_rate),
        limit(row.tx_max) + if row.tx_soft { " (guest)" } else { "" },
        bar(row.tx_rate, row.tx_max),
        of(row.rx_rate),
        limit(row.rx_max),
        bar(row.rx_rate, row.rx_max),
        time(row.tx_wait_p99),
        time(row.rx_wait_p99),
        time(row.delay_p99),
        time(row.delay_p999),
        time(row.delay_max),
        deadline,
        missed,
        row.throttled.map_or_else(|| "-".into(), percent),
        row.worker.map_or_else(|| "-".into(), percent),
    ]
}

/// Draws the used share of `max`; empty without a limit or a known rate.
fn bar(rate: Option<f64>, max: Option<u64>) -> String {
    let (Some(rate), Some(max)) = (rate, max) else { return String::new() };
    let full = (rate / max as f64 * BAR as f64).round().clamp(0.0, BAR as f64) as usize;
    "█".repeat(full) + &"░".repeat(BAR - full)
}

pub fn table(rows: &[Row]) -> String {
    let mut table = Table::new(&COLUMNS);
    rows.iter().for_each(|row| table.row(cells(row)));
    table.render()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::samples;

    fn second() -> (VnicView, VnicView) {
        let (then, mut now) = (samples::voice(), samples::voice());
        let stats = now.stats.as_mut().unwrap();
        stats.throttled_ns += 250_000_000;
        stats.misses.insert("queue".into(), 5);
        stats.tx.frames += 1_000;
        let work = stats.work.as_mut().unwrap();
        work.take_ns += 60_000;
        work.deliver_ns += 40_000;
        work.delivered += 100;
        stats.delay.count += 1_000;
        stats.delay.buckets = vec![(42_000, 12_988), (60_000, 10), (1_120_000, 1)];
        (then, now)
    }

    #[test]
    fn a_row_is_about_the_interval() {
        let (then, now) = second();
        let row = &rows(&[then], &[now], Duration::from_secs(1))[0];
        assert_eq!((row.delay_p99, row.delay_max), (Some(42_000), Some(60_000)));
        assert_eq!((row.misses, row.new_misses, row.dropped), (Some(6), Some(3), Some(0)));
        assert_eq!(row.throttled, Some(0.25));
        assert_eq!(row.worker, Some(0.0001));
        let times = FrameTimes { take: Some(60.0), deliver: Some(400.0), buffers: None };
        assert_eq!(row.frame_ns, Some(times));
    }

    #[test]
    fn a_window_is_shown_as_it_is() {
        let view = samples::waiting();
        // 26 MB in 10.4 s.
        let view = VnicView { tx_rate_bps: Some(1), rx_rate_bps: None, ..view };
        let row = &rows(&[], std::slice::from_ref(&view), Duration::from_secs(1))[0];
        assert_eq!((row.tx_rate, row.rx_rate), (Some(2e7), None));
        assert_eq!(
            (row.tx_wait_p99, row.tx_wait_p999, row.rx_wait_p99),
            (Some(1_051_000_000), Some(1_051_000_000), None)
        );
        assert_eq!((row.delay_p99, row.delay_p999), (Some(541_000), Some(541_000)));
        assert_eq!((row.dropped, row.throttled.map(|share| share > 0.9)), (Some(4), Some(true)));
        assert_eq!((cells(row)[8].as_str(), cells(row)[9].as_str()), ("1.05 s", "-"));
    }

    #[test]
    fn a_port_made_anew_counts_from_zero() {
        let (then, now) = second();
        let row = &rows(&[now], &[then], Duration::from_secs(1))[0];
        assert_eq!((row.misses, row.new_misses), (Some(3), Some(3)));
        assert_eq!(row.delay_max, Some(1_120_000));
    }

    #[test]
    fn the_table_without_a_terminal() {
        let (then, now) = second();
        let mut rows = rows(&[then], &[now, samples::idle()], Duration::from_secs(1));
        sort(&mut rows, Order::Name);
        let expected = "\
vnic   state             tx           of                 rx  of    tx wait  rx wait  delay p99    p99.9      max  deadline  missed  throttled  worker
idle   waiting            -            -                  -   -          -        -          -        -        -         -       -          -       -
voice  up       1.60 Mbit/s  4.00 Mbit/s  ███░░░░░  0 bit/s   -          -        -    42.0 us  60.0 us  60.0 us   1.00 ms    6 +3       25 %   0.0 %
";
        assert_eq!(table(&rows), expected);
        sort(&mut rows, Order::Misses);
        let lowered = &super::rows(&[], &[samples::lowered()], Duration::from_secs(1))[0];
        assert_eq!(cells(lowered)[3], "3.00 Mbit/s (guest)");
        assert_eq!(rows[0].name, "voice");
    }

    #[test]
    fn uncounted_and_unpromised_values_have_no_figure() {
        let unknown = samples::unknown();
        let row = &rows(&[], &[unknown], Duration::from_secs(1))[0];
        assert_eq!((row.tx_rate, row.rx_rate, row.throttled), (Some(5e6), None, None));
        let cells_of_it = cells(row);
        assert_eq!(
            (cells_of_it[2].as_str(), cells_of_it[5].as_str(), cells_of_it[15].as_str()),
            ("5.00 Mbit/s", "-", "-")
        );
        let row = &rows(&[], &[samples::suspended()], Duration::from_secs(1))[0];
        let cells = cells(row);
        assert_eq!((cells[13].as_str(), cells[14].as_str()), ("not promised", "-"));
        assert!(row.deadline_suspended.is_some());
    }

    #[test]
    fn columns_go_whole_the_dispensable_first() {
        let widths = [5, 5, 11, 11, 8, 11, 11, 8, 7, 7, 9, 8, 8, 8, 7, 9, 6];
        let fit = |room| fitting(&widths, room);
        assert_eq!(fit(155), (0..17).collect::<Vec<_>>());
        assert_eq!(fit(154), [0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13, 14, 15, 16]);
        assert_eq!(fit(80), [0, 1, 2, 5, 8, 10, 13, 14, 15]);
        assert_eq!(fit(0), [0]);
        for room in 5..155 {
            let shown = fit(room);
            assert!(shown.iter().map(|c| widths[*c] + 1).sum::<usize>() <= room + 1, "{room}: {shown:?}");
        }
    }

    #[test]
    fn bars_stay_within_their_width() {
        assert_eq!(bar(Some(2e9), Some(1_000_000_000)), "████████");
        assert_eq!(bar(Some(0.0), Some(1)), "░░░░░░░░");
        assert_eq!(bar(Some(5.0), None), "");
        assert_eq!(bar(None, Some(1)), "");
    }
}
