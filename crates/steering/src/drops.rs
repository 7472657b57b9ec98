//! Frames that a CPU's queue had no room for: counted by a program at two tracepoints, as long as this process lives.

use crate::maps::{MapError, failed};
use crate::program::size;
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, ObjectBuilder};

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/drops.bpf.o"));

/// Counts from its start on.
#[derive(Debug)]
pub(crate) struct Drops {
    /// Until they are closed, the programs run.
    _links: Vec<Link>,
    dropped: MapHandle,
}

impl Drops {
    /// Counts for the map of CPUs' queues with this number.
    ///
    /// # Errors
    /// No right to (`CAP_PERFMON`), or a kernel without these tracepoints.
    pub fn watch(cpus: u32) -> Result<Self, MapError> {
        let mut builder = ObjectBuilder::default();
        let mut opened = builder.open_memory(OBJECT).map_err(failed("read the program that counts drops"))?;
        size(&mut opened, 0)?;
        let mut constants = opened.maps_mut().find(|map| map.name().to_string_lossy().ends_with(".rodata"));
        let constants = constants.as_mut().expect("drops.bpf.c has constants");
        constants.set_initial_value(&cpus.to_ne_bytes()).map_err(failed("set the constants"))?;
        let object = opened.load().map_err(failed("load the program that counts drops"))?;
        let links = object.progs_mut().map(|program| program.attach()).collect::<Result<Vec<_>, _>>();
        let links = links.map_err(failed("attach the program that counts drops"))?;
        let dropped = object.maps().find(|map| map.name() == "dropped").expect("drops.bpf.c has it");
        let dropped = MapHandle::try_from(&dropped).map_err(failed("keep the map of drops"))?;
        Ok(Self { _links: links, dropped })
    }

    /// Returns the frames that went to this CPU, and were dropped.
    pub fn of(&self, cpu: usize) -> Result<u64, MapError> {
        let values = self.dropped.lookup_percpu(&(cpu as u32).to_ne_bytes(), MapFlags::ANY);
        let values = values.map_err(failed("read drops"))?.unwrap_or_default();
        Ok(values.iter().filter_map(|value| value.first_chunk().copied()).map(u64::from_ne_bytes).sum())
    }
}
