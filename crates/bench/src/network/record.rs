//! A line of JSON for each frame that a rule chose.

use super::model::Fate;
use super::port::Port;
use super::seen::{Seen, Stamp};
use serde::Serialize;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// One frame at one way out. Times are of CLOCK_MONOTONIC_RAW.
#[derive(Debug, Serialize)]
pub struct Line {
    /// The rule's name.
    rule: String,
    /// `sent`, `lost` or `full`.
    fate: &'static str,
    /// Number of the copy; 0 for the frame itself.
    copy: u32,
    /// The interface where it arrived.
    from: String,
    /// The interface where it left.
    to: Option<String>,
    /// When it arrived (ns).
    pub arrived_ns: u64,
    /// How long it was to stay, its rate's queue included (ns).
    planned_ns: Option<u64>,
    /// How long it stayed until its interface had taken it (ns).
    pub delay_ns: Option<u64>,
    /// Its length on the wire, without FCS (bytes).
    bytes: usize,
    vni: Option<u32>,
    src: Option<String>,
    dst: Option<String>,
    payload: Option<u64>,
    #[serde(flatten)]
    stamp: Option<Stamp>,
}

impl Line {
    /// Returns the line of a frame that has not left yet.
    pub fn new(
        rule: String,
        arrived_ns: u64,
        from: &str,
        fate: &Fate,
        ports: &[Port],
        frame: &[u8],
        seen: &Seen,
    ) -> Self {
        let (name, copy, to, planned_ns) = match *fate {
            Fate::Leaves { at, port, copy } => ("sent", copy, Some(port), Some(at - arrived_ns)),
            Fate::Lost => ("lost", 0, None, None),
            Fate::Full { port } => ("full", 0, Some(port), None),
        };
        Self {
            rule,
            fate: name,
            copy,
            from: from.to_owned(),
            to: to.map(|port| ports[port].name.clone()),
            arrived_ns,
            planned_ns,
            delay_ns: None,
            bytes: frame.len(),
            vni: seen.vni,
            src: seen.src.clone(),
            dst: seen.dst.clone(),
            payload: seen.payload,
            stamp: seen.stamp,
        }
    }
}

/// The file of records, if there is one.
#[derive(Default)]
pub struct Recorder(Option<BufWriter<File>>);

impl Recorder {
    /// Makes the file anew.
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn new(path: &Path) -> io::Result<Self> {
        Ok(Self(Some(BufWriter::with_capacity(1 << 20, File::create(path)?))))
    }

    /// Writes a line.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&mut self, line: &Line) -> io::Result<()> {
        if let Some(file) = &mut self.0 {
            serde_json::to_writer(&mut *file, line)?;
            file.write_all(b"\n")?;
        }
        Ok(())
    }

    /// Hands the lines so far to the kernel.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn flush(&mut self) -> io::Result<()> {
        self.0.as_mut().map_or(Ok(()), BufWriter::flush)
    }
}
