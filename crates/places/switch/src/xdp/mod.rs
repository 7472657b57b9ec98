//! AF_XDP sockets of a plain NIC: made here, since the switch may not, and handed to it.
//!
//! ```text
//!  device ─▶ plain_nic.bpf.c: VLANs of the contract ─┬▶ socket of the queue and the uplink's worker ─▶ switch
//!                └─ all others ─▶ kernel             └▶ socket of the queue and a vNIC's worker ──▶ switch
//! ```
//!
//! A queue has a socket for each worker of the switch where the driver copies frames, else one, and a memory for all of them, which the kernel pins
//! when it is registered. The program is at
//! the device as long as its link is open, here or in the switch.
//!
//! - [`queue`]: the sockets of a queue
//! - `shared`: how many these are
//! - [`program`]: the program
//! - [`direct`]: the table of vNICs of other workers

pub(crate) mod direct;
pub(crate) mod program;
pub(crate) mod queue;
mod shared;

use crate::device;
use direct::Direct;
use program::{Loaded, Maps, Place};
use queue::{Mode, QUEUES, Queue};
use shared::Way;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use tidegate_contract::Uplink;
use tidegate_switch::link::nic::xdp::form::Form;

/// Most sockets of a device: with more, each queue has one.
const SOCKETS: usize = 512;
/// The kernel frees a closed socket's queue, and takes a program off, some time later.
const BUSY: (Duration, Duration) = (Duration::from_secs(2), Duration::from_millis(20));

/// What the switch gets, and what stays here.
pub(crate) struct Xdp {
    /// Those of a queue together, its owner's first.
    pub(crate) sockets: Vec<OwnedFd>,
    /// The memory of each queue.
    pub(crate) memories: Vec<OwnedFd>,
    /// The program's link to the device.
    pub(crate) program: OwnedFd,
    /// The program's table.
    pub(crate) direct: Direct,
    /// Why some workers have no sockets.
    pub(crate) note: Option<String>,
}

/// Makes the sockets of an uplink, for so many workers.
///
/// # Errors
/// The device is not as the contract needs it, or in use by others: what to do.
pub(crate) fn open(uplink: &Uplink, workers: usize) -> Result<Xdp, String> {
    let index = device::index(uplink)?;
    device::shows_all(uplink)?;
    let device = device::name_of(uplink)?;
    let explain = |what: &str, error: io::Error| {
        let hint = match error.raw_os_error() {
            Some(libc::EBUSY) => ": another program uses it (ip link show, bpftool net): end that use",
            Some(libc::EPERM | libc::EAFNOSUPPORT) => {
                " (the agent's unit needs CapabilityBoundingSet=CAP_NET_RAW and RestrictAddressFamilies=AF_XDP)"
            }
            _ => "",
        };
        format!("uplink {}: {what} of {device}: {error}{hint}", uplink.name)
    };
    let of_queue = |(queue, error)| explain(&format!("AF_XDP at queue {queue}"), error);
    let of_program = |error| explain("the XDP program", error);
    let loaded = Loaded::new(&device::vlans(uplink)).map_err(of_program)?;
    // Until it knows sockets, all frames pass to the kernel.
    let (program, by_driver) = match patient(|| loaded.attach(index, Place::Driver)) {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
            (patient(|| loaded.attach(index, Place::Kernel)).map_err(of_program)?, false)
        }
        result => (result.map_err(of_program)?, true),
    };
    let without_copies = if by_driver { zero_copy(index).map_err(of_queue)? } else { None };
    let way = match by_driver {
        true if without_copies.is_some() => Way::ZeroCopy,
        true => Way::Copy,
        false => Way::Generic,
    };
    let (each, mut note) = shared::sockets(way, &uplink.name, workers);
    let made = match without_copies {
        Some(queues) => Some(queues),
        None => open_queues(index, each, Mode::Copy).map_err(of_queue)?,
    };
    let queues = match made {
        Some(queues) => queues,
        None => {
            note = Some(format!(
                "only one worker receives, for all others: {device} has more than {} queues, and sockets of {each} workers for each \
                 would be more than {SOCKETS}",
                SOCKETS / each
            ));
            open_queues(index, 1, Mode::Copy).map_err(of_queue)?.unwrap_or_default()
        }
    };
    let (sockets, memories): (Vec<_>, Vec<_>) =
        queues.into_iter().map(|Queue { sockets, memory }| (sockets, memory)).unzip();
    let maps = loaded.send_to(&sockets).and_then(|()| loaded.maps()).map_err(of_program)?;
    let sockets = sockets.into_iter().flatten().collect();
    Ok(Xdp { sockets, memories, program, direct: Direct::of(maps), note })
}

/// Makes a socket without copies for each queue of a device; `None` if its driver always copies.
///
/// # Errors
/// The number of a queue, and why it has none.
fn zero_copy(index: u32) -> Result<Option<Vec<Queue>>, (u32, io::Error)> {
    match open_queues(index, 1, Mode::ZeroCopy) {
        Err((0, error)) if queue::is_refused(&error) => Ok(None),
        result => result,
    }
}

/// Makes `each` sockets for each queue of a device; `None` if these are too many.
///
/// # Errors
/// The number of a queue, and why it has none.
fn open_queues(index: u32, each: usize, mode: Mode) -> Result<Option<Vec<Queue>>, (u32, io::Error)> {
    let form = Form::new(each).ok_or((0, io::ErrorKind::InvalidInput.into()))?;
    let mut queues = vec![];
    for queue in 0..QUEUES {
        let made = match patient(|| queue::open(index, queue, form, mode)) {
            // The driver can do without copies at some queues only, or there is no such queue.
            Err(error) if mode == Mode::ZeroCopy && queue > 0 && queue::is_refused(&error) => {
                patient(|| queue::open(index, queue, form, Mode::Copy))
            }
            result => result,
        };
        match made {
            Ok(_) if (queues.len() + 1) * each > SOCKETS.max(each) && each > 1 => return Ok(None),
            Ok(made) => queues.push(made),
            // There is no such queue.
            Err(error) if queue > 0 && error.raw_os_error() == Some(libc::EINVAL) => break,
            Err(error) => return Err((queue, error)),
        }
    }
    Ok(Some(queues))
}

/// Finds the table of an uplink that an earlier agent made; `None` if its device has none.
pub(crate) fn find(uplink: &Uplink) -> Option<Direct> {
    let (index, socket) = (device::index(uplink).ok()?, device::datagram().ok()?);
    Some(Direct::of(Maps::at(index, std::os::fd::AsFd::as_fd(&socket))?))
}

/// Tries again while something of before is being freed.
fn patient<T>(mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let (most, pause) = BUSY;
    let end = Instant::now() + most;
    loop {
        match attempt() {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) && Instant::now() < end => {
                std::thread::sleep(pause);
            }
            result => return result,
        }
    }
}
