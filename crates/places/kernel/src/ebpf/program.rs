//! An eBPF program for a filter: loaded with its own constants, and with a map of one value.
//!
//! No process needs to hold it: it lives with the filter, and its map with it. The map's number lets a
//! process read it.

use crate::ebpf::layout::layout;
use libbpf_rs::{MapCore, MapFlags, MapHandle, Object, ObjectBuilder};
use std::os::fd::{AsFd, BorrowedFd};

/// The map's only key.
const ONLY: [u8; 4] = [0; 4];

/// A program cannot be loaded, or its map cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} of the eBPF program {name}: {why}")]
pub struct ProgramError {
    what: &'static str,
    name: &'static str,
    why: String,
}

/// A compiled source in `ebpf/`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source {
    /// For messages.
    pub name: &'static str,
    /// The object file.
    pub object: &'static [u8],
    /// Name of the map.
    pub map: &'static str,
}

impl Source {
    fn failed<E: ToString>(self, what: &'static str) -> impl FnOnce(E) -> ProgramError {
        move |why| ProgramError { what, name: self.name, why: why.to_string() }
    }

    /// Loads it with `constants`, and `value` in its map.
    pub fn load(self, constants: &[u64], value: &[u8]) -> Result<Program, ProgramError> {
        let mut builder = ObjectBuilder::default();
        let mut opened = builder.open_memory(self.object).map_err(self.failed("read the instructions"))?;
        let layout = layout().map_err(self.failed("set the constants"))?;
        for (section, words) in [(".rodata", constants), (".rodata.layout", &layout)] {
            let mut there = opened.maps_mut().find(|map| map.name().to_string_lossy().ends_with(section));
            let there = there.as_mut().expect("every filter of bpf/ has both");
            let bytes: Vec<u8> = words.iter().flat_map(|n| n.to_ne_bytes()).collect();
            there.set_initial_value(&bytes).map_err(self.failed("set the constants"))?;
        }
        let object = opened.load().map_err(self.failed("load the instructions"))?;
        let program = Program { source: self, object };
        program.map().update(&ONLY, value, MapFlags::ANY).map_err(self.failed("set the map"))?;
        Ok(program)
    }

    /// Returns the value of the map with this number.
    pub fn read(self, number: u32, flags: MapFlags) -> Result<Vec<u8>, ProgramError> {
        let map = MapHandle::from_map_id(number).map_err(self.failed("find the map"))?;
        Ok(map.lookup(&ONLY, flags).map_err(self.failed("read the map"))?.unwrap_or_default())
    }
}

/// A loaded program, at no ingress yet.
pub(crate) struct Program {
    source: Source,
    pub object: Object,
}

impl Program {
    /// Passes the program to `work`, for a filter in direct action.
    pub fn with_descriptor<T>(&self, work: impl FnOnce(BorrowedFd<'_>) -> T) -> T {
        let program = self.object.progs().next().expect("every source has a program");
        work(program.as_fd())
    }

    /// Returns the number of its map, for [`Source::read`] while the program exists.
    pub fn number(&self) -> Result<u32, ProgramError> {
        let info = self.map().info().map_err(self.source.failed("tell the map's number"))?;
        Ok(info.info.id)
    }

    fn map(&self) -> libbpf_rs::Map<'_> {
        let mut maps = self.object.maps();
        maps.find(|map| map.name() == self.source.map).expect("the source has a map of this name")
    }
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Program").field("source", &self.source.name).finish_non_exhaustive()
    }
}
