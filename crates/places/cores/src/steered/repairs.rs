//! Whether a program of ours is at its device still, and how often another one took it away. Pure.

use crate::settings::step::{QUIET, REPAIRS};
use std::time::Instant;

/// Repairs of one NIC.
#[derive(Debug, Default)]
pub struct Repairs {
    count: u32,
    last: Option<Instant>,
}

/// Where the program is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// At the device, or the kernel does not say.
    There,
    /// Gone with its device: the next one of that name has none yet.
    Gone,
    /// Taken away by another program.
    Taken,
}

impl Repairs {
    /// Judges the kernel's answer at `now`: whether the program is there, or the number of the error, if it has one.
    pub fn judge(&mut self, now: Instant, answer: Result<bool, Option<i32>>) -> Fate {
        match answer {
            Ok(true) => Fate::There,
            Ok(false) => {
                self.forget_old(now);
                self.count += 1;
                self.last = Some(now);
                Fate::Taken
            }
            Err(Some(libc::ENODEV)) => Fate::Gone,
            // The kernel does not say, and frames may still be steered.
            Err(_) => Fate::There,
        }
    }

    /// Whether another program takes it away after each repair, at `now`.
    pub fn are_vain(&mut self, now: Instant) -> bool {
        self.forget_old(now);
        self.count > REPAIRS
    }

    fn forget_old(&mut self, now: Instant) {
        if self.last.is_some_and(|last| now.saturating_duration_since(last) >= QUIET) {
            *self = Self::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_that_go_and_errors_are_no_other_program() {
        let (mut repairs, now) = (Repairs::default(), Instant::now());
        for _ in 0..10 {
            assert_eq!(repairs.judge(now, Err(Some(libc::ENODEV))), Fate::Gone);
            assert_eq!(repairs.judge(now, Err(Some(libc::ENOBUFS))), Fate::There);
            assert_eq!(repairs.judge(now, Err(None)), Fate::There);
            assert_eq!(repairs.judge(now, Ok(true)), Fate::There);
        }
        assert!(!repairs.are_vain(now));
    }

    #[test]
    fn another_program_wins_until_a_quiet_hour() {
        let (mut repairs, now) = (Repairs::default(), Instant::now());
        for _ in 0..REPAIRS {
            assert_eq!(repairs.judge(now, Ok(false)), Fate::Taken);
            assert!(!repairs.are_vain(now));
        }
        repairs.judge(now, Ok(false));
        assert!(repairs.are_vain(now) && repairs.are_vain(now + QUIET / 2));
        assert!(!repairs.are_vain(now + QUIET));
        assert_eq!(repairs.judge(now + QUIET, Ok(false)), Fate::Taken);
        assert!(!repairs.are_vain(now + QUIET));
    }
}
