//! A table at a device: attached, changed, counted, detached.

use crate::counters::{Counters, EntryCount, Outcomes, by_cpu};
use crate::cpus;
use crate::device::{self, Foreign, Found, Mode};
use crate::drops::Drops;
use crate::live::Live;
use crate::maps::{Count, MapError};
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
    /// [`Mode::Native`] unless the user asked for the other.
    pub mode: Mode,
    /// Most entries. The kernel needs about 16 bytes of each for each CPU.
    pub entries: u32,
    /// Frames that wait for a CPU at most; 1 to 16,384.
    pub queue: u32,
    /// `/`, or a recorded tree of `sys/devices/system/cpu`.
    pub root: PathBuf,
}

impl Default for Options {
    fn default() -> Self {
        Self { mode: Mode::Native, entries: 4096, queue: 2048, root: "/".into() }
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
    /// The driver cannot run XDP programs, or not now.
    #[error("{device}: the driver cannot run an XDP program: {source}{}", if *.generic { "" } else {
        ": remove it from steer; RPS and RSS remain"
    })]
    NoXdp {
        /// The device.
        device: String,
        /// Whether the mode was generic.
        generic: bool,
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
        Some("xdp_dispatcher") => format!(
            "it is libxdp's dispatcher, to which Tidegate adds no program: xdp-loader status {device} lists its programs, and \
             xdp-loader unload {device} --all would remove them"
        ),
        _ => format!(
            "bpftool prog show id {} tells more of it, and ip link set {device} xdp off would remove it",
            program.number
        ),
    }
}

/// A table at a device. Dropping this leaves both as they are; the next [`Steering::attach`] takes them over.
#[derive(Debug)]
pub struct Steering {
    index: u32,
    mode: Mode,
    options: Options,
    program: Program,
    live: Live,
    threads: Threads,
    /// Absent where the kernel does not let us.
    drops: Option<Drops>,
}

impl Steering {
    /// Puts a table at a device of the calling thread's network namespace. A program of a former process of this release stays with its
    /// counters, and gets the table; one of another release is replaced.
    ///
    /// # Errors
    /// The device stays as it was: see [`AttachError`].
    pub fn attach(device: &str, options: &Options, table: &Table) -> Result<Self, AttachError> {
        let netlink = |source| AttachError::Netlink { device: device.into(), source };
        let index = device::index(device).map_err(|error| match error.errno() {
            Some(ENODEV) => AttachError::NoDevice(device.into()),
            _ => netlink(error),
        })?;
        let foreign = |program| AttachError::Foreign { device: device.into(), program };
        let former = match device::found(index).map_err(netlink)?.1 {
            Found::Foreign(program) => return Err(foreign(program)),
            Found::Nothing => None,
            Found::Ours(number, mode) => Some((number, mode)),
        };
        if device::takes_tags_out(index).map_err(netlink)? {
            return Err(AttachError::TakesTagsOut(device.into()));
        }
        let program = Program::load(options.entries)?;
        let opened = former.map(|(number, mode)| Ok::<_, MapError>((Program::open(number)?, number, mode)));
        if let Some((Some(left), _, mode)) = opened.transpose()?
            && left.tag == program.tag
            && mode == options.mode
            && left.maps.capacity() >= options.entries
        {
            let live = Live::read(&left.maps)?;
            return Self::with(index, options, left, live, table);
        }
        let seed = RandomState::new().hash_one(index);
        let steering = Self::with(index, options, program, Live::new(seed), table)?;
        let put = match former {
            Some((number, mode)) if mode == options.mode => {
                let former =
                    libbpf_rs::Program::fd_from_id(number).map_err(crate::maps::failed("open a program"))?;
                device::attach(index, mode, steering.program.as_fd(), Some(former.as_fd()))
            }
            Some((number, mode)) => {
                // The kernel does not let one be replaced by one of the other mode.
                let former =
                    libbpf_rs::Program::fd_from_id(number).map_err(crate::maps::failed("open a program"))?;
                let detached = device::detach(index, mode, former.as_fd());
                detached.and_then(|()| device::attach(index, options.mode, steering.program.as_fd(), None))
            }
            None => device::attach(index, options.mode, steering.program.as_fd(), None),
        };
        match put {
            Ok(()) => Ok(steering),
            Err(error) => Err(match (error.errno(), device::found(index)) {
                (Some(EBUSY | EEXIST), Ok((_, Found::Foreign(program)))) => foreign(program),
                (Some(EOPNOTSUPP), _) => AttachError::NoXdp {
                    device: device.into(),
                    generic: options.mode == Mode::Generic,
                    source: error,
                },
                _ => netlink(error),
            }),
        }
    }

    fn with(
        index: u32,
        options: &Options,
        program: Program,
        live: Live,
        table: &Table,
    ) -> Result<Self, AttachError> {
        let drops = program.maps.cpus_number().and_then(Drops::watch);
        if let Err(error) = &drops {
            tracing::info!(%error, "frames that do not fit into a CPU's queue are not counted");
        }
        let mode = options.mode;
        let (options, threads, drops) = (options.clone(), Threads::default(), drops.ok());
        let mut steering = Self { index, mode, options, program, live, threads, drops };
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
        Ok(device::found(self.index)?.1 == Found::Ours(self.program.number, self.mode))
    }

    /// Makes an AF_XDP socket the target of a queue's frames for [`crate::Target::Socket`] of this number. The socket is bound to that queue
    /// of the device; when it closes, its frames go to the kernel.
    ///
    /// # Errors
    /// Queue 64 or above, worker 16 or above, or the kernel refused it.
    pub fn set_socket(&self, queue: u32, worker: u32, socket: BorrowedFd<'_>) -> Result<(), AttachError> {
        Ok(self.program.maps.set_socket(queue, worker, socket)?)
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
            counters.entries.insert(name.into(), EntryCount { target: value.target, received_on });
        }
        let cpus = libbpf_rs::num_possible_cpus().map_err(crate::maps::failed("count CPUs"))?;
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

    /// Takes the program away. Frames then stay on the CPU of the interrupt; those that wait for a CPU are still taken by it.
    ///
    /// # Errors
    /// The kernel refused. That another program is there, or the device is gone, is no error.
    pub fn detach(self) -> Result<(), NetlinkError> {
        remove(self.index, self.program.number, self.mode)
    }
}

/// Takes a program of ours away that a former process left, if one is there; whether there was one.
///
/// # Errors
/// The kernel refused.
pub fn detach_left(device: &str) -> Result<bool, NetlinkError> {
    let index = match device::index(device) {
        Err(error) if error.errno() == Some(ENODEV) => return Ok(false),
        index => index?,
    };
    match device::found(index)?.1 {
        Found::Ours(number, mode) => remove(index, number, mode).map(|()| true),
        _ => Ok(false),
    }
}

fn remove(index: u32, number: u32, mode: Mode) -> Result<(), NetlinkError> {
    let there = match device::found(index) {
        Err(error) if error.errno() == Some(ENODEV) => return Ok(()),
        found => found?.1 == Found::Ours(number, mode),
    };
    if !there {
        return Ok(());
    }
    let program = libbpf_rs::Program::fd_from_id(number).map_err(io::Error::other)?;
    device::detach(index, mode, program.as_fd())
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
        let dispatcher = text(Some("xdp_dispatcher"));
        assert!(
            dispatcher.starts_with(
                "eth0 has the XDP program xdp_dispatcher (number 7), which stays: it is libxdp's"
            )
        );
        assert!(text(Some("plain_nic")).contains("remove eth0 from steer, or give the uplink another kind"));
        let other = text(Some("filter"));
        assert!(other.ends_with(
            "bpftool prog show id 7 tells more of it, and ip link set eth0 xdp off would remove it"
        ));
        assert!(text(None).contains("of an unknown name (number 7)"));
    }
}
