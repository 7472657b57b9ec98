//! AF_XDP sockets of a plain NIC: made here, since the switch may not, and handed to it.
//!
//! ```text
//!  device ─▶ plain_nic.bpf.c: VLANs of the contract ─▶ socket of the queue, its memory ─▶ switch maps both
//!                └─ all others ─▶ kernel
//! ```
//!
//! A queue has one socket with a memory of its own. The kernel pins that memory when it is registered. The program is at the device as long
//! as its link is open, here or in the switch.

use crate::device;
use crate::options::set_bytes;
use libbpf_rs::{Link, MapCore, MapFlags, ObjectBuilder};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};
use tidegate_contract::Uplink;
use tidegate_switch::link::nic::xdp::ring::{CHUNK, CHUNKS, ENTRIES};

const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/plain_nic.bpf.o"));

/// Most queues of a device: `QUEUES` of `plain_nic.bpf.c`.
const QUEUES: u32 = 64;
/// The kernel frees a closed socket's queue, and takes a program off, some time later.
const BUSY: (Duration, Duration) = (Duration::from_secs(2), Duration::from_millis(20));

/// What the switch gets.
pub(crate) struct Xdp {
    /// One for each queue.
    pub(crate) sockets: Vec<OwnedFd>,
    /// The memory of each.
    pub(crate) memories: Vec<OwnedFd>,
    /// The program's link to the device.
    pub(crate) program: OwnedFd,
}

/// Makes the sockets of an uplink.
///
/// # Errors
/// The device is not as the contract needs it, or in use by others: what to do.
pub(crate) fn open(uplink: &Uplink) -> Result<Xdp, String> {
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
    let (mut sockets, mut memories) = (vec![], vec![]);
    for queue in 0..QUEUES {
        match patient(|| open_queue(index, queue)) {
            Ok((socket, memory)) => {
                sockets.push(socket);
                memories.push(memory);
            }
            // There is no such queue.
            Err(error) if queue > 0 && error.raw_os_error() == Some(libc::EINVAL) => break,
            Err(error) => return Err(explain(&format!("AF_XDP at queue {queue}"), error)),
        }
    }
    let program = program(index, &device::vlans(uplink), &sockets);
    let program = program.map_err(|error| explain("the XDP program", error))?;
    Ok(Xdp { sockets, memories, program })
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

/// Makes the socket of a queue, and its memory.
fn open_queue(index: u32, queue: u32) -> io::Result<(OwnedFd, OwnedFd)> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::from_raw(libc::AF_XDP as u16), SocketType::RAW, flags, None)?;
    let memory = rustix::fs::memfd_create("umem", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&memory, (CHUNKS * CHUNK) as u64)?;
    rustix::fs::fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    register(&socket, &memory)?;
    for ring in
        [libc::XDP_UMEM_FILL_RING, libc::XDP_UMEM_COMPLETION_RING, libc::XDP_RX_RING, libc::XDP_TX_RING]
    {
        set_bytes(&socket, libc::SOL_XDP, ring, &ENTRIES.to_ne_bytes())?;
    }
    // Without copies where the driver can.
    match bind(&socket, index, queue, libc::XDP_ZEROCOPY) {
        Err(Errno::OPNOTSUPP | Errno::INVAL) => {
            bind(&socket, index, queue, libc::XDP_COPY)?;
            tracing::info!(device = index, queue, "AF_XDP copies frames: the driver cannot do without");
        }
        result => result?,
    }
    Ok((socket, memory))
}

/// Registers the memory: the kernel keeps it for the socket.
fn register(socket: &OwnedFd, memory: &OwnedFd) -> io::Result<()> {
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
    let (len, rights) = (CHUNKS * CHUNK, ProtFlags::READ | ProtFlags::WRITE);
    // SAFETY: a new mapping, at a place that the kernel chooses.
    let at = unsafe { mmap(std::ptr::null_mut(), len, rights, MapFlags::SHARED, memory, 0)? };
    // struct xdp_umem_reg: address, length, chunk size, headroom, flags, metadata.
    let numbers =
        [&(at as u64).to_ne_bytes()[..], &(len as u64).to_ne_bytes(), &(CHUNK as u32).to_ne_bytes()];
    let registered =
        set_bytes(socket, libc::SOL_XDP, libc::XDP_UMEM_REG, &[&numbers.concat()[..], &[0; 12]].concat());
    // SAFETY: the mapping above; nothing refers to it. The kernel holds the pages by themselves.
    unsafe { munmap(at, len)? };
    registered
}

fn bind(socket: &OwnedFd, index: u32, queue: u32, mode: u16) -> Result<(), Errno> {
    let address = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: mode | libc::XDP_USE_NEED_WAKEUP,
        sxdp_ifindex: index,
        sxdp_queue_id: queue,
        sxdp_shared_umem_fd: 0,
    };
    let len = size_of::<libc::sockaddr_xdp>() as libc::socklen_t;
    // SAFETY: the kernel reads `len` bytes of `address`, which lives longer than the call.
    match unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) } {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

/// Loads the program for these VLANs and sockets, and attaches it: by the driver if that can, else in the kernel.
fn program(index: u32, vlans: &[u16], sockets: &[OwnedFd]) -> io::Result<OwnedFd> {
    let opened = ObjectBuilder::default().open_memory(PROGRAM).map_err(of_libbpf)?;
    let object = opened.load().map_err(of_libbpf)?;
    for map in object.maps() {
        if map.name() == "vlans" {
            for vlan in vlans {
                map.update(&u32::from(*vlan).to_ne_bytes(), &[1], MapFlags::ANY).map_err(of_libbpf)?;
            }
        } else if map.name() == "sockets" {
            for (queue, socket) in (0u32..).zip(sockets) {
                let socket = socket.as_raw_fd().to_ne_bytes();
                map.update(&queue.to_ne_bytes(), &socket, MapFlags::ANY).map_err(of_libbpf)?;
            }
        }
    }
    let program = object.progs_mut().next().ok_or_else(|| io::Error::other("no program"))?;
    let index = i32::try_from(index).map_err(io::Error::other)?;
    let link: Link = patient(|| program.attach_xdp(index).map_err(of_libbpf))?;
    link.as_fd().try_clone_to_owned()
}

/// Returns the kernel's error in one of libbpf.
fn of_libbpf(error: libbpf_rs::Error) -> io::Error {
    let mut cause = std::error::Error::source(&error);
    while let Some(here) = cause {
        if let Some(code) = here.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error) {
            return io::Error::from_raw_os_error(code);
        }
        cause = here.source();
    }
    io::Error::other(format!("{error:#}"))
}
