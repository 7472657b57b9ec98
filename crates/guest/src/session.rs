//! The host's side of one port, against any guest. No I/O, no clock.
//!
//! ```text
//!  bytes ─▶ Lines ─▶ at most 20 a second ─▶ Request ─┬─ limit ─────────────────────────────▶ Ask
//!                                                    ├─ set ──▶ at most 5 a second ────────▶ Ask
//!                                                    └─ neither: an error once; too many: ─▶ Close
//! ```
//!
//! Faster input waits, unread, in the guest: the caller does not read while it must wait. A guest that
//! never stops is cut off.

use crate::lines::{Line, Lines, REQUEST};
use crate::message::{Ask, Kind, Malformed, Reply, Request, Tag};
use crate::pace::Pace;
use std::time::Duration;

/// Most lines per second; of a line that is too long each [`REQUEST`] bytes count as one.
pub const LINES: u32 = 20;
/// Most changes per second.
pub const CHANGES: u32 = 5;
/// Consecutive bad lines that end the connection.
pub const BAD: u32 = 20;
/// Total wait, line after line, that ends the connection with its unread input: reading it would take
/// minutes.
pub const FLOOD: Duration = Duration::from_secs(3);

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Answer this request.
    Ask(Request),
    /// Send this reply.
    Reply(Reply),
    /// Read nothing, and call again after this time.
    Wait(Duration),
    /// Close the connection: its input is invalid, or too much.
    Close,
}

/// One port: a connection, and the next ones.
#[derive(Debug)]
pub struct Session {
    lines: Lines,
    line_pace: Pace,
    change_pace: Pace,
    /// A line that waits for its turn.
    line: Option<Line>,
    change: Option<Request>,
    /// Bad lines since the last good one.
    bad_lines: u32,
    /// Wait of the present line, and of the consecutive lines before it that waited.
    line_wait: Duration,
    consecutive_wait: Duration,
}

impl Default for Session {
    fn default() -> Self {
        Self {
            lines: Lines::new(REQUEST),
            line_pace: Pace::new(LINES),
            change_pace: Pace::new(CHANGES),
            line: None,
            change: None,
            bad_lines: 0,
            line_wait: Duration::ZERO,
            consecutive_wait: Duration::ZERO,
        }
    }
}

impl Session {
    /// Prepares for the next connection: forgets the last one's unfinished input, but not its recent
    /// requests. Otherwise repeated reconnecting would give more than a guest's share.
    #[must_use]
    pub fn reconnected(self) -> Self {
        Self { line_pace: self.line_pace, change_pace: self.change_pace, ..Self::default() }
    }

    /// Returns the step for `input`, and removes the used bytes from it. `None`: read more. `now` counts
    /// from any moment, the same for all connections.
    pub fn next(&mut self, input: &mut &[u8], now: Duration) -> Option<Step> {
        loop {
            if let Some(change) = self.change.take() {
                return Some(match self.change_pace.pass(now) {
                    Ok(()) => Step::Ask(change),
                    Err(wait) => {
                        self.change = Some(change);
                        self.wait(wait)
                    }
                });
            }
            let line = match self.line.take() {
                Some(line) => line,
                None => {
                    let line = self.lines.next(input)?;
                    let line_wait = std::mem::take(&mut self.line_wait);
                    self.consecutive_wait =
                        if line_wait.is_zero() { line_wait } else { self.consecutive_wait + line_wait };
                    if self.consecutive_wait >= FLOOD {
                        return Some(Step::Close);
                    }
                    line
                }
            };
            if let Err(wait) = self.line_pace.pass(now) {
                self.line = Some(line);
                return Some(self.wait(wait));
            }
            if let Some(step) = self.line(line) {
                return Some(step);
            }
        }
    }

    fn wait(&mut self, wait: Duration) -> Step {
        self.line_wait += wait;
        Step::Wait(wait)
    }

    fn line(&mut self, line: Line) -> Option<Step> {
        let wrong = |why: &str| Malformed { tag: Tag::none(), why: why.into() };
        let request = match line {
            // A guest ends another program's unfinished line with it.
            Line::Text(text) if text.is_empty() => return None,
            Line::Text(text) => Request::parse(&text),
            Line::Garbage => Err(wrong("a line holds printable ASCII only")),
            Line::TooLong => Err(wrong("a line has at most 256 bytes")),
            Line::Dropped => Err(wrong("this line is still too long")),
        };
        match request {
            Ok(request) => {
                self.bad_lines = 0;
                if matches!(request.ask, Ask::Set { .. }) {
                    self.change = Some(request);
                    return None;
                }
                Some(Step::Ask(request))
            }
            Err(Malformed { tag, why }) => {
                self.bad_lines += 1;
                match self.bad_lines {
                    // Only once: an answer to each line would double the traffic.
                    1 => Some(Step::Reply(Reply::error(tag, Kind::Malformed, &why))),
                    BAD.. => Some(Step::Close),
                    _ => None,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns all steps for `bytes`, with the requested waits, and the time.
    fn all(session: &mut Session, mut bytes: &[u8], now: &mut Duration) -> Vec<Step> {
        let mut steps = Vec::new();
        while let Some(step) = session.next(&mut bytes, *now) {
            match step {
                Step::Wait(wait) => *now += wait,
                Step::Close => return [steps, vec![Step::Close]].concat(),
                step => steps.push(step),
            }
        }
        steps
    }

    #[test]
    fn requests_come_out_as_they_were() {
        let mut now = Duration::ZERO;
        let steps = all(&mut Session::default(), b"1 a limit\n1 b set * none\n1 c li", &mut now);
        let ask = |line| Step::Ask(Request::parse(line).expect("a request"));
        assert_eq!(steps, [ask("1 a limit"), ask("1 b set * none")]);
    }

    #[test]
    fn a_flood_is_slowed() {
        let (mut session, mut now) = (Session::default(), Duration::ZERO);
        let reads = all(&mut session, "1 a limit\n".repeat(60).as_bytes(), &mut now);
        assert_eq!((reads.len(), now.as_secs()), (60, 2));
        let (mut session, mut now) = (Session::default(), Duration::ZERO);
        let changes = all(&mut session, "1 a set * 1mbit\n".repeat(15).as_bytes(), &mut now);
        assert_eq!((changes.len(), now.as_secs()), (15, 2));
    }

    #[test]
    fn a_flood_without_end_is_cut_off() {
        for line in ["1 a limit\n", "1 a set * 1mbit\n", "\n"] {
            let (mut session, mut now) = (Session::default(), Duration::ZERO);
            let steps = all(&mut session, line.repeat(1000).as_bytes(), &mut now);
            assert_eq!((steps.last(), now.as_secs()), (Some(&Step::Close), 3), "{line}");
        }
        // With a pause in between, all is well.
        let (mut session, mut now) = (Session::default(), Duration::ZERO);
        for _ in 0..10 {
            let steps = all(&mut session, "1 a limit\n".repeat(60).as_bytes(), &mut now);
            assert_eq!(steps.len(), 60);
            now += Duration::from_secs(2);
        }
    }

    #[test]
    fn nonsense_is_answered_once_and_then_ends_it() {
        let mut now = Duration::ZERO;
        let mut session = Session::default();
        let steps = all(&mut session, b"\xff\n\xfe\n\n1 a limit\nx\n", &mut now);
        assert!(matches!(&steps[..], [Step::Reply(_), Step::Ask(_), Step::Reply(_)]), "{steps:?}");
        // A good line resets the count.
        let steps = all(&mut session, "?\n".repeat(100).as_bytes(), &mut now);
        assert_eq!(steps, [Step::Close]);
        let (mut session, mut now) = (Session::default(), Duration::ZERO);
        let steps = all(&mut session, &[b'x'; 10_000], &mut now);
        assert!(matches!(&steps[..], [Step::Reply(_), Step::Close]), "{steps:?}");
    }

    #[test]
    fn another_connection_begins_anew_but_for_the_pace() {
        let (mut session, mut now) = (Session::default(), Duration::ZERO);
        let mut changes = 0;
        for _ in 0..6 {
            let text = "1 a set * 1mbit\n".repeat(CHANGES as usize) + &"?\n".repeat(BAD as usize);
            let steps = all(&mut session, text.as_bytes(), &mut now);
            assert_eq!(steps.last(), Some(&Step::Close));
            changes += steps.iter().filter(|step| matches!(step, Step::Ask(_))).count();
            assert_eq!(all(&mut session, b"1 a se", &mut now), []);
            session = session.reconnected();
            // Neither bad lines nor half a line count here.
            let steps = all(&mut session, b"1 a limit\n", &mut now);
            assert!(matches!(steps[..], [Step::Ask(_)]), "{steps:?}");
        }
        assert_eq!(changes, 30);
        assert!(now >= Duration::from_secs(5), "{now:?}");
    }

    proptest! {
        /// For any input in any pieces: no second brings more than twice the allowed number, at once and
        /// afterwards.
        #[test]
        fn no_guest_gets_more_than_its_share(
            chunks in prop::collection::vec((prop_oneof![
                Just(b"1 a limit\n".to_vec()), Just(b"1 a set * 1mbit\n".to_vec()), Just(b"?\n".to_vec()),
                prop::collection::vec(any::<u8>(), 0..600),
            ], 0u64..100), 0..200),
        ) {
            let (mut session, mut now) = (Session::default(), Duration::ZERO);
            let (mut asked, mut changed) = (Vec::new(), Vec::new());
            'all: for (chunk, pause) in chunks {
                now += Duration::from_millis(pause);
                let mut input = chunk.as_slice();
                loop {
                    match session.next(&mut input, now) {
                        None => break,
                        Some(Step::Close) => break 'all,
                        Some(Step::Wait(wait)) => {
                            prop_assert!(!wait.is_zero() && wait <= Duration::from_secs(1));
                            now += wait;
                        }
                        Some(Step::Ask(request)) => {
                            asked.push(now);
                            if request.ask != Ask::Limit {
                                changed.push(now);
                            }
                        }
                        Some(Step::Reply(reply)) => prop_assert!(reply.to_string().len() < 256),
                    }
                }
                prop_assert!(input.is_empty(), "what is not taken is lost");
            }
            for (times, most) in [(asked, LINES), (changed, CHANGES)] {
                for (i, first) in times.iter().enumerate() {
                    let within = times[i..].iter().filter(|t| **t < *first + Duration::from_secs(1)).count();
                    prop_assert!(within <= 2 * most as usize);
                }
            }
        }
    }
}
