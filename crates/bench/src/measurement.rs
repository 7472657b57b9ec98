//! Windows, common options and reports of the measurements.

use crate::load::Plan;
use serde::Serialize;
use std::error::Error;
use std::time::Duration;

/// How long to measure.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Windows {
    /// Traffic before the first window, s
    #[arg(long, value_name = "S", default_value = "0.5", value_parser = seconds)]
    warm_up: Duration,
    /// Windows
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    windows: u16,
    /// Length of a window, s
    #[arg(long, value_name = "S", default_value = "1", value_parser = seconds)]
    window: Duration,
}

impl From<Windows> for Plan {
    fn from(args: Windows) -> Self {
        Self { warm_up: args.warm_up, windows: args.windows.into(), window: args.window }
    }
}

/// Parses the entries of a virtqueue: a power of two, 8 to 32768.
pub fn ring(text: &str) -> Result<u16, String> {
    let entries = text.parse::<u16>().ok().filter(|n| n.is_power_of_two() && (8..=32_768).contains(n));
    entries.ok_or_else(|| format!("`{text}` is not a power of two from 8 to 32768"))
}

/// Parses a time in seconds, such as `0.5`: up to a day.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|s| (0.0..=86_400.0).contains(s));
    seconds
        .map(Duration::from_secs_f64)
        .ok_or_else(|| format!("`{text}` is not a time from 0 to 86400 seconds"))
}

pub type Outcome<T> = Result<T, Box<dyn Error>>;

/// Formats a report as JSON or as a table.
///
/// # Errors
/// The report does not serialise.
pub fn print<T: Serialize>(json: bool, report: &T, table: fn(&T) -> String) -> Outcome<String> {
    Ok(if json { serde_json::to_string_pretty(report)? } else { table(report) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_and_times_are_checked() {
        assert_eq!(ring("256"), Ok(256));
        for wrong in ["4", "257", "65536", "x"] {
            assert!(ring(wrong).is_err(), "{wrong}");
        }
        assert_eq!(seconds("0.25"), Ok(Duration::from_millis(250)));
        for wrong in ["-1", "NaN", "inf", "x"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
