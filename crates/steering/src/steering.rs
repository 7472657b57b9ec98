//! A table at a device: attached, changed, counted, detached.

use crate::counters::{Counters, EntryCount, Outcomes, by_cpu};
use crate::cpus;
use crate::device::{self, Foreign, Found};
use crate::dispatcher::{self, Dispatcher};
use crate::drops::Drops;
use crate::libxdp;
use crate::live::Live;
use crate::maps::{Count, MapError, failed};
use crate::program::Program;
use crate::table::Table;
use crate::threads::Threads;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use tidegate_netlink::NetlinkError;

const EBUSY: i32 = 16;
const EEXIST: i32 = 17;
const EOPNOTSUPP: i32 = 95;
const ENODEV: i32 = 19;

/// How a table is attached.
#[derive(Clone, Debug)]
pub struct Options {
    /// Most entries. The kernel needs about 16 bytes of each for each CPU.
    pub entries: u32,
    /// Frames that wait for a CPU at most; 1 to 16,384.
    pub queue: u32,
    /// `/`, or a recorded tree of `sys/devices/system/cpu`.
    pub root: PathBuf,
}

impl Default for Options {
    fn default() -> Self {
        Self { entries: 4096, queue: 2048, root: "/".into() }
    }
}

/// A table that was not attached.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The device does not exist.
    #[error("there is no network device {0}: make it, or correct the contract")]
    NoDevice(String),
    /// Another program has it, and keeps it.
    #[error("{device} has the XDP program {program}, which stays: {}", advice(.device, .program))]
    Foreign {
        /// The device.
        device: String,
        /// The program.
        program: Foreign,
    },
    /// A dispatcher of libxdp has it, and the steering program cannot be part of that.
    #[error(
        "{device} has the XDP program {program}, libxdp's dispatcher, which stays, and the steering program cannot join it: {why} \
         (xdp-loader status {device} lists its programs)"
    )]
    NotJoined {
        /// The device.
        device: String,
        /// The dispatcher.
        program: Foreign,
        /// The reason.
        why: String,
    },
    /// The driver cannot run XDP programs, or not now.
    #[error(
        "{device}: the driver cannot run an XDP program: {source}: remove it from steer; RPS and RSS remain"
    )]
    NoXdp {
        /// The device.
        device: String,
        /// The kernel's words.
        source: NetlinkError,
    },
    /// VLAN tags would be lost.
    #[error(
        "{0} takes VLAN tags out of frames before an XDP program sees them, and they would be lost on the way to another CPU: \
         ethtool -K {0} rxvlan off"
    )]
    TakesTagsOut(String),
    /// The kernel refused a map or the program.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The kernel does not answer.
    #[error("{device}: {source}")]
    Netlink {
        /// The device.
        device: String,
        /// The kernel's words.
        source: NetlinkError,
    },
    /// It is not known which CPUs are online.
    #[error("cannot read which CPUs are online: {0}")]
    Cpus(#[from] io::Error),
}

/// Says whose program it is, and what to do.
fn advice(device: &str, program: &Foreign) -> String {
    match program.name.as_deref() {
        Some("plain_nic") => format!(
            "it is of an uplink of kind xdp: remove {device} from steer, or give the uplink another kind"
        ),
        _ => format!(
            "bpftool prog show id {} tells more of it, and ip link set {device} xdp off would remove it",
            program.number
        ),
    }
}

/// The program was not taken away.
#[derive(Debug, thiserror::Error)]
pub enum DetachError {
    /// The kernel refused, or does not answer.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// It could not leave libxdp's dispatcher.
    #[error(
        "the steering program cannot leave libxdp's dispatcher: {why} (xdp-loader unload DEVICE --id {number} takes it out)"
    )]
    NotLeft {
        /// The program's number.
        number: u32,
        /// The reason.
        why: String,
    },
    /// It may still join libxdp's dispatcher.
    #[error("the steering program may still join libxdp's dispatcher: {0}")]
    Undecided(String),
}

/// A table at a device. Dropping this leaves both as they are; the next [`Steering::attach`] takes them over.
#[derive(Debug)]
pub struct Steering {
    index: u32,
    is_chained: bool,
    options: Options,
    program: Program,
    live: Live,
    threads: Threads,
    /// Absent where the kernel does not let us.
    drops: Option<Drops>,
}

impl Steering {
    /// Puts a table at a device of the calling thread's network namespace. A program of a former process of this release stays with its
    /// counters, and gets the table; one of another release is replaced. Where libxdp's dispatcher is, the program joins it.
    ///
    /// # Errors
    /// See [`AttachError`]. The device stays as it was, with two exceptions. In a dispatcher without room, a former program of ours leaves
    /// first: if the new one cannot join then, the device has none. A former program that is taken over may have part of the table, as after
    /// [`Steering::update`].
    pub fn attach(device: &str, options: &Options, table: &Table) -> Result<Self, AttachError> {
        let netlink = |source| AttachError::Netlink { device: device.into(), source };
        let index = device::index(device).map_err(|error| match error.errno() {
            Some(ENODEV) => AttachError::NoDevice(device.into()),
            _ => netlink(error),
        })?;
        let there = device::found(index).map_err(netlink)?.1;
        let (ours, caller) = match &there {
            Found::Foreign(program) => {
                return Err(AttachError::Foreign { device: device.into(), program: program.clone() });
            }
            Found::Nothing => (&[][..], None),
            Found::Ours(number) => (std::slice::from_ref(number), None),
            Found::Dispatcher(dispatcher) => {
                if dispatcher.ours.is_empty() {
                    dispatcher.admits().map_err(not_joined(device, dispatcher))?;
                }
                (&dispatcher.ours[..], Some(dispatcher))
            }
        };
        if device::takes_tags_out(index).map_err(netlink)? {
            return Err(AttachError::TakesTagsOut(device.into()));
        }
        let program = load(device, options, caller)?;
        if let Some(left) = take_over(ours, &program, options)? {
            if let Some(dispatcher) = caller {
                dispatcher.leave_former(index, Some(left.number));
            }
            let live = Live::read(&left.maps)?;
            return Self::with(index, options, left, caller.is_some(), live, table);
        }
        let seed = RandomState::new().hash_one(index);
        let steering = Self::with(index, options, program, caller.is_some(), Live::new(seed), table)?;
        put(device, index, steering.program.as_fd(), &there)?;
        Ok(steering)
    }

    fn with(
        index: u32,
        options: &Options,
        program: Program,
        is_chained: bool,
        live: Live,
        table: &Table,
    ) -> Result<Self, AttachError> {
        let drops = program.maps.cpus_number().and_then(Drops::watch);
        if let Err(error) = &drops {
            tracing::info!(%error, "frames that do not fit into a CPU's queue are not counted");
        }
        let (options, threads, drops) = (options.clone(), Threads::default(), drops.ok());
        let mut steering = Self { index, is_chained, options, program, live, threads, drops };
        steering.update(table)?;
        Ok(steering)
    }

    /// Makes the table this one, without losing a frame: see `live`. Call it again with the same table when a CPU may have gone off or come
    /// back: frames for a CPU that is off stay on the CPU of the interrupt.
    ///
    /// # Errors
    /// More entries than there is room for, or the kernel refused a step: those before it are done, and another call goes on.
    pub fn update(&mut self, table: &Table) -> Result<(), AttachError> {
        let online = cpus::online(&self.options.root)?;
        let (maps, queue) = (&self.program.maps, self.options.queue);
        self.live.update(maps, table, &online, queue)?;
        for cpu in self.threads.strayed(self.live.cpus(), maps.cpus_number()?) {
            tracing::info!(cpu, "the CPU was off: its queue gets a new thread");
            maps.set_cpu(cpu, queue)?;
        }
        Ok(())
    }

    /// Whether the program is still at the device.
    ///
    /// # Errors
    /// The device is gone, or the kernel does not answer.
    pub fn is_there(&self) -> Result<bool, NetlinkError> {
        Ok(match device::found(self.index)?.1 {
            Found::Ours(number) => number == self.program.number,
            Found::Dispatcher(dispatcher) => dispatcher.ours.contains(&self.program.number),
            Found::Nothing | Found::Foreign(_) => false,
        })
    }

    /// Whether it is in libxdp's dispatcher, beside other programs.
    pub fn is_chained(&self) -> bool {
        self.is_chained
    }

    /// Returns the name of the kernel's thread that runs the stack for frames that go to this CPU, as `/proc/PID/comm` has it.
    #[cfg(test)]
    pub(crate) fn thread_name(&self, cpu: usize) -> String {
        crate::threads::name(cpu, self.program.maps.cpus_number().unwrap())
    }

    /// Reads the counters.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn counters(&self) -> Result<Counters, AttachError> {
        let maps = &self.program.maps;
        let mut counters = Counters::default();
        for (name, value) in self.live.entries() {
            let received_on = by_cpu(&maps.read_counter(value.counter)?);
            counters.entries.insert(name.into(), EntryCount { cpu: value.cpu, received_on });
        }
        let cpus = libbpf_rs::num_possible_cpus().map_err(failed("count CPUs"))?;
        for cpu in 0..cpus {
            let spread: Count = maps.read_spread_to(cpu)?.into_iter().sum();
            let sent: Count = maps.read_sent(cpu)?.into_iter().chain([spread]).sum();
            let both = [(&mut counters.spread_to, spread), (&mut counters.sent, sent)];
            for (by_cpu, count) in both.into_iter().filter(|(_, count)| count.frames != 0) {
                by_cpu.insert(cpu, count);
            }
        }
        if let Some(drops) = &self.drops {
            let mut dropped = std::collections::BTreeMap::new();
            for cpu in 0..cpus {
                let frames = drops.of(cpu)?;
                if frames != 0 {
                    dropped.insert(cpu, frames);
                }
            }
            counters.dropped = Some(dropped);
        }
        // In the order of `enum outcome`.
        let outcome = |which| Ok::<_, MapError>(by_cpu(&maps.read_outcome(which)?));
        counters.outcomes = Outcomes {
            matched: outcome(0)?,
            spread: outcome(1)?,
            unmatched: outcome(2)?,
            no_target: outcome(3)?,
            fragment: outcome(4)?,
            truncated: outcome(5)?,
            unknown: outcome(6)?,
        };
        Ok(counters)
    }

    /// Takes the program away. Frames then stay on the CPU of the interrupt; those that wait for a CPU are still taken by it. Other programs
    /// of a dispatcher stay.
    ///
    /// # Errors
    /// The kernel refused, or the program cannot leave its dispatcher. That another program is there, or the device is gone, is no error.
    pub fn detach(self) -> Result<(), DetachError> {
        remove(self.index, Some(self.program.number)).map(drop)
    }
}

/// Takes a program of ours away that a former process left, if one is there; whether there was one.
///
/// # Errors
/// The kernel refused, or it cannot leave its dispatcher.
pub fn detach_left(device: &str) -> Result<bool, DetachError> {
    match device::index(device) {
        Err(error) if error.errno() == Some(ENODEV) => Ok(false),
        index => remove(index?, None),
    }
}

/// Removes the steering program with this number, or any; whether there was one.
fn remove(index: u32, which: Option<u32>) -> Result<bool, DetachError> {
    let is_meant = |number: u32| which.is_none_or(|which| which == number);
    let there = match device::found(index) {
        Err(error) if error.errno() == Some(ENODEV) => return Ok(false),
        found => found?.1,
    };
    match there {
        Found::Ours(number) if is_meant(number) => {
            let program = libbpf_rs::Program::fd_from_id(number).map_err(io::Error::other);
            device::detach(index, program.map_err(NetlinkError::from)?.as_fd())?;
            Ok(true)
        }
        Found::Dispatcher(Dispatcher { ours, .. }) => {
            let meant: Vec<u32> = ours.into_iter().filter(|number| is_meant(*number)).collect();
            if meant.is_empty()
                && let Some(why) = libxdp::undecided()
            {
                return Err(DetachError::Undecided(why));
            }
            for number in meant.iter().copied() {
                let left = dispatcher::leave(index, number);
                left.map_err(|why| DetachError::NotLeft { number, why })?;
            }
            Ok(!meant.is_empty())
        }
        Found::Ours(..) | Found::Nothing | Found::Foreign(_) => Ok(false),
    }
}

/// Loads a program without entries, for a device or to be called by this dispatcher.
fn load(device: &str, options: &Options, caller: Option<&Dispatcher>) -> Result<Program, AttachError> {
    let Some(dispatcher) = caller else { return Ok(Program::load(options.entries, None)?) };
    let loaded = libbpf_rs::Program::fd_from_id(dispatcher.number)
        .map_err(failed("open the dispatcher"))
        .and_then(|caller| Program::load(options.entries, Some(caller.as_fd())));
    loaded.map_err(|error| not_joined(device, dispatcher)(error.to_string()))
}

/// Opens a program that a former process left, if one has the same instructions as this one, and the room.
fn take_over(left: &[u32], program: &Program, options: &Options) -> Result<Option<Program>, MapError> {
    for number in left {
        let left = Program::open(*number)?;
        let is_fit = |left: &Program| left.tag == program.tag && left.maps.capacity() >= options.entries;
        if let Some(left) = left.filter(is_fit) {
            return Ok(Some(left));
        }
    }
    Ok(None)
}

/// Puts a program at a device that has none, into its dispatcher, or in the place of ours.
fn put(device: &str, index: u32, program: BorrowedFd<'_>, there: &Found) -> Result<(), AttachError> {
    let put = match there {
        Found::Dispatcher(dispatcher) => {
            return dispatcher.join(index, program).map_err(not_joined(device, dispatcher));
        }
        Found::Ours(number) => {
            let former = libbpf_rs::Program::fd_from_id(*number).map_err(failed("open a program"))?;
            device::attach(index, program, Some(former.as_fd()))
        }
        // The kernel refuses if there is another one.
        Found::Nothing | Found::Foreign(_) => device::attach(index, program, None),
    };
    put.map_err(|source| match (source.errno(), device::found(index)) {
        (Some(EBUSY | EEXIST), Ok((_, Found::Foreign(program)))) => {
            AttachError::Foreign { device: device.into(), program }
        }
        (Some(EOPNOTSUPP), _) => AttachError::NoXdp { device: device.into(), source },
        _ => AttachError::Netlink { device: device.into(), source },
    })
}

fn not_joined(device: &str, dispatcher: &Dispatcher) -> impl Fn(String) -> AttachError {
    let (device, program) = (device.to_owned(), dispatcher.as_foreign());
    move |why| AttachError::NotJoined { device: device.clone(), program: program.clone(), why }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_foreign_program_is_named_with_what_to_do() {
        let text = |name: Option<&str>| {
            let program = Foreign { number: 7, name: name.map(Into::into) };
            AttachError::Foreign { device: "eth0".into(), program }.to_string()
        };
        assert!(text(Some("plain_nic")).contains("remove eth0 from steer, or give the uplink another kind"));
        let other = text(Some("filter"));
        assert!(other.ends_with(
            "bpftool prog show id 7 tells more of it, and ip link set eth0 xdp off would remove it"
        ));
        assert!(text(None).contains("of an unknown name (number 7)"));
    }
}
