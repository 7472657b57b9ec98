//! The program of `steer.bpf.c`: loaded anew, or found at a device.

use crate::maps::{MapError, Maps, failed};
use libbpf_rs::query::{ProgInfoIter, ProgInfoQueryOptions};
use libbpf_rs::{ObjectBuilder, ProgramAttachType, ProgramHandle, ProgramType};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/steer.bpf.o"));
/// The program's name in the kernel, by which the next agent knows it again.
pub(crate) const NAME: &str = "tidegate_steer";

/// That of libxdp's dispatcher, which libxdp requires.
pub(crate) const DISPATCHER: &str = "xdp_dispatcher";

/// An XDP program that is not ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Foreign {
    /// Its number.
    pub number: u32,
    /// Its name, if the kernel tells.
    pub name: Option<String>,
}

impl std::fmt::Display for Foreign {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (number {})", self.name.as_deref().unwrap_or("of an unknown name"), self.number)
    }
}

/// A program in the kernel, and its maps.
#[derive(Debug)]
pub(crate) struct Program {
    descriptor: OwnedFd,
    /// Its number.
    pub number: u32,
    /// The kernel's hash of its instructions.
    pub tag: [u8; 8],
    pub maps: Maps,
}

impl Program {
    /// Loads it with room for so many entries, and without any: for a device, or to be called by this dispatcher.
    pub fn load(entries: u32, caller: Option<BorrowedFd<'_>>) -> Result<Self, MapError> {
        let mut builder = ObjectBuilder::default();
        let mut opened = builder.open_memory(OBJECT).map_err(failed("read the steering program"))?;
        size(&mut opened, entries)?;
        if let Some(caller) = caller {
            for mut program in opened.progs_mut() {
                program.set_prog_type(ProgramType::Ext);
                // None, 0.
                program.set_attach_type(ProgramAttachType::CgroupInetIngress);
                // Any function of it with these arguments would do: libxdp attaches it to another dispatcher.
                let name = Some(DISPATCHER.into());
                let set = program.set_attach_target(caller.as_raw_fd(), name);
                set.map_err(failed("make the steering program part of a dispatcher"))?;
            }
        }
        let object = opened.load().map_err(failed("load the steering program"))?;
        let program = object.progs().find(|program| program.name() == NAME).expect("steer.bpf.c has it");
        let descriptor = program.as_fd().try_clone_to_owned().map_err(failed("keep the steering program"))?;
        let number = libbpf_rs::Program::id_from_fd(descriptor.as_fd());
        let number = number.map_err(failed("tell the number of the steering program"))?;
        let tag = ProgramHandle::from_prog_id(number).map_err(failed("open the steering program"))?.tag();
        Ok(Self { descriptor, number, tag, maps: Maps::of_object(&object)? })
    }

    /// Opens one by its number; `None` if its maps are of another form: it is another release's.
    pub fn open(number: u32) -> Result<Option<Self>, MapError> {
        let descriptor = libbpf_rs::Program::fd_from_id(number).map_err(failed("open an XDP program"))?;
        let tag = ProgramHandle::from_prog_id(number).map_err(failed("open an XDP program"))?.tag();
        let options = ProgInfoQueryOptions::default().include_map_ids(true);
        let Some(info) = ProgInfoIter::with_query_opts(options).find(|info| info.id == number) else {
            return Ok(None);
        };
        let Ok(maps) = Maps::of_numbers(&info.map_ids) else { return Ok(None) };
        Ok(Some(Self { descriptor, number, tag, maps }))
    }
}

impl AsFd for Program {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Gives the maps room for so many entries, and for each CPU.
pub(crate) fn size(opened: &mut libbpf_rs::OpenObject, entries: u32) -> Result<(), MapError> {
    let cpus = libbpf_rs::num_possible_cpus().map_err(failed("count CPUs"))? as u32;
    for mut map in opened.maps_mut() {
        let most = match map.name().to_str() {
            Some("flows" | "entries") => entries,
            Some("cpus" | "sent" | "spread_to" | "dropped") => cpus,
            _ => continue,
        };
        map.set_max_entries(most).map_err(failed("size the maps"))?;
    }
    Ok(())
}

/// Returns the name of a program, if the kernel tells.
pub(crate) fn name_of(number: u32) -> Option<String> {
    let program = ProgramHandle::from_prog_id(number).ok()?;
    Some(program.name().to_string_lossy().into_owned())
}
