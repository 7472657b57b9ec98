//! The results of the demo for people: the table, the histogram and a verdict.

use super::chart;
use super::contracts::Where;
use super::figures::{Measured, Report};
use super::rows::{self, Ratio, Worse, spread, us};
use crate::format;
use crate::table::{Align, Table};

const MISSES: usize = 5;

pub fn text(fifo: &Measured, contract: &Measured, run: &Report) -> String {
    let (heading, both) = match run.place {
        Where::Switch => ("voice, inside the switch (Tr - Ts)", [&fifo.inside, &contract.inside]),
        Where::Kernel => ("voice, application to application", [&fifo.delay, &contract.delay]),
    };
    let chart = chart::render(["FIFO", "contracts"], both);
    let runs = std::slice::from_ref(run);
    format!("{}\n{heading}\n{chart}\n{}{}\n{}\n", table(runs), misses(run), notes(run), verdict(runs))
}

/// Describes several runs; at least one.
pub fn texts(runs: &[Report]) -> String {
    let about = runs.first().map_or("", notes);
    format!(
        "{}, median (worst)\n\n{}\n{about}\n{}\n",
        format::plural(runs.len() as u64, "run"),
        table(runs),
        verdict(runs)
    )
}

fn misses(run: &Report) -> String {
    let latest = &run.edf.latest_misses;
    if latest.is_empty() {
        return String::new();
    }
    let lines: String = latest.iter().take(MISSES).map(|miss| format!("  {miss}\n")).collect();
    format!("The latest misses inside the switch, newest first:\n{lines}\n")
}

fn table(runs: &[Report]) -> String {
    let Some(first) = runs.first() else { return String::new() };
    let mut table = Table::new(&[("", Align::Left), ("FIFO", Align::Right), ("contracts", Align::Right)]);
    for section in rows::sections(first.place) {
        if !section.title.is_empty() {
            table.row([section.title]);
        }
        for row in section.rows {
            let cell = |values: Vec<f64>| {
                let Some((median, worst)) = spread(values, row.worse) else { return String::new() };
                if runs.len() == 1 { (row.show)(median) } else { median_and_worst(row.show, median, worst) }
            };
            let fifo = cell(runs.iter().filter_map(|run| (row.value)(&run.fifo)).collect());
            let contract = cell(runs.iter().filter_map(|run| (row.value)(&run.edf)).collect());
            table.row([row.title.to_owned(), fifo, contract]);
        }
    }
    table.render()
}

fn median_and_worst(show: fn(f64) -> String, median: f64, worst: f64) -> String {
    format!("{} ({})", show(median), show(worst))
}

fn notes(run: &Report) -> &'static str {
    match (run.place, run.realtime_priority) {
        (Where::Switch, true) => {
            "Inside the switch a frame that ended the worker's sleep counts from the wake-up; how long that took is in the \
             rows between the applications alone.\nThe switch's worker, voice's own threads and the bare timers ran under \
             SCHED_FIFO, in both phases."
        }
        (Where::Kernel, true) => {
            "Voice's own threads and the bare timers ran under SCHED_FIFO, in both phases."
        }
        (_, false) => {
            "No thread ran under real-time priority: other work of the CPUs is in the figures, and only steal time \
             shows what the host machine did. For real-time priority, run as root, or allow it (rtprio in limits.conf(5))."
        }
    }
}

/// Sums up the results in one line.
fn verdict(runs: &[Report]) -> String {
    let several = runs.len() > 1;
    let spread_text = |value: fn(&Report) -> f64, worse, show: fn(f64) -> String| match spread(
        runs.iter().map(value),
        worse,
    ) {
        Some((median, worst)) if several => median_and_worst(show, median, worst),
        Some((median, _)) => show(median),
        None => String::new(),
    };
    let ratio = |ratio: Ratio| spread_text(ratio.value, ratio.worse, times);
    let number = |value: fn(&Report) -> f64| spread_text(value, Worse::More, |n| format::count(n as u64));
    let switch = runs.iter().all(|run| run.place == Where::Switch);
    let inside = if switch {
        format!(
            "Inside the switch 99.9 % of voice frames take at most {}, {} times less than through the FIFO; application to \
             application {}, ",
            spread_text(|r| r.edf.switch_delay_us.p999, Worse::More, us),
            ratio(rows::BELOW_FIFO),
            spread_text(|r| r.edf.voice_delay_us.p999, Worse::More, us),
        )
    } else {
        format!(
            "Application to application 99.9 % of voice frames take at most {}, {} times less than through the FIFO, ",
            spread_text(|r| r.edf.voice_delay_us.p999, Worse::More, us),
            ratio(rows::BELOW_FIFO_OUTSIDE),
        )
    };
    format!(
        "{}{inside}{} times a bare timer's. Deadlines missed: {}, unexplained {}; later than 1 ms between the applications: \
         {}, unexplained {}; lost: {}; bulk has {} of the FIFO's goodput.",
        if several { "Median (worst): " } else { "" },
        ratio(rows::OF_TIMER),
        number(|r| r.edf.voice_misses as f64),
        number(|r| r.edf.misses_blame.map_or(0, |b| b.unexplained) as f64),
        number(|r| r.edf.voice_late as f64),
        number(|r| r.edf.late_blame.map_or(0, |b| b.unexplained) as f64),
        number(|r| r.edf.voice_lost as f64),
        spread_text(rows::OF_BULK.value, rows::OF_BULK.worse, format::percent),
    )
}

/// Formats a ratio with two significant digits, or as a whole number.
fn times(times: f64) -> String {
    match times {
        9.95.. => format!("{times:.0}"),
        0.995.. => format!("{times:.1}"),
        0.0995.. => format!("{times:.2}"),
        0.01.. => format!("{times:.3}"),
        _ => "less than 0.01".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::blame::Blame;
    use crate::demo::figures::tests::{measured, report};

    const BLAME: Blame = Blame { late: 3, steal: 1, stalled: 0, unexplained: 2 };

    #[test]
    fn the_table_stands_side_by_side() {
        let text = text(
            &measured(12_000_000, 5_998, None),
            &measured(50_000, 3, Some(BLAME)),
            &report(50_000, BLAME),
        );
        let expected = "\
                                          FIFO   contracts
voice, inside the switch (Tr - Ts)
  p50                                  6.00 ms     25.0 us
  p99                                  6.00 ms     25.0 us
  p99.9                                6.00 ms     25.0 us
  worst                                6.00 ms     25.0 us
  p99.9, lower bound                   3.00 ms     12.5 us
  misses (1 ms)                          5,998           3
    of those unexplained                                 2
  possible misses                                        7
  possible by the worker's sleep                         9
voice, application to application
  p50                                  12.0 ms     50.0 us
  p99                                  12.0 ms     50.0 us
  p99.9                                12.0 ms     50.0 us
  worst                                12.0 ms     50.0 us
  later than 1 ms                        5,998           3
    of those unexplained                                 2
  lost                                       2           2
a bare timer, same window and CPU
  p50                                  20.0 us     20.0 us
  p99                                  20.0 us     20.0 us
  p99.9                                20.0 us     20.0 us
  worst                                20.0 us     20.0 us
CPU of the switch's worker                25 %        25 %
bulk goodput                        941 Mbit/s  941 Mbit/s

voice, inside the switch (Tr - Ts)
";
        assert!(text.trim_start().starts_with(expected.trim_start()), "{text}");
        assert!(text.contains("newest first:\n  missed by 2 ms\n\n"), "{text}");
        let last = "Inside the switch 99.9 % of voice frames take at most 25.0 us, 240 times less than through the FIFO; \
                    application to application 50.0 us, 2.5 times a bare timer's. Deadlines missed: 3, unexplained 2; \
                    later than 1 ms between the applications: 3, unexplained 2; lost: 2; bulk has 100 % of the FIFO's \
                    goodput.\n";
        assert!(text.ends_with(last), "{text}");
    }

    #[test]
    fn a_report_of_several_runs_shows_the_median_and_the_worst() {
        let runs =
            [40_000, 80_000, 60_000].map(|delay| report(delay, Blame { late: delay / 20_000, ..BLAME }));
        let text = texts(&runs);
        assert!(text.starts_with("3 runs, median (worst)\n"), "{text}");
        let row = |title: &str| text.lines().find(|line| line.starts_with(title)).unwrap();
        assert!(row("  p99.9 ").ends_with("6.00 ms (6.00 ms)        30.0 us (40.0 us)"), "{text}");
        assert!(row("  misses").ends_with("3 (4)"), "{text}");
        assert!(
            text.contains("\nMedian (worst): Inside the switch 99.9 % of voice frames take at most 30.0 us (40.0 us), 200 (150) times"),
            "{text}"
        );
    }

    #[test]
    fn a_small_ratio_is_not_shown_as_zero() {
        let texts = [240.0, 10.0, 9.94, 2.5, 1.0, 0.99, 0.424, 0.0996, 0.0424, 0.01, 0.004, 0.0].map(times);
        let expected = [
            "240",
            "10",
            "9.9",
            "2.5",
            "1.0",
            "0.99",
            "0.42",
            "0.10",
            "0.042",
            "0.010",
            "less than 0.01",
            "less than 0.01",
        ];
        assert_eq!(texts, expected);
    }

    #[test]
    fn the_median_of_an_even_number_is_the_worse_value() {
        assert_eq!(spread([1.0, 4.0, 2.0, 3.0], Worse::More), Some((3.0, 4.0)));
        assert_eq!(spread([1.0, 4.0, 2.0, 3.0], Worse::Less), Some((2.0, 1.0)));
        assert_eq!(spread([], Worse::More), None);
    }
}
