//! Flows to AF_XDP sockets: two workers' sockets of one queue, which share their memory.

use super::host::{Far, NETWORK, Near, run_here};
use super::veth::{table, to_port};
use crate::device::index;
use crate::steering::{Options, Steering};
use crate::table::{Entry, Target};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use rustix::net::sockopt::{
    set_xdp_rx_ring_size, set_xdp_umem_completion_ring_size, set_xdp_umem_fill_ring_size, set_xdp_umem_reg,
    xdp_mmap_offsets,
};
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, SocketAddrXdpWithSharedUmem, XDP_PGOFF_RX_RING,
    XDP_UMEM_PGOFF_FILL_RING, XdpRingOffset, XdpUmemReg, XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};
use std::ffi::c_void;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tidegate_testkit::in_namespace;

const CHUNK: usize = 4096;
const ENTRIES: u32 = 64;

/// A ring of a socket. The socket stays as long as this does.
struct Ring {
    begin: *mut c_void,
    length: usize,
    producer: *const AtomicU32,
    descriptors: *mut u64,
}

impl Ring {
    fn map(socket: &OwnedFd, at: u64, offsets: XdpRingOffset) -> Self {
        let length = offsets.desc as usize + ENTRIES as usize * 16;
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping; the offsets are those that the kernel told for this ring.
        unsafe {
            let begin = mmap(std::ptr::null_mut(), length, rights, MapFlags::SHARED, socket, at).unwrap();
            Self {
                begin,
                length,
                producer: begin.byte_add(offsets.producer as usize).cast(),
                descriptors: begin.byte_add(offsets.desc as usize).cast(),
            }
        }
    }

    fn producer(&self) -> &AtomicU32 {
        // SAFETY: in the mapping; the kernel writes it as an atomic number.
        unsafe { &*self.producer }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping that `map` made, to which no reference is left.
        unsafe { munmap(self.begin, self.length) }.unwrap();
    }
}

fn xdp_socket() -> OwnedFd {
    let socket = socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None).unwrap();
    set_xdp_rx_ring_size(&socket, ENTRIES).unwrap();
    socket
}

#[test]
fn flows_go_to_sockets_of_the_queue_that_share_their_memory() {
    in_namespace("tests::sockets::flows_go_to_sockets_of_the_queue_that_share_their_memory", NETWORK, || {
        let near = Near::new();
        let far = Far::new(&near);
        far.run(|| run_here("ethtool", "-L far rx 1 tx 1"));
        run_here("ethtool", "-L near rx 1 tx 1");
        let to_worker =
            |name, port, worker| Entry { target: Target::Socket(worker), ..to_port(name, port, 0) };
        let entries =
            vec![to_worker("first", 5001, 0), to_worker("second", 5002, 1), to_worker("closed", 5003, 2)];
        let steering = Steering::attach("near", &Options::default(), &table(entries, [])).unwrap();
        let device = index("near").unwrap();

        // The first worker's socket has the memory, and the ring of free buffers, for both.
        let first = xdp_socket();
        let length = ENTRIES as usize * CHUNK;
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, which stays.
        let memory =
            unsafe { mmap_anonymous(std::ptr::null_mut(), length, rights, MapFlags::PRIVATE) }.unwrap();
        let register = XdpUmemReg {
            addr: memory as u64,
            len: length as u64,
            chunk_size: CHUNK as u32,
            headroom: 0,
            flags: XdpUmemRegFlags::empty(),
            tx_metadata_len: 0,
        };
        set_xdp_umem_reg(&first, register).unwrap();
        set_xdp_umem_fill_ring_size(&first, ENTRIES).unwrap();
        set_xdp_umem_completion_ring_size(&first, ENTRIES).unwrap();
        let offsets = xdp_mmap_offsets(&first).unwrap();
        let fill = Ring::map(&first, XDP_UMEM_PGOFF_FILL_RING, offsets.fr);
        for buffer in 0..ENTRIES as usize {
            // SAFETY: within the ring.
            unsafe { fill.descriptors.add(buffer).write_volatile((buffer * CHUNK) as u64) };
        }
        fill.producer().store(ENTRIES, Ordering::Release);
        bind(&first, &SocketAddrXdp::new(SocketAddrXdpFlags::XDP_COPY, device, 0)).unwrap();
        let second = xdp_socket();
        let shared = SocketAddrXdpWithSharedUmem {
            addr: SocketAddrXdp::new(SocketAddrXdpFlags::XDP_SHARED_UMEM, device, 0),
            shared_umem_fd: first.as_fd(),
        };
        bind(&second, &shared).unwrap();
        steering.set_socket(0, 0, first.as_fd()).unwrap();
        steering.set_socket(0, 1, second.as_fd()).unwrap();
        assert!(
            steering.set_socket(64, 0, first.as_fd()).is_err()
                && steering.set_socket(0, 16, first.as_fd()).is_err()
        );

        let rings = [&first, &second]
            .map(|socket| Ring::map(socket, XDP_PGOFF_RX_RING, xdp_mmap_offsets(socket).unwrap().rx));
        let received = || rings.each_ref().map(|ring| ring.producer().load(Ordering::Acquire));
        near.send(5001, &far, 20);
        near.send(5002, &far, 11);
        // Without a socket it goes to the kernel, as other flows do.
        assert_eq!(near.receive(5003, &far, 7).lost, 0);
        assert_eq!(near.receive(6000, &far, 7).lost, 0);
        let begin = Instant::now();
        while received() != [20, 11] && begin.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(received(), [20, 11]);
        let counters = steering.counters().unwrap();
        assert_eq!(counters.entries["second"].total().frames, 11);
        let no_target: u64 = counters.outcomes.no_target.values().map(|count| count.frames).sum();
        assert_eq!(no_target, 7, "{counters:?}");
        // A socket that closes is no target.
        drop((second, rings));
        let begin = Instant::now();
        while near.receive(5002, &far, 1).lost != 0 {
            assert!(begin.elapsed() < Duration::from_secs(5), "frames of a closed socket go to the kernel");
        }
        steering.detach().unwrap();
    });
}
