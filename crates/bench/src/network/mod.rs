//! A network between hosts, for tests: by rules it delays, loses, doubles, corrupts and paces frames, and records each.
//!
//! ```text
//!  interface ─▶ port ─▶ seen: addresses, VNI, stamp ─▶ model: rule, departures ─▶ until due ─▶ port ─▶ interface
//!                                                        ▲ plan (stdin)                └──────▶ record: JSON lines
//! ```
//!
//! It switches frames between its interfaces as a learning bridge does. Times are of CLOCK_MONOTONIC_RAW. A frame's
//! arrival is the kernel's own time, so a network that is woken late does not start its delays late. The frame's real
//! delay stands in its record beside the planned one.
//!
//! - [`plan`]: rules, as JSON
//! - [`seen`]: the fields of a frame that rules and records name
//! - [`model`]: when frames leave, and where. Pure
//! - [`record`]: a line of JSON for each frame that a rule chose
//! - [`port`]: an interface, by AF_PACKET

pub mod model;
pub mod plan;
pub mod port;
pub mod record;
pub mod seen;

use model::{Fate, Model};
use plan::Plan;
use port::Port;
use record::{Line, Recorder};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use seen::Seen;
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, Stdin, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;

/// The network waits awake for the last part of a delay (ns): a timer's wake-up is later than this.
const AWAKE_NS: u64 = 60_000;
/// Frames that are taken from one port in a turn.
const BATCH: usize = 64;
/// Longest time without a look at the records (ns): they are written at least so often.
const IDLE_NS: u64 = 20_000_000;

/// Counts of frames, printed at the end.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Totals {
    /// Frames that arrived at a port.
    pub received: u64,
    /// Frames and copies that left.
    pub sent: u64,
    /// Frames that a rule lost.
    pub lost: u64,
    /// Frames that found the queue full.
    pub full: u64,
    /// Frames that an interface refused.
    pub refused: u64,
    /// Frames that the kernel dropped before the network saw them.
    pub unseen: u64,
}

/// A frame that waits for its departure.
struct Waiting {
    frame: Rc<[u8]>,
    port: usize,
    line: Option<Line>,
}

/// A running network.
pub struct Network {
    ports: Vec<Port>,
    model: Model,
    recorder: Recorder,
    /// Departures by time, then by arrival.
    due: BinaryHeap<Reverse<(u64, usize)>>,
    /// The frames of `due`, by their number there.
    waiting: Vec<Option<Waiting>>,
    free: Vec<usize>,
    totals: Totals,
}

impl Network {
    /// Joins interfaces, without any rule.
    pub fn new(ports: Vec<Port>, recorder: Recorder) -> Self {
        let model = Model::new(Plan::default(), ports.iter().map(|port| port.name.clone()).collect());
        Self {
            ports,
            model,
            recorder,
            due: BinaryHeap::new(),
            waiting: vec![],
            free: vec![],
            totals: Totals::default(),
        }
    }

    /// Runs until `input` ends, each line of which is a [`Plan`] that takes effect at once.
    ///
    /// # Errors
    /// The input is no plan, an interface is gone, or the records cannot be written.
    pub fn run(mut self, mut input: Input) -> io::Result<Totals> {
        loop {
            let mut idle = self.send_due()?;
            for port in 0..self.ports.len() {
                idle &= !self.receive(port)?;
            }
            if idle && self.rest(&input)? {
                match input.read()? {
                    Read::Nothing => {}
                    Read::End => break,
                    Read::Lines(lines) => {
                        for line in lines {
                            let plan = serde_json::from_str(&line).map_err(io::Error::other)?;
                            self.model.set(plan);
                            println!("plan");
                            io::stdout().flush()?;
                        }
                    }
                }
            }
        }
        self.recorder.flush()?;
        for port in &self.ports {
            self.totals.unseen += port.dropped()?;
        }
        Ok(self.totals)
    }

    /// Waits for a frame, a departure or input; returns whether there is input.
    fn rest(&mut self, input: &Input) -> io::Result<bool> {
        let now = port::now();
        let left = self.due.peek().map_or(IDLE_NS, |Reverse((at, _))| at.saturating_sub(now).min(IDLE_NS));
        if left == IDLE_NS {
            self.recorder.flush()?;
        }
        let sleep = left.saturating_sub(AWAKE_NS);
        let mut descriptors: Vec<PollFd<'_>> =
            self.ports.iter().map(|port| PollFd::new(port, PollFlags::IN)).collect();
        descriptors.push(PollFd::new(input, PollFlags::IN));
        poll(&mut descriptors, Some(&Timespec { tv_sec: 0, tv_nsec: sleep as _ }))?;
        Ok(descriptors.last().is_some_and(|fd| !fd.revents().is_empty()))
    }

    /// Sends the frames that are due; returns whether none was.
    fn send_due(&mut self) -> io::Result<bool> {
        let mut none = true;
        while let Some(Reverse((at, number))) = self.due.peek().copied() {
            if at > port::now() {
                break;
            }
            none = false;
            self.due.pop();
            self.free.push(number);
            let Some(Waiting { frame, port, line }) = self.waiting[number].take() else { continue };
            if self.ports[port].send(&frame)? {
                self.totals.sent += 1
            } else {
                self.totals.refused += 1
            }
            if let Some(mut line) = line {
                line.delay_ns = Some(port::now().saturating_sub(line.arrived_ns));
                self.recorder.write(&line)?;
            }
        }
        Ok(none)
    }

    /// Takes the frames that have arrived at a port; returns whether there was one.
    fn receive(&mut self, port: usize) -> io::Result<bool> {
        for taken in 0..BATCH {
            let Some((mut frame, arrived_ns)) = self.ports[port].receive()? else { return Ok(taken > 0) };
            self.totals.received += 1;
            let seen = Seen::of(&frame);
            let decided = self.model.arrive(arrived_ns, port, &mut frame, &seen);
            let frame: Rc<[u8]> = frame.into();
            for fate in decided.fates {
                let line = decided.rule.as_ref().map(|rule| {
                    let from = &self.ports[port].name;
                    Line::new(rule.clone(), arrived_ns, from, &fate, &self.ports, &frame, &seen)
                });
                match fate {
                    Fate::Leaves { at, port, .. } => {
                        self.wait(at, Waiting { frame: frame.clone(), port, line })
                    }
                    Fate::Lost | Fate::Full { .. } => {
                        let full = matches!(fate, Fate::Full { .. });
                        *(if full { &mut self.totals.full } else { &mut self.totals.lost }) += 1;
                        line.map_or(Ok(()), |line| self.recorder.write(&line))?;
                    }
                }
            }
        }
        Ok(true)
    }

    fn wait(&mut self, at: u64, waiting: Waiting) {
        let number = self.free.pop().unwrap_or_else(|| {
            self.waiting.push(None);
            self.waiting.len() - 1
        });
        self.waiting[number] = Some(waiting);
        self.due.push(Reverse((at, number)));
    }
}

/// The standard input, which is never waited for.
pub struct Input {
    stdin: Stdin,
    text: Vec<u8>,
}

/// What a look at the input brought.
pub enum Read {
    /// No whole line yet.
    Nothing,
    /// Whole lines.
    Lines(Vec<String>),
    /// The input has ended.
    End,
}

impl Default for Input {
    fn default() -> Self {
        Self { stdin: io::stdin(), text: vec![] }
    }
}

impl Input {
    /// Reads once from an input that is ready.
    ///
    /// # Errors
    /// The input cannot be read.
    fn read(&mut self) -> io::Result<Read> {
        let mut part = [0; 65_536];
        let length = rustix::io::read(&self.stdin, &mut part)?;
        if length == 0 {
            return Ok(Read::End);
        }
        self.text.extend_from_slice(&part[..length]);
        let Some(end) = self.text.iter().rposition(|byte| *byte == b'\n') else { return Ok(Read::Nothing) };
        let whole: Vec<u8> = self.text.drain(..=end).collect();
        let text = String::from_utf8_lossy(&whole);
        Ok(Read::Lines(text.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned).collect()))
    }
}

impl AsFd for Input {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stdin.as_fd()
    }
}
