//! Skips tests with a reason; in CI (`CI=true`) each test must run.

use std::fmt::Display;
use std::io::Write;

/// Prints why a test does not run. The test then returns.
///
/// # Panics
/// In CI.
#[track_caller]
pub fn skipped(why: impl Display) {
    let ci = std::env::var("CI").unwrap_or_default().to_lowercase();
    let line = line(&why.to_string(), &ci).unwrap_or_else(|why| panic!("{why}"));
    // Unlike eprintln!, which libtest captures; scripts/test counts these lines.
    std::io::stderr().write_all(line.as_bytes()).expect("standard error");
}

fn line(why: &str, ci: &str) -> Result<String, String> {
    let why = why.trim_end();
    if ["1", "true", "yes"].contains(&ci) {
        return Err(format!("cannot run here, and CI may not skip: {why}"));
    }
    Ok(format!("skipped: {why}\n"))
}

/// Returns whether `condition` holds; if not, the test is [`skipped`].
///
/// # Panics
/// In CI, if the condition does not hold.
#[track_caller]
pub fn need(reason: &str, condition: bool) -> bool {
    if !condition {
        skipped(reason);
    }
    condition
}

/// Returns the value; on an error the test is [`skipped`] with that reason.
///
/// # Panics
/// In CI, on an error.
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
    fn a_test_with_all_it_needs_is_not_skipped() {
        assert!(need("nothing", true));
        assert_eq!(unless_skipped(Ok::<_, String>(7)), Some(7));
    }
}
