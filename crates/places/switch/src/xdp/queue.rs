//! The sockets of a queue, and their memory.
//!
//! ```text
//!  memory ─ registered ─▶ first socket, the owner's: free and sent chunks, frames to send, received frames
//!                             └ shared by further sockets of the queue: received frames
//! ```

use crate::options::set_bytes;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use tidegate_switch::link::nic::xdp::form::{CHUNK, ENTRIES, Form};

/// Most queues of a device: `QUEUES` of `plain_nic.bpf.c`.
pub(crate) const QUEUES: u32 = 64;

/// The sockets of a queue, the owner's first, and their memory.
pub(crate) struct Queue {
    pub(crate) sockets: Vec<OwnedFd>,
    pub(crate) memory: OwnedFd,
}

/// How frames come into the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// The device writes them there. Such a queue has one socket.
    ZeroCopy,
    /// The kernel copies them.
    Copy,
}

/// Whether the driver refuses a mode, or there is no such queue.
pub(crate) fn is_refused(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL))
}

/// Makes them for a queue of a device.
///
/// # Errors
/// There is no such queue (`EINVAL`), the driver cannot do without copies ([`is_refused`]), another program has the queue (`EBUSY`), or the kernel's
/// reason.
pub(crate) fn open(index: u32, queue: u32, form: Form, mode: Mode) -> io::Result<Queue> {
    let (first, memory) = first(index, queue, form, mode)?;
    let mut sockets = vec![first];
    for place in 1..form.sockets() {
        let socket = socket()?;
        entries(&socket, libc::XDP_RX_RING, form.entries(place))?;
        // With the first one's mode.
        bind(&socket, index, queue, libc::XDP_SHARED_UMEM, Some(&sockets[0]))?;
        sockets.push(socket);
    }
    Ok(Queue { sockets, memory })
}

fn first(index: u32, queue: u32, form: Form, mode: Mode) -> io::Result<(OwnedFd, OwnedFd)> {
    let socket = socket()?;
    let memory = rustix::fs::memfd_create("umem", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&memory, form.memory() as u64)?;
    rustix::fs::fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    register(&socket, &memory, form.memory())?;
    entries(&socket, libc::XDP_UMEM_FILL_RING, form.to_receive())?;
    for ring in [libc::XDP_UMEM_COMPLETION_RING, libc::XDP_RX_RING, libc::XDP_TX_RING] {
        entries(&socket, ring, ENTRIES)?;
    }
    let mode = match mode {
        Mode::ZeroCopy => libc::XDP_ZEROCOPY,
        Mode::Copy => libc::XDP_COPY,
    };
    bind(&socket, index, queue, mode | libc::XDP_USE_NEED_WAKEUP, None)?;
    Ok((socket, memory))
}

fn socket() -> io::Result<OwnedFd> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    Ok(socket_with(AddressFamily::from_raw(libc::AF_XDP as u16), SocketType::RAW, flags, None)?)
}

fn entries(socket: &OwnedFd, ring: libc::c_int, count: u32) -> io::Result<()> {
    set_bytes(socket, libc::SOL_XDP, ring, &count.to_ne_bytes())
}

/// Registers the memory: the kernel keeps it for the socket.
fn register(socket: &OwnedFd, memory: &OwnedFd, len: usize) -> io::Result<()> {
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
    let rights = ProtFlags::READ | ProtFlags::WRITE;
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

/// Binds a socket to a queue; one `with` whose memory it uses is bound there already.
fn bind(socket: &OwnedFd, index: u32, queue: u32, flags: u16, with: Option<&OwnedFd>) -> Result<(), Errno> {
    let address = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: flags,
        sxdp_ifindex: index,
        sxdp_queue_id: queue,
        sxdp_shared_umem_fd: with.map_or(0, |with| with.as_raw_fd() as u32),
    };
    let len = size_of::<libc::sockaddr_xdp>() as libc::socklen_t;
    // SAFETY: the kernel reads `len` bytes of `address`, which lives longer than the call.
    match unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) } {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

/// Returns the frames that a socket lost: without room in its ring, and without a chunk.
///
/// # Errors
/// It is no AF_XDP socket.
pub(crate) fn lost(socket: &OwnedFd) -> io::Result<(u64, u64)> {
    // struct xdp_statistics: dropped, invalid twice, ring full, and more.
    let mut numbers = [0_u64; 6];
    let mut len = size_of_val(&numbers) as libc::socklen_t;
    let (level, name) = (libc::SOL_XDP, libc::XDP_STATISTICS);
    // SAFETY: the kernel writes at most `len` bytes into `numbers`.
    let done =
        unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, (&raw mut numbers).cast(), &raw mut len) };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    let [dropped, _, _, ring_full, ..] = numbers;
    Ok((ring_full, dropped))
}
