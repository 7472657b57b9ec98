//! A bounded queue of lines, and the thread that writes them.
//!
//! ```text
//!  submit ──▶ [ QUEUE lines ] ──▶ thread `log` ──▶ out, which may block for ever
//!    └ full: lost + 1                └ then: "N lines were lost"
//! ```

use crate::line;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tracing::Level;

/// Lines that may wait to be written, each of at most [`line::LONGEST`] bytes.
pub const QUEUE: usize = 1024;

/// Pause between looks whether all is written.
const POLL: Duration = Duration::from_millis(2);

/// Returns due lines, and when the next ones are due.
type Due = Box<dyn FnMut(Instant) -> (Vec<String>, Option<Instant>) + Send>;

enum Message {
    Line(String),
    /// Reports may be due later.
    Look,
}

/// Writes lines without waiting.
pub struct Writer {
    queue: SyncSender<Message>,
    /// The thread's state; `None` while it runs.
    stopped: Mutex<Option<Thread>>,
    is_paused: AtomicBool,
    /// Lines that were queued.
    queued: AtomicU64,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    /// Lines that were taken from the queue, written or not.
    done: AtomicU64,
    lost: AtomicU64,
}

struct Thread {
    messages: Receiver<Message>,
    out: Box<dyn Write + Send>,
    due: Due,
    counts: Arc<Counts>,
    /// Lost lines that were reported to `out`.
    reported: u64,
}

impl Writer {
    /// Writes to `out`; its thread starts with the first line. `due` returns lines of its own, and when to
    /// call it next.
    pub fn new(
        out: impl Write + Send + 'static,
        due: impl FnMut(Instant) -> (Vec<String>, Option<Instant>) + Send + 'static,
    ) -> Self {
        let (queue, messages) = sync_channel(QUEUE);
        let counts = Arc::new(Counts::default());
        let thread = Thread {
            messages,
            out: Box::new(out),
            due: Box::new(due),
            counts: Arc::clone(&counts),
            reported: 0,
        };
        Self {
            queue,
            stopped: Mutex::new(Some(thread)),
            is_paused: AtomicBool::new(false),
            queued: AtomicU64::new(0),
            counts,
        }
    }

    /// Queues a line, with its end, or counts it as lost.
    pub fn submit(&self, line: String) {
        match self.queue.try_send(Message::Line(line)) {
            Ok(()) => drop(self.queued.fetch_add(1, SeqCst)),
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                self.counts.lost.fetch_add(1, SeqCst);
            }
        }
        self.start();
    }

    /// Announces that reports may be due later.
    pub fn look(&self) {
        // With a full queue the thread looks anyway.
        let _ = self.queue.try_send(Message::Look);
        self.start();
    }

    /// Lines that were lost.
    pub fn lost(&self) -> u64 {
        self.counts.lost.load(SeqCst)
    }

    /// Starts no thread until [`release`](Self::release).
    pub fn hold(&self) {
        self.is_paused.store(true, SeqCst);
    }

    /// Reverts [`hold`](Self::hold).
    pub fn release(&self) {
        self.is_paused.store(false, SeqCst);
        self.start();
    }

    /// Waits until all queued lines are written, for at most `patience`.
    pub fn flush(&self, patience: Duration) {
        let (queued, end) = (self.queued.load(SeqCst), Instant::now() + patience);
        if queued == 0 {
            return;
        }
        self.release();
        while self.counts.done.load(SeqCst) < queued && Instant::now() < end {
            std::thread::sleep(POLL);
        }
    }

    fn start(&self) {
        if self.is_paused.load(SeqCst) {
            return;
        }
        let mut stopped = self.stopped.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = stopped.take() {
            // Without a thread nothing is written; then the process has greater trouble.
            let _ = std::thread::Builder::new().name("log".into()).spawn(move || thread.run());
        }
    }
}

impl Thread {
    fn run(mut self) {
        let mut due: Option<Instant> = None;
        loop {
            let message = match due {
                None => self.messages.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(due) => self.messages.recv_timeout(due.saturating_duration_since(Instant::now())),
            };
            match message {
                Ok(Message::Line(line)) => {
                    self.write(&line);
                    self.counts.done.fetch_add(1, SeqCst);
                }
                Ok(Message::Look) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            let (lines, next) = (self.due)(Instant::now());
            lines.iter().for_each(|line| self.write(line));
            due = next;
        }
    }

    /// Writes a line after a report of earlier lost ones.
    fn write(&mut self, line: &str) {
        if self.out.write_all(line.as_bytes()).and_then(|()| self.out.flush()).is_err() {
            self.counts.lost.fetch_add(1, SeqCst);
            return;
        }
        let lost = self.counts.lost.load(SeqCst);
        if lost > self.reported {
            let new = lost - std::mem::replace(&mut self.reported, lost);
            let text =
                format!("tidegate_log: {new} lines were lost: the program that reads this log is slow");
            let _ = self.out.write_all(line::line(Level::WARN, &text).as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{self, BufRead, BufReader};

    #[test]
    fn lines_that_find_no_room_are_counted_and_reported() {
        let (reader, out) = io::pipe().unwrap();
        let writer = Writer::new(out, |_| (vec![], None));
        let line = "x".repeat(4000) + "\n";
        let sent = 3 * QUEUE as u64;
        (0..sent).for_each(|_| writer.submit(line.clone()));
        let lost = writer.lost();
        // A pipe's contents are written.
        assert!((sent - QUEUE as u64 - 40..sent - QUEUE as u64 + 1).contains(&lost), "{lost} of {sent}");
        let reading =
            std::thread::spawn(move || BufReader::new(reader).lines().map_while(Result::ok).collect());
        writer.flush(Duration::from_secs(20));
        drop(writer);
        let lines: Vec<String> = reading.join().unwrap();
        let reported: Vec<&String> = lines.iter().filter(|line| line.contains("were lost")).collect();
        assert_eq!(lines.len() - reported.len(), (sent - lost) as usize);
        let reported: u64 = reported.iter().map(|line| number_in(line)).sum();
        assert_eq!(reported, lost);
    }

    fn number_in(line: &str) -> u64 {
        let (_, rest) = line.split_once("tidegate_log: ").unwrap();
        rest.split(' ').next().unwrap().parse().unwrap()
    }

    #[test]
    fn a_stopped_writer_starts_no_thread_and_loses_no_line() {
        let (reader, out) = io::pipe().unwrap();
        let writer = Writer::new(out, |_| (vec![], None));
        writer.hold();
        writer.submit("first\n".into());
        assert!(writer.stopped.lock().unwrap().is_some());
        writer.submit("second\n".into());
        writer.flush(Duration::from_secs(20));
        drop(writer);
        assert_eq!(io::read_to_string(reader).unwrap(), "first\nsecond\n");
    }

    #[test]
    fn due_lines_are_written_without_a_new_event() {
        let (reader, out) = io::pipe().unwrap();
        let mut asked = 0;
        let writer = Writer::new(out, move |now| {
            asked += 1;
            match asked {
                1 => (vec![], Some(now + Duration::from_millis(20))),
                2 => (vec!["due\n".into()], None),
                _ => (vec![], None),
            }
        });
        writer.look();
        let mut line = String::new();
        BufReader::new(reader).read_line(&mut line).unwrap();
        assert_eq!(line, "due\n");
    }
}
