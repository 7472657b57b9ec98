//! What the kernel says of this host's time of day (adjtimex(2)). Reads only.
//!
//! ```text
//!  adjtimex, no mode ─▶ TimeOfDay: synchronised or not, errors
//! ```

use crate::format::duration;
use serde::Serialize;

/// The state of this host's CLOCK_REALTIME. A value is absent if the kernel did not tell it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TimeOfDay {
    /// Whether a daemon keeps it in step (chrony, ntpd, systemd-timesyncd, phc2sys).
    pub synchronised: Option<bool>,
    /// Its error as that daemon estimates it (us).
    pub estimated_error_us: Option<u64>,
    /// Its largest error (us).
    pub maximum_error_us: Option<u64>,
}

impl TimeOfDay {
    /// Asks the kernel.
    pub fn read() -> Self {
        // SAFETY: a structure of numbers, for which all zeros are valid; modes 0 changes nothing.
        let mut state: libc::timex = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel writes into the structure, which lives longer than the call.
        let answer = unsafe { libc::adjtimex(&raw mut state) };
        if answer < 0 {
            return Self::default();
        }
        Self {
            synchronised: Some(answer != libc::TIME_ERROR && state.status & libc::STA_UNSYNC == 0),
            estimated_error_us: u64::try_from(state.esterror).ok(),
            maximum_error_us: u64::try_from(state.maxerror).ok(),
        }
    }

    /// Returns the same in a sentence.
    pub fn text(&self) -> String {
        let us = |us: Option<u64>| duration(us.unwrap_or_default().saturating_mul(1_000));
        let state = match self.synchronised {
            None => "is not known (adjtimex is denied here).".into(),
            Some(false) => "is not synchronised (adjtimex).".into(),
            Some(true) => format!(
                "is synchronised (adjtimex): estimated error {}, at most {}.",
                us(self.estimated_error_us),
                us(self.maximum_error_us)
            ),
        };
        format!("Offsets are of CLOCK_MONOTONIC_RAW, which no daemon sets.\nThis host's time of day {state}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_answers_and_each_state_has_words() {
        assert!(TimeOfDay::read().text().contains("time of day is "));
        let not = TimeOfDay { synchronised: Some(false), ..TimeOfDay::default() };
        assert!(not.text().ends_with("is not synchronised (adjtimex)."));
        assert!(TimeOfDay::default().text().contains("not known"));
    }
}
