//! Test runs of the parser.

use super::frames::peers;
use crate::key::{Fields, LENGTH};
use crate::model::No;
use crate::probe::Probe;
use libbpf_rs::{MapCore, MapFlags, ProgramInput};

/// Shortest frame of a test run: an Ethernet header.
pub const SHORTEST: usize = 14;
/// Longest that a test run has in one buffer; the program reads no other.
pub const LONGEST: usize = 3000;

/// The parser of the program, by itself.
pub struct Parser(Probe);

impl Parser {
    /// Loads it; `None`, and a note, without the right to.
    pub fn load() -> Option<Self> {
        let probe = tidegate_testkit::unless_skipped(Probe::load(16, 1))?;
        peers().iter().for_each(|peer| probe.maps.add_peer(peer).unwrap());
        Some(Self(probe))
    }

    /// Returns the key of a frame and its place with the seed 0, or the reason that it has none.
    fn parse(&self, frame: &[u8]) -> Result<([u8; LENGTH], usize), u32> {
        let said = self.0.run("only_parse", ProgramInput { data_in: Some(frame), ..ProgramInput::default() });
        assert_eq!(said.unwrap().return_value, 2, "XDP_PASS");
        let last = self.0.object.maps().find(|map| map.name() == "last").expect("probe.bpf.c has it");
        let parsed = last.lookup(&[0; 4], MapFlags::ANY).unwrap().expect("an array");
        let number = |at: usize| u32::from_ne_bytes(parsed[at..at + 4].try_into().unwrap());
        match number(LENGTH) {
            0 => Ok((parsed[..LENGTH].try_into().unwrap(), number(LENGTH + 4) as usize)),
            outcome => Err(outcome),
        }
    }

    /// Compares it with the model.
    pub fn check(&self, frame: &[u8]) -> Result<(), String> {
        let model = crate::model::parse(frame, 4789, &peers());
        let expected = model.map(|flow: Fields| (flow.key(0), crate::model::place(&flow, 0)));
        let parsed = self.parse(frame);
        if parsed == expected.map_err(|no: No| no as u32) {
            Ok(())
        } else {
            Err(format!("{parsed:02x?}, not {model:02x?}, of {} bytes: {frame:02x?}", frame.len()))
        }
    }
}
