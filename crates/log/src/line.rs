//! Formats an event as a line: `TIME LEVEL TARGET: MESSAGE key=value ...`, with invisible characters
//! written out.

use crate::limit::{Key, Suppressed};
use std::fmt::{self, Write};
use std::hash::{DefaultHasher, Hash, Hasher};
use tidegate_visible::{beginning, visible};
use tracing::field::{Field, Visit};
use tracing::{Event, Level};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

/// Longest line, bytes, its end included.
pub const LONGEST: usize = 4096;
/// Marks a cut.
const CUT: &str = " [cut]";

/// Fields that can be a line's subject; the first present one is.
const SUBJECTS: [&str; 11] =
    ["vnic", "port", "domain", "call", "nic", "place", "guest", "socket", "folder", "file", "worker"];

/// Formats an event's target, message, and other fields.
pub fn body(event: &Event<'_>) -> String {
    let mut said = Said::default();
    event.record(&mut said);
    let target = said.target.as_deref().unwrap_or(event.metadata().target());
    visible(&format!("{target}: {}{}", said.message, said.fields)).into_owned()
}

/// Formats a line with `body` and the present time.
pub fn line(level: Level, body: &str) -> String {
    let mut line = String::with_capacity(64 + body.len());
    // Writing to a string cannot fail, and a clock without a date says so itself.
    let _ = SystemTime.format_time(&mut Writer::new(&mut line));
    let _ = write!(line, " {level} {body}");
    cut(line)
}

/// Formats the report of unwritten lines.
pub fn suppressed(what: &Suppressed) -> String {
    line(what.level, &format!("{} more suppressed: {}", what.lines, what.excerpt))
}

/// Cuts a text to a line of allowed length, with its end.
pub fn cut(mut line: String) -> String {
    let room = LONGEST - CUT.len() - 1;
    if line.len() > room {
        line.truncate(beginning(&line, room).len());
        line.push_str(CUT);
    }
    line.push('\n');
    line
}

/// The parts of an event.
#[derive(Default)]
struct Said {
    message: String,
    fields: String,
    /// For a record of the `log` crate.
    target: Option<String>,
}

impl Visit for Said {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "log.target" => self.target = Some(value.to_owned()),
            _ => self.record_debug(field, &value),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name if name.starts_with("log.") => Ok(()),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

/// Returns an event's kind and subject.
pub fn key(event: &Event<'_>) -> Key {
    let (mut kind, mut subject) = (DefaultHasher::new(), Subject::default());
    event.metadata().callsite().hash(&mut kind);
    event.record(&mut subject);
    Key { kind: kind.finish(), subject: subject.best.map(|(_, value)| value) }
}

/// An event's subject, hashed.
#[derive(Default)]
struct Subject {
    /// Its place in [`SUBJECTS`], and the value.
    best: Option<(usize, u64)>,
}

impl Visit for Subject {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let Some(rank) = SUBJECTS.iter().position(|name| *name == field.name()) else { return };
        if self.best.is_none_or(|(best, _)| rank < best) {
            let mut hash = Digest(DefaultHasher::new());
            let _ = write!(hash, "{value:?}");
            self.best = Some((rank, hash.0.finish()));
        }
    }
}

/// Hashes what is written to it.
struct Digest(DefaultHasher);

impl fmt::Write for Digest {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_line_is_cut_between_characters() {
        let line = cut("ä".repeat(LONGEST));
        assert!(line.len() <= LONGEST && line.ends_with("ä [cut]\n"), "{}", line.len());
        assert_eq!(cut("short".into()), "short\n");
    }
}
