//! The log of a process: `tracing` events on standard error.
//!
//! ```text
//!  any thread ── event ──▶ limit ──▶ line: one, clean, cut ──▶ queue ──▶ thread `log` ──▶ standard error
//!                            └ too many alike:                  └ full:
//!                              suppressed, counted, told later    lost, counted, told later
//! ```
//!
//! A thread that logs never waits for the log's reader: its line is queued or lost. Front ends, guests and
//! users of the API, who cause lines, do not decide their number: of one kind about one subject there are
//! five at once, then one in ten seconds. Each event is one line, with invisible characters written out
//! (`tidegate-visible`).
//!
//! - [`limit`]: how many lines of a kind are written
//! - [`line`]: an event as a line
//! - [`writer`]: the queue, and the thread that writes
//!
//! A data plane's worker does not call `tracing`: it has a ring of its own for its notes
//! (`tidegate_switch::worker::events`).

pub mod limit;
pub mod line;
pub mod writer;

use limit::{Limit, Verdict};
use std::backtrace::{Backtrace, BacktraceStatus};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, registry};
use writer::Writer;

/// Longest wait for the last lines at the end of a process.
const LAST_LINES: Duration = Duration::from_secs(1);

/// This process's log.
static LOG: OnceLock<Arc<Log>> = OnceLock::new();

/// Unwritten lines since the process started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Lines without room in the queue: the log's reader is too slow.
    pub lost: u64,
    /// Lines left out because enough of their kind were written.
    pub suppressed: u64,
}

/// Returns the unwritten lines; zeros before [`init`].
pub fn counts() -> Counts {
    LOG.get().map(|log| log.counts()).unwrap_or_default()
}

/// Logs to standard error from now on: warnings, more with a higher `verbose` (0 to 3), or as in RUST_LOG.
/// Panics go there too. Dropping the result waits for the last lines, for at most a second.
///
/// # Panics
/// If it is called twice.
pub fn init(verbose: u8) -> Last {
    let level = ["warn", "info", "debug", "trace"][usize::from(verbose.min(3))];
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    let log = Arc::new(Log::new(io::stderr()));
    let lines = Lines(Arc::clone(&log));
    assert!(LOG.set(log).is_ok(), "the log is made once");
    registry().with(filter).with(lines).init();
    std::panic::set_hook(Box::new(panicked));
    Last
}

/// Starts no thread before [`release`]: for a process that drops its privileges with a single thread. Lines
/// wait.
pub fn hold() {
    if let Some(log) = LOG.get() {
        log.writer.hold();
    }
}

/// Reverts [`hold`].
pub fn release() {
    if let Some(log) = LOG.get() {
        log.writer.release();
    }
}

/// Waits until all lines so far are written, for at most a second.
pub fn flush() {
    if let Some(log) = LOG.get() {
        log.writer.flush(LAST_LINES);
    }
}

/// Flushes the log when it is dropped.
#[must_use = "the last lines are written when this is dropped"]
#[derive(Debug)]
pub struct Last;

impl Drop for Last {
    fn drop(&mut self) {
        flush();
    }
}

/// Reports a panic like the standard library, but waits for the log's reader for a second at most: the
/// process must end.
fn panicked(info: &std::panic::PanicHookInfo<'_>) {
    let thread = std::thread::current();
    let mut text = format!("thread '{}' {info}", thread.name().unwrap_or("<unnamed>"));
    let trace = Backtrace::capture();
    if trace.status() == BacktraceStatus::Captured {
        text += &format!("\nstack backtrace:\n{trace}");
    }
    if let Some(log) = LOG.get() {
        for part in text.lines() {
            log.writer.submit(line::cut(tidegate_visible::visible(part).into_owned()));
        }
        log.writer.flush(LAST_LINES);
    }
}

/// Limit, lines and writer.
struct Log {
    limit: Arc<Mutex<Limit>>,
    suppressed: AtomicU64,
    writer: Writer,
}

impl Log {
    fn new(out: impl io::Write + Send + 'static) -> Self {
        let limit = Arc::new(Mutex::new(Limit::default()));
        let overdue = Arc::clone(&limit);
        let writer = Writer::new(out, move |now| {
            let mut limit = lock(&overdue);
            (limit.overdue(now).iter().map(line::suppressed).collect(), limit.due())
        });
        Self { limit, suppressed: AtomicU64::new(0), writer }
    }

    fn counts(&self) -> Counts {
        Counts { lost: self.writer.lost(), suppressed: self.suppressed.load(Relaxed) }
    }

    fn event(&self, event: &Event<'_>) {
        let key = line::key(event);
        let verdict = lock(&self.limit).ask(key, Instant::now());
        match verdict {
            Verdict::Write => {
                // Not under the lock: formatting may take time.
                let body = line::body(event);
                lock(&self.limit).wrote(key, *event.metadata().level(), &body);
                self.writer.submit(line::line(*event.metadata().level(), &body));
            }
            Verdict::Suppress { first } => {
                self.suppressed.fetch_add(1, Relaxed);
                if first {
                    self.writer.look();
                }
            }
        }
    }
}

fn lock(limit: &Mutex<Limit>) -> MutexGuard<'_, Limit> {
    limit.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Events of `tracing`, to the log.
struct Lines(Arc<Log>);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        self.0.event(event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use tracing::subscriber::with_default;

    /// Returns the written log of `say`.
    fn said(say: impl FnOnce()) -> (String, Counts) {
        let (mut reader, writer) = io::pipe().unwrap();
        let log = Arc::new(Log::new(writer));
        with_default(registry().with(Lines(Arc::clone(&log))), say);
        log.writer.flush(Duration::from_secs(20));
        let counts = log.counts();
        drop(log);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        (text, counts)
    }

    #[test]
    fn an_event_is_one_clean_line() {
        let (text, counts) = said(|| {
            let name = "web\n2026-01-01 ERROR forged";
            tracing::warn!(vnic = name, path = %"/run/\u{1b}[2J", "link \u{202e}broken: {}", "no\r\nway");
        });
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(!text.trim_end_matches('\n').contains(tidegate_visible::is_hidden), "{text:?}");
        let shown = "WARN tidegate_log::tests: link \\u{202e}broken: no\\r\\nway \
                     vnic=\"web\\n2026-01-01 ERROR forged\" path=/run/\\u{1b}[2J";
        assert!(text.contains(shown), "{text}");
        assert_eq!(counts, Counts::default());
    }

    #[test]
    fn a_repeated_line_is_written_five_times() {
        let (text, counts) = said(|| {
            for n in 0..1000 {
                tracing::warn!(port = n % 2, "over and over: {n}");
            }
            tracing::warn!(port = 0, "something else");
        });
        assert_eq!(text.matches("over and over").count(), 10, "{text}");
        assert_eq!(text.matches("something else").count(), 1, "{text}");
        assert_eq!(counts, Counts { lost: 0, suppressed: 990 });
    }

    #[test]
    fn logging_does_not_wait_for_a_reader_that_does_not_read() {
        let (_reader, writer) = io::pipe().unwrap();
        let log = Arc::new(Log::new(writer));
        let started = Instant::now();
        with_default(registry().with(Lines(Arc::clone(&log))), || {
            let long = "x".repeat(3000);
            for n in 0..5000 {
                tracing::warn!(port = n, "{long}");
                // As many kinds as lines.
                log.writer.submit(long.clone() + "\n");
            }
        });
        assert!(log.counts().lost > 3000, "{:?}", log.counts());
        assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
        let started = Instant::now();
        log.writer.flush(Duration::from_millis(100));
        assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    }
}
