//! Two distributions side by side as text, on a logarithmic scale.

use crate::format;
use tidegate_evidence::Histogram;
use tidegate_evidence::histogram::bucket;

const WIDTH: usize = 24;

/// Returns the upper ends of the rows (ns): 1, 2, 5 of each decade from 1 us to 10 s.
fn ends() -> Vec<u64> {
    (3..10).flat_map(|decade| [1, 2, 5].map(|n| n * 10u64.pow(decade))).collect()
}

/// Renders one row per step of the scale, from the first to the last step with values.
pub fn render(titles: [&str; 2], both: [&Histogram; 2]) -> String {
    let ends = ends();
    let shares = both.map(|histogram| shares(histogram, &ends));
    let occupied = |row: &usize| shares.iter().any(|s| s[*row] > 0.0);
    let Some(first) = (0..ends.len()).find(occupied) else { return String::new() };
    let last = (0..ends.len()).rfind(occupied).unwrap_or(first);
    let highest = shares.iter().flatten().copied().fold(0.0, f64::max);

    let cell = |share: f64| {
        if share == 0.0 {
            String::new()
        } else {
            format!("{} {}", bar(share / highest), format::percent(share))
        }
    };
    let (label, column) = ("at most", WIDTH + 8);
    let mut out = format!("{label:>10}  {:<column$}  {}\n", titles[0], titles[1]);
    for row in first..=last {
        let line =
            format!("{:>10}  {:<column$}  {}", scale(ends[row]), cell(shares[0][row]), cell(shares[1][row]));
        out += line.trim_end();
        out.push('\n');
    }
    out
}

/// Returns the share of values in each row; values above the scale count in the last.
fn shares(histogram: &Histogram, ends: &[u64]) -> Vec<f64> {
    let mut rows = vec![0.0; ends.len()];
    let total = histogram.count().max(1) as f64;
    for (value, count) in histogram.occupied() {
        rows[ends.partition_point(|end| bucket(*end) < bucket(value)).min(ends.len() - 1)] +=
            count as f64 / total;
    }
    rows
}

/// Draws `share` (0 to 1) of [`WIDTH`] columns, in eighths, at least one eighth.
fn bar(share: f64) -> String {
    let eighths = ((share * WIDTH as f64 * 8.0).round() as usize).max(1);
    let rest = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"][eighths % 8];
    "█".repeat(eighths / 8) + rest
}

/// Formats a round duration (ns) without decimals.
fn scale(ns: u64) -> String {
    let (unit, name) = [(1_000_000_000, "s"), (1_000_000, "ms")]
        .into_iter()
        .find(|(u, _)| ns >= *u)
        .unwrap_or((1_000, "us"));
    format!("{} {name}", ns / unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[(u64, u64)]) -> Histogram {
        crate::demo::order::histogram(values)
    }

    #[test]
    fn two_distributions() {
        let slow = of(&[(12_000_000, 9), (4_000_000, 1)]);
        let fast = of(&[(40_000, 3), (90_000, 1)]);
        let expected = "   \
   at most  FIFO                              contracts
     50 us                                    ████████████████████ 75 %
    100 us                                    ██████▋ 25 %
    200 us
    500 us
      1 ms
      2 ms
      5 ms  ██▋ 10 %
     10 ms
     20 ms  ████████████████████████ 90 %
";
        assert_eq!(render(["FIFO", "contracts"], [&slow, &fast]), expected);
    }

    #[test]
    fn a_rare_value_is_seen() {
        let rare = of(&[(10_000, 99_999), (900_000, 1)]);
        let text = render(["a", "b"], [&rare, &Histogram::default()]);
        assert!(text.lines().last().unwrap().starts_with("      1 ms  ▏"), "{text}");
    }

    #[test]
    fn an_empty_histogram_has_an_empty_chart() {
        assert_eq!(render(["a", "b"], [&Histogram::default(), &Histogram::default()]), "");
    }
}
