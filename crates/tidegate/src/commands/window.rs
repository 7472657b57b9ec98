//! Figures of the last 10 s, minute or hour: `--last`.

use crate::format::duration;
use tidegate_agent::views::{Began, Last, WindowView};

/// The option, for commands that show figures.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct Window {
    /// Figures of the last 10s, 1m or 1h, in place of those since the port was made
    #[arg(long, value_name = "TIME")]
    last: Option<Last>,
}

impl Window {
    pub fn is_some(self) -> bool {
        self.last.is_some()
    }

    pub fn api_path(self, path: &str) -> String {
        self.last.map_or_else(|| path.to_owned(), |last| format!("{path}?last={}", last.label()))
    }
}

/// Says in one line which time the figures cover; empty if they cover the whole life of the port.
pub fn title(window: Option<WindowView>) -> String {
    let Some(WindowView { covers_ns, began, .. }) = window else { return String::new() };
    let why = match began {
        None => "",
        Some(Began::Agent) => ", since the agent was started: it has no earlier figures",
        Some(Began::Contract) => ", since its contract changed: a new contract starts new figures",
        Some(Began::Counters) => ", since its port was made, or its counters started again",
    };
    format!("Figures of the last {}{why}.\n", time(covers_ns))
}

/// Formats a window's length: long ones in minutes.
fn time(ns: u64) -> String {
    const MINUTE: u64 = 60_000_000_000;
    match ns {
        0..100_000_000_000 => duration(ns),
        _ => format!("{} min", (ns + MINUTE / 2) / MINUTE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_says_how_long_it_is_and_why_it_is_short() {
        let said = |seconds: f64, began| {
            title(Some(WindowView { asked_ns: 0, covers_ns: (seconds * 1e9) as u64, began }))
        };
        assert_eq!(title(None), "");
        assert_eq!(said(10.4, None), "Figures of the last 10.4 s.\n");
        assert_eq!(said(3_700.0, None), "Figures of the last 62 min.\n");
        assert!(
            said(7.25, Some(Began::Contract)).starts_with("Figures of the last 7.25 s, since its contract")
        );
    }
}
