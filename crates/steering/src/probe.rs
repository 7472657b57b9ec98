//! The parts of the program by themselves, for tests and measurements: the programs of `probe.bpf.c`, at no device.

use crate::maps::{MapError, Maps, failed};
use crate::program::size;
use crate::table::VXLAN_PORT;
use libbpf_rs::{Object, ObjectBuilder, ProgramInput, ProgramOutput};

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/probe.bpf.o"));

/// The programs, with maps of their own.
pub(crate) struct Probe {
    /// With the map `last`.
    pub object: Object,
    pub maps: Maps,
}

impl Probe {
    /// Loads it with room for so many entries, and for so many different flows in a measurement.
    pub fn load(entries: u32, flows: u32) -> Result<Self, MapError> {
        let mut builder = ObjectBuilder::default();
        let mut opened = builder.open_memory(OBJECT).map_err(failed("read the probe"))?;
        size(&mut opened, entries)?;
        let mut constants = opened.maps_mut().find(|map| map.name().to_string_lossy().ends_with(".rodata"));
        let constants = constants.as_mut().expect("probe.bpf.c has constants");
        // `asked`: the seed, VXLAN's port, how many flows.
        let bytes = [[0; 4], [0; 4], u32::from(VXLAN_PORT).to_ne_bytes(), flows.to_ne_bytes()].concat();
        constants.set_initial_value(&bytes).map_err(failed("set the constants of the probe"))?;
        let object = opened.load().map_err(failed("load the probe"))?;
        Ok(Self { maps: Maps::of_object(&object)?, object })
    }

    /// Runs the program of this name.
    pub fn run<'d>(&self, name: &str, input: ProgramInput<'d>) -> Result<ProgramOutput<'d>, MapError> {
        let program =
            self.object.progs_mut().find(|program| program.name() == name).expect("probe.bpf.c has it");
        program.test_run(input).map_err(failed("run the probe"))
    }
}
