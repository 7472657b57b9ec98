//! Skipping by hand, with the reason; in CI (`CI=true`) each test has to run.

use std::fmt::Display;
use std::io::Write;

/// Prints the reason for which a test does not run. The test then returns.
///
/// # Panics
/// In CI.
#[track_caller]
pub fn skipped(why: impl Display) {
    let ci = std::env::var("CI").unwrap_or_default().to_lowercase();
    let line = line(&why.to_string(), &ci).unwrap_or_else(|why| panic!("{why}"));
    // Not eprintln!, which libtest keeps to itself: scripts/test counts these lines.
    std::io::stderr().write_all(line.as_bytes()).expect("standard error");
}

/// The line that says it, or the failure where the variable `CI` says that this is CI.
fn line(why: &str, ci: &str) -> Result<String, String> {
    let why = why.trim_end();
    if ["1", "true", "yes"].contains(&ci) {
        return Err(format!("cannot run here, and CI may not skip: {why}"));
    }
    Ok(format!("skipped: {why}\n"))
}

/// Whether `condition` holds; if not, the test is [`skipped`].
///
/// # Panics
/// In CI, where it does not hold.
#[track_caller]
pub fn need(reason: &str, condition: bool) -> bool {
    if !condition {
        skipped(reason);
    }
    condition
}

/// The value; without one the test is [`skipped`], with the error for a reason.
///
/// # Panics
/// In CI, with an error.
#[track_caller]
pub fn unless_skipped<T, E: Display>(done: Result<T, E>) -> Option<T> {
    match done {
        Ok(value) => Some(value),
        Err(why) => {
            skipped(why);
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ci_may_not_skip() {
        for ci in ["", "0", "false"] {
            assert_eq!(line("no KVM\n", ci).as_deref(), Ok("skipped: no KVM\n"), "{ci}");
        }
        for ci in ["1", "true", "yes"] {
            assert!(line("no KVM", ci).is_err_and(|why| why.contains("no KVM")), "{ci}");
        }
    }

    #[test]
    fn what_is_there_is_not_skipped() {
        assert!(need("nothing", true));
        assert_eq!(unless_skipped(Ok::<_, String>(7)), Some(7));
    }
}
