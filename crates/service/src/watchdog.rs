//! The watchdog of the service manager (sd_watchdog_enabled(3)).

use std::time::Duration;

/// The longest time between two [`alive`](crate::Notifier::alive) after which the service manager ends this process, and
/// starts it anew: `WatchdogSec=` of the unit. `None` where it waits for none.
pub fn watchdog() -> Option<Duration> {
    let variable = |name| std::env::var(name).ok();
    interval(variable("WATCHDOG_USEC").as_deref(), variable("WATCHDOG_PID").as_deref(), std::process::id())
}

/// From what the environment says; `pid` is the process that is meant, all where absent.
fn interval(usec: Option<&str>, pid: Option<&str>, own: u32) -> Option<Duration> {
    let is_meant = pid.is_none_or(|pid| pid.parse() == Ok(own));
    let usec = usec?.parse().ok().filter(|usec| *usec > 0 && is_meant)?;
    Some(Duration::from_micros(usec))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_named_process_has_a_watchdog_interval() {
        let ten = Some(Duration::from_secs(10));
        assert_eq!(interval(Some("10000000"), Some("7"), 7), ten);
        assert_eq!(interval(Some("10000000"), None, 7), ten);
        assert_eq!(interval(Some("10000000"), Some("8"), 7), None);
        assert_eq!(interval(Some("10000000"), Some(""), 7), None);
        for none in [None, Some("0"), Some(""), Some("-1"), Some("soon")] {
            assert_eq!(interval(none, Some("7"), 7), None, "{none:?}");
        }
    }
}
