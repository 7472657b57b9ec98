//! Limits lines of a kind: five at once about one subject, then one in ten seconds.
//!
//! A kind is a place in the source (a callsite of `tracing`). Its subject is the vNIC, port or domain of
//! the line. A user who chooses names could make endless subjects, so a kind also has a limit of its own,
//! and the number of remembered subjects is bounded.
//!
//! Pure: the caller states the time.

use std::collections::HashMap;
use std::time::{Duration, Instant};
use tracing::Level;

/// For one kind about one subject: lines at once, and the pause per further line.
const SUBJECT: Rate = Rate { burst: 5, pause: Duration::from_secs(10) };
/// For one kind in all.
const KIND: Rate = Rate { burst: 100, pause: Duration::from_secs(1) };
/// Delay of the line that reports the number of suppressed lines.
const REPORT_AFTER: Duration = Duration::from_secs(10);
/// Most subjects that are remembered.
const SUBJECTS: usize = 4096;
/// Most reports of suppressed lines at once.
const REPORTS_AT_ONCE: usize = 16;
/// Bytes of the line that a report quotes.
const EXCERPT: usize = 200;

/// Lines with the same key share a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// The place in the source, hashed.
    pub kind: u64,
    /// Its subject, hashed; `None` if it has none.
    pub subject: Option<u64>,
}

/// The decision on a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Write it.
    Write,
    /// Suppress it.
    Suppress {
        /// It is the first suppressed line since the last report: [`Limit::due`] changes.
        first: bool,
    },
}

/// Lines that were not written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suppressed {
    /// How many.
    pub lines: u64,
    /// How severe.
    pub level: Level,
    /// The last of them that was written.
    pub excerpt: String,
}

#[derive(Clone, Copy)]
struct Rate {
    burst: u32,
    pause: Duration,
}

/// A token bucket of lines.
struct Bucket {
    /// At most `burst` times `pause`.
    saved: Duration,
    since: Instant,
}

impl Bucket {
    fn full(rate: Rate, now: Instant) -> Self {
        Self { saved: rate.burst * rate.pause, since: now }
    }

    fn fill(&mut self, rate: Rate, now: Instant) {
        let passed = now.saturating_duration_since(self.since);
        self.saved = self.saved.saturating_add(passed).min(rate.burst * rate.pause);
        self.since = now;
    }

    fn take(&mut self, rate: Rate, now: Instant) -> bool {
        self.fill(rate, now);
        let rest = self.saved.checked_sub(rate.pause);
        self.saved = rest.unwrap_or(self.saved);
        rest.is_some()
    }

    fn is_full(&mut self, rate: Rate, now: Instant) -> bool {
        self.fill(rate, now);
        self.saved == rate.burst * rate.pause
    }
}

/// The account of one key.
struct Entry {
    bucket: Bucket,
    /// Suppressed lines that are not reported yet.
    suppressed: u64,
    level: Level,
    excerpt: String,
}

/// Accounts of all kinds and subjects.
#[derive(Default)]
pub struct Limit {
    /// By kind without subject, and by kind and subject.
    entries: HashMap<Key, Entry>,
    kinds: HashMap<u64, Bucket>,
    /// When the report of suppressed lines is due.
    due: Option<Instant>,
}

impl Limit {
    /// Decides on one more line at `now`.
    pub fn ask(&mut self, key: Key, now: Instant) -> Verdict {
        let key = self.place(key, now);
        let kind = self.kinds.entry(key.kind).or_insert_with(|| Bucket::full(KIND, now));
        let of_subject = key.subject.is_some();
        let entry = self.entries.entry(key).or_insert_with(|| Entry {
            bucket: Bucket::full(SUBJECT, now),
            suppressed: 0,
            level: Level::WARN,
            excerpt: String::new(),
        });
        // A line refused by its subject's account does not charge its kind's.
        if (!of_subject || entry.bucket.take(SUBJECT, now)) && kind.take(KIND, now) {
            return Verdict::Write;
        }
        entry.suppressed += 1;
        let first = self.due.is_none();
        self.due.get_or_insert(now + REPORT_AFTER);
        Verdict::Suppress { first }
    }

    /// Notes the text of a written line, for reports.
    pub fn wrote(&mut self, key: Key, level: Level, body: &str) {
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.level = level;
            entry.excerpt.clear();
            entry.excerpt.push_str(tidegate_visible::beginning(body, EXCERPT));
        }
    }

    /// When [`overdue`](Self::overdue) has reports.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Returns suppressed lines, the most first, when [due](Self::due): a bounded number of reports in ten
    /// seconds.
    pub fn overdue(&mut self, now: Instant) -> Vec<Suppressed> {
        if self.due.is_none_or(|due| now < due) {
            return vec![];
        }
        self.due = None;
        let entries = self.entries.values_mut().filter(|entry| entry.suppressed > 0);
        let mut reports: Vec<Suppressed> = entries
            .map(|entry| Suppressed {
                lines: std::mem::take(&mut entry.suppressed),
                level: entry.level,
                excerpt: entry.excerpt.clone(),
            })
            .collect();
        reports.sort_by(|a, b| b.lines.cmp(&a.lines).then_with(|| a.excerpt.cmp(&b.excerpt)));
        let rest: Vec<Suppressed> = reports.split_off(reports.len().min(REPORTS_AT_ONCE));
        if !rest.is_empty() {
            let lines = rest.iter().map(|one| one.lines).sum();
            let excerpt = format!("lines about {} other subjects", rest.len());
            reports.push(Suppressed { lines, level: Level::WARN, excerpt });
        }
        reports
    }

    /// Returns the account of a key. With many subjects, those without recent lines are forgotten; without
    /// room even so, all further subjects of a kind share one account.
    fn place(&mut self, key: Key, now: Instant) -> Key {
        if self.entries.len() < SUBJECTS || self.entries.contains_key(&key) {
            return key;
        }
        self.entries.retain(|_, entry| entry.suppressed > 0 || !entry.bucket.is_full(SUBJECT, now));
        if self.entries.len() < SUBJECTS { key } else { Key { subject: None, ..key } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about(subject: u64) -> Key {
        Key { kind: 1, subject: Some(subject) }
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn five_lines_are_written_then_one_in_ten_seconds_with_the_number_suppressed() {
        let (start, mut limit) = (Instant::now(), Limit::default());
        let (mut written, mut reports) = (Vec::new(), Vec::new());
        // A line every 100 ms for a minute.
        for n in 0..600u32 {
            let now = start + n * SECOND / 10;
            reports.extend(limit.overdue(now).into_iter().map(|one| (n, one.lines, one.excerpt)));
            if limit.ask(about(1), now) == Verdict::Write {
                limit.wrote(about(1), Level::WARN, &format!("line {n}"));
                written.push(n);
            }
        }
        assert_eq!(written, [0, 1, 2, 3, 4, 100, 200, 300, 400, 500]);
        // From the first unwritten one on; each quotes the latest written one.
        let expected = [(105, 99, 100), (205, 99, 200), (305, 99, 300), (405, 99, 400), (505, 99, 500)];
        let expected = expected.map(|(n, lines, last)| (n, lines, format!("line {last}")));
        assert_eq!(reports, expected);
        let later = start + 3600 * SECOND;
        assert_eq!(limit.overdue(later)[0].lines, 95);
        assert!(limit.due().is_none() && limit.overdue(later).is_empty());
        assert_eq!((0..6).filter(|_| limit.ask(about(1), later) == Verdict::Write).count(), 5);
    }

    #[test]
    fn a_single_suppressed_line_is_reported_as_one() {
        let (now, mut limit) = (Instant::now(), Limit::default());
        let verdicts: Vec<Verdict> = (0..8).map(|_| limit.ask(about(1), now)).skip(5).collect();
        assert_eq!(verdicts[0], Verdict::Suppress { first: true });
        assert_eq!(verdicts[1..], [Verdict::Suppress { first: false }; 2]);
    }

    #[test]
    fn endless_subjects_take_no_memory_and_write_no_more_lines() {
        let (start, mut limit) = (Instant::now(), Limit::default());
        let mut written = 0;
        for n in 0..50_000u64 {
            // A thousand new names a second.
            let now = start + Duration::from_millis(n);
            written += u64::from(limit.ask(about(n), now) == Verdict::Write);
        }
        assert_eq!(written, 100 + 49);
        assert!(limit.entries.len() <= SUBJECTS + 1, "{}", limit.entries.len());
        let reports = limit.overdue(start + 100 * SECOND);
        assert_eq!(reports.len(), REPORTS_AT_ONCE + 1);
        assert_eq!(reports.iter().map(|one| one.lines).sum::<u64>(), 50_000 - written);
        assert!(reports[REPORTS_AT_ONCE].excerpt.contains("other subjects"), "{reports:?}");
        // All accounts are forgotten when a new one needs the room.
        limit.ask(about(u64::MAX), start + 1000 * SECOND);
        assert_eq!(limit.entries.len(), 1);
    }

    #[test]
    fn an_excerpt_ends_with_a_whole_character() {
        let (now, mut limit) = (Instant::now(), Limit::default());
        limit.ask(about(1), now);
        limit.wrote(about(1), Level::WARN, &"ä".repeat(EXCERPT));
        assert_eq!((0..9).filter(|_| limit.ask(about(1), now) == Verdict::Write).count(), 4);
        assert_eq!(limit.overdue(now + REPORT_AFTER)[0].excerpt, "ä".repeat(EXCERPT / 2));
    }
}
