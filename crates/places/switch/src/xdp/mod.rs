//! AF_XDP sockets of a plain NIC: made here, since the switch may not, and handed to it.
//!
//! ```text
//!  device ─▶ plain_nic.bpf.c: VLANs of the contract ─┬▶ socket of the queue and the uplink's worker ─▶ switch
//!                └─ all others ─▶ kernel             └▶ socket of the queue and a vNIC's worker ──▶ switch
//! ```
//!
//! A queue has a socket for each worker of the switch, and a memory for all of them, which the kernel pins when it is registered. The program is at
//! the device as long as its link is open, here or in the switch.
//!
//! - [`queue`]: the sockets of a queue
//! - [`program`]: the program
//! - [`direct`]: the table of vNICs of other workers

pub(crate) mod direct;
pub(crate) mod program;
pub(crate) mod queue;

use crate::device;
use direct::Direct;
use program::{Loaded, Maps};
use queue::{QUEUES, Queue};
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use tidegate_contract::Uplink;
use tidegate_switch::link::nic::xdp::form::{Form, MOST};
use tidegate_switch::stats::arms::UPLINK_NAME;

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
    let is_long = uplink.name.len() > UPLINK_NAME;
    let each = if is_long { 1 } else { workers.clamp(1, MOST) };
    let mut note = (workers > MOST).then(|| {
        format!(
            "{} of {workers} workers get their frames by others: a queue has at most {MOST} sockets",
            workers - MOST
        )
    });
    if is_long && workers > 1 {
        note = Some(format!(
            "only one worker receives, for all others: the uplink's name has more than {UPLINK_NAME} bytes"
        ));
    }
    let queues = match open_queues(index, each).map_err(of_queue)? {
        Some(queues) => queues,
        None => {
            note = Some(format!(
                "only one worker receives, for all others: {device} has more than {} queues, and sockets of {each} workers for each \
                 would be more than {SOCKETS}",
                SOCKETS / each
            ));
            open_queues(index, 1).map_err(of_queue)?.unwrap_or_default()
        }
    };
    let (sockets, memories): (Vec<_>, Vec<_>) =
        queues.into_iter().map(|Queue { sockets, memory }| (sockets, memory)).unzip();
    let attached = Loaded::new(&device::vlans(uplink), &sockets)
        .and_then(|loaded| Ok((patient(|| loaded.attach(index))?, loaded.maps()?)));
    let (program, maps) = attached.map_err(|error| explain("the XDP program", error))?;
    let sockets = sockets.into_iter().flatten().collect();
    Ok(Xdp { sockets, memories, program, direct: Direct::of(maps), note })
}

/// Makes `each` sockets for each queue of a device; `None` if these are too many.
///
/// # Errors
/// The number of a queue, and why it has none.
fn open_queues(index: u32, each: usize) -> Result<Option<Vec<Queue>>, (u32, io::Error)> {
    let form = Form::new(each).ok_or((0, io::ErrorKind::InvalidInput.into()))?;
    let mut queues = vec![];
    for queue in 0..QUEUES {
        match patient(|| queue::open(index, queue, form)) {
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
