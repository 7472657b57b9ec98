//! What a front end can do to the memory that it shares.

use crate::harness::{udp, with_header};
use crate::scene::{
    Case,
    Costs::{self, Connection, Nothing},
    Kept,
    Layout::{Both, Packed, Split},
    Scene, case,
};
use rustix::fs::{FallocateFlags, fallocate, ftruncate};
use std::os::fd::AsRawFd;
use tidegate_frontend::front_end::{FrontEnd, Options};
use tidegate_frontend::memory::SharedMemory;
use vhost::{VhostBackend, VhostUserMemoryRegionInfo};

const PAGE: u64 = 4096;
const TAKEN: Costs = Connection("memory", "guest memory was taken away");

fn roomy() -> Options {
    Options { memory_size: 16 << 20, queue_size: 64, ..Options::default() }
}

/// Describes `size` bytes at guest address `at`, at `offset` in the file of `memory`.
fn region(memory: &SharedMemory, at: u64, offset: u64, size: u64) -> VhostUserMemoryRegionInfo {
    VhostUserMemoryRegionInfo {
        guest_phys_addr: at,
        memory_size: size,
        userspace_addr: memory.user_addr() + offset,
        mmap_offset: offset,
        mmap_handle: memory.fd().as_raw_fd(),
    }
}

/// Fills the transmit ring, and passes another table while the switch works on it.
fn table(
    scene: &mut Scene,
    regions: impl FnOnce(&SharedMemory) -> Vec<VhostUserMemoryRegionInfo>,
) -> FrontEnd {
    let mut front = scene.connect_with(roomy());
    let frame = with_header(12, [0; 12], &scene.frame(&[1; 1000]));
    front.send_batch(0, std::iter::repeat_n(&frame[..], 64));
    let regions = regions(&front.memory().clone());
    // The case's cost shows whether it is accepted.
    let _ = front.protocol().unwrap().set_mem_table(&regions);
    front
}

/// Offers a buffer to send or receive, and truncates the file after the buffer's first `still_there` bytes.
fn cut_buffer(scene: &mut Scene, queue: usize, still_there: u64) -> Kept {
    let mut front = scene.connect_with(Options { queue_size: 16, ..roomy() });
    if queue == 0 {
        scene.send_to_liar(16);
        scene.host.until(|| scene.peer.front.in_flight(0) == 0);
    }
    let memory = front.memory().clone();
    let page = memory.alloc(2 * PAGE, PAGE) + PAGE;
    let at = page - still_there;
    let len = if queue == 0 { 2048 } else { 1012 };
    if queue == 1 {
        let bytes = with_header(12, [0; 12], &udp(scene.peer.mac(), scene.vnic.mac.0, &[3; 958]));
        memory.write(at, &bytes);
    }
    ftruncate(memory.fd(), page).unwrap();
    const WRITE: u16 = 2;
    front.ring(queue).offer_raw(at, len, if queue == 0 { WRITE } else { 0 }, 0);
    front.kick(queue).unwrap();
    if queue == 0 {
        scene.send_to_liar(1);
    }
    Box::new(front)
}

fn cut_all(scene: &mut Scene, queue_size: u16) -> Kept {
    let mut front = scene.connect_with(Options { queue_size, ..roomy() });
    let frame = with_header(12, [0; 12], &scene.frame(&[1; 1000]));
    front.send_batch(0, std::iter::repeat_n(&frame[..], queue_size.into()));
    scene.send_to_liar(32);
    ftruncate(front.memory().fd(), 0).unwrap();
    front.kick(1).unwrap();
    // This process must not touch the memory now either.
    Box::new(front)
}

fn punch(scene: &mut Scene) -> Kept {
    let mut front = scene.connect_with(roomy());
    let frame = with_header(12, [0; 12], &scene.frame(&[1; 1000]));
    front.send_batch(0, std::iter::repeat_n(&frame[..], 32));
    scene.host.until(|| front.in_flight(0) == 0);
    let memory = front.memory().clone();
    fallocate(memory.fd(), FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, memory.size()).unwrap();
    front.kick(1).unwrap();
    Box::new(front)
}

pub fn cases() -> Vec<Case> {
    let message = |text| Connection("message", text);
    vec![
        case("memory truncated to nothing under load", Both, TAKEN, |s| cut_all(s, 256)),
        case("memory truncated to nothing, rings of 1024", Both, TAKEN, |s| cut_all(s, 1024)),
        case("memory truncated where a frame begins", Both, TAKEN, |s| cut_buffer(s, 1, 0)),
        case("memory truncated within a frame's headers", Both, TAKEN, |s| cut_buffer(s, 1, 30)),
        case("memory truncated within a frame's payload", Both, TAKEN, |s| cut_buffer(s, 1, 500)),
        case("receive: memory truncated where a buffer begins", Both, TAKEN, |s| cut_buffer(s, 0, 0)),
        case("receive: memory truncated within a buffer", Both, TAKEN, |s| cut_buffer(s, 0, 500)),
        case("memory punched out of its file", Split, Connection("ring", "available index"), punch),
        case("memory punched out of its file", Packed, Nothing, punch),
        case("table shrunk under load, rings outside", Both, message("SET_MEM_TABLE: "), |s| {
            Box::new(table(s, |m| vec![region(m, 0, 0, PAGE)]))
        }),
        case("table swapped for other memory under load", Both, message("SET_MEM_TABLE: "), |s| {
            let other = SharedMemory::new(0, 1 << 20).unwrap();
            let front = table(s, |_| vec![region(&other, 0, 0, 1 << 20)]);
            Box::new((front, other))
        }),
        case(
            "table shrunk under load, buffers outside",
            Both,
            Connection("ring", "are not in the guest's memory"),
            |s| {
                let mut front = table(s, |m| vec![region(m, 0, 0, m.size() / 2)]);
                s.host.until(|| front.in_flight(0) == 0);
                let end = front.memory().size();
                front.ring(1).offer_raw(end - 4096, 100, 0, 0);
                let _ = front.kick(1);
                Box::new(front)
            },
        ),
        case(
            "buffer astride a hole between regions",
            Both,
            Connection("ring", "are not in the guest's memory"),
            |s| {
                let mut front = table(s, |m| {
                    let half = m.size() / 2;
                    vec![region(m, 0, 0, half), region(m, half + PAGE, half + PAGE, half - PAGE)]
                });
                let half = front.memory().size() / 2;
                front.ring(1).offer_raw(half - 50, 100 + PAGE as u32, 0, 0);
                let _ = front.kick(1);
                Box::new(front)
            },
        ),
        case("buffer astride two regions side by side", Both, Nothing, |s| {
            let mut front = table(s, |m| {
                let half = m.size() / 2;
                vec![region(m, 0, 0, half), region(m, half, half, half)]
            });
            let frame = with_header(12, [0; 12], &s.frame(b"astride"));
            let at = front.memory().size() / 2 - 40;
            front.memory().write(at, &frame);
            s.peer.drain();
            front.ring(1).offer_raw(at, frame.len() as u32, 0, 0);
            front.kick(1).unwrap();
            s.host.until(|| s.peer.try_receive().is_some_and(|bytes| bytes.ends_with(b"astride")));
            Box::new(front)
        }),
        case("regions that overlap", Both, message("overlap"), |s| {
            Box::new(table(s, |m| vec![region(m, 0, 0, m.size()), region(m, PAGE, PAGE, PAGE)]))
        }),
        case("region longer than its file", Both, message("of its file, which has"), |s| {
            Box::new(table(s, |m| vec![region(m, 0, 0, m.size() + PAGE)]))
        }),
        case("region whose offset overflows", Both, message("SET_MEM_TABLE: "), |s| {
            Box::new(table(s, |m| {
                vec![VhostUserMemoryRegionInfo { mmap_offset: u64::MAX - 10, ..region(m, 0, 0, PAGE) }]
            }))
        }),
        case("region whose address overflows", Both, message("SET_MEM_TABLE: "), |s| {
            Box::new(table(s, |m| vec![region(m, u64::MAX - 10, 0, PAGE)]))
        }),
        case("region in a pipe", Both, message("not a file"), |s| {
            let (reader, writer) = std::io::pipe().unwrap();
            let front = table(s, |m| {
                vec![VhostUserMemoryRegionInfo { mmap_handle: writer.as_raw_fd(), ..region(m, 0, 0, PAGE) }]
            });
            Box::new((front, reader))
        }),
    ]
}
