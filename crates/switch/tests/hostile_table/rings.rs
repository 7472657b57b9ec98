//! Faults in a ring.

use crate::scene::{
    Case,
    Costs::{Connection, Frame, Nothing},
    Kept,
    Layout::{Both, Packed, Split},
    Scene, case,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tidegate_frontend::driver::Buffer;
use tidegate_frontend::front_end::{FrontEnd, INDIRECT_DESC, Options};
use tidegate_frontend::memory::SharedMemory;

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
const NOWHERE: u64 = 1 << 40;
const OUTSIDE: &str = "are not in the guest's memory";

const TX: usize = 1;
const RX: usize = 0;

fn tx(scene: &mut Scene, lie: impl FnOnce(&mut FrontEnd)) -> Kept {
    let mut front = scene.connect();
    lie(&mut front);
    Box::new(front)
}

/// Uses up the honest buffers, then sends a frame for the lie's buffer.
fn rx(scene: &mut Scene, lie: impl FnOnce(&mut FrontEnd)) -> Kept {
    let mut front = scene.connect_with(Options { queue_size: 16, ..Options::default() });
    scene.send_to_liar(16);
    scene.host.until(|| scene.peer.front.in_flight(0) == 0);
    lie(&mut front);
    scene.send_to_liar(1);
    Box::new(front)
}

/// Makes one descriptor of virtqueue `index` available, unchecked.
fn offer(front: &mut FrontEnd, index: usize, addr: u64, len: u32, flags: u16, next: u16) {
    front.ring(index).offer_raw(addr, len, flags, next);
    front.kick(index).unwrap();
}

fn offer_table(front: &mut FrontEnd, index: usize, entries: &[(u64, u32, u16, u16)]) {
    let at = front.memory().alloc(16 * entries.len() as u64, 16);
    let ring = front.ring(index);
    for (i, (addr, len, flags, next)) in (0..).zip(entries) {
        ring.write_raw_desc(at, i, *addr, *len, *flags, *next);
    }
    offer(front, index, at, 16 * entries.len() as u32, INDIRECT, 0);
}

fn jump(front: &mut FrontEnd, index: usize, by: u16) {
    let memory = front.memory().clone();
    let word = memory.word(front.ring(index).avail_addr() + 2);
    word.store(word.load(Ordering::Relaxed).wrapping_add(by), Ordering::Release);
    front.kick(index).unwrap();
}

fn scribble(front: &mut FrontEnd, index: usize, byte: u8) {
    let memory = front.memory().clone();
    let ring = front.ring(index);
    let size = usize::from(ring.size());
    memory.write(ring.desc_addr(), &vec![byte; 16 * size]);
    let (avail, used) = match ring {
        tidegate_frontend::driver::DriverQueue::Split(_) => (6 + 2 * size, 6 + 8 * size),
        tidegate_frontend::driver::DriverQueue::Packed(_) => (4, 4),
    };
    memory.write(ring.avail_addr(), &vec![byte; avail]);
    memory.write(ring.used_addr(), &vec![byte; used]);
    front.kick(index).unwrap();
}

/// Sends frames for at most `time`, while a second CPU of the guest applies `change` to each descriptor.
fn rewriting(scene: &mut Scene, time: Duration, change: fn(&SharedMemory, u64, u64)) -> Kept {
    let frame = [&[0; 12][..], &scene.frame(&[5; 1000])].concat();
    let mut front = scene.connect();
    let memory = front.memory().clone();
    let (at, size) = (front.ring(TX).desc_addr(), u64::from(front.ring(TX).size()));
    let done = Arc::new(AtomicBool::new(false));
    let stop = done.clone();
    let other = std::thread::spawn(move || {
        let mut n = 0u64;
        while !stop.load(Ordering::Relaxed) {
            change(&memory, at + 16 * (n % size), n);
            n += 1;
        }
    });
    let thrown_out = scene.liar().thrown_out;
    let start = Instant::now();
    while start.elapsed() < time && scene.liar().thrown_out == thrown_out {
        if front.ring(TX).free() > 128 {
            front.send_batch(0, std::iter::repeat_n(&frame[..], 64));
        }
        while scene.peer.try_receive().is_some() {}
        let _ = front.in_flight(0);
    }
    done.store(true, Ordering::Relaxed);
    other.join().unwrap();
    Box::new(front)
}

fn split_only() -> Vec<Case> {
    let ring = |text| Connection("ring", text);
    vec![
        case("descriptor that is its own next", Split, ring("a loop"), |s| {
            tx(s, |f| offer(f, TX, 0, 0, NEXT, 0))
        }),
        case("loop of two descriptors", Split, ring("a loop"), |s| {
            tx(s, |f| {
                let desc = f.ring(TX).desc_addr();
                f.ring(TX).write_raw_desc(desc, 1, 0, 0, NEXT, 0);
                offer(f, TX, 0, 0, NEXT, 1);
            })
        }),
        case("loop in an indirect table", Split, ring("a loop"), |s| {
            tx(s, |f| offer_table(f, TX, &[(0, 0, NEXT, 1), (0, 0, NEXT, 0)]))
        }),
        case("loop of buffers that hold something", Split, Frame("too_scattered"), |s| {
            tx(s, |f| offer(f, TX, 0, 1, NEXT, 0))
        }),
        case("indirect table inside an indirect table", Split, ring("refers to another"), |s| {
            tx(s, |f| offer_table(f, TX, &[(0, 16, INDIRECT, 0)]))
        }),
        case("next descriptor beyond the table", Split, ring("next descriptor 60000"), |s| {
            tx(s, |f| offer(f, TX, 0, 100, NEXT, 60_000))
        }),
        case("next beyond an indirect table, within the ring", Split, ring("next descriptor 2 of 2"), |s| {
            tx(s, |f| offer_table(f, TX, &[(0, 1, NEXT, 2), (0, 1, 0, 0)]))
        }),
        case("head beyond the table", Split, ring("names descriptor 60000"), |s| {
            tx(s, |f| {
                let memory = f.memory().clone();
                memory.word(f.ring(TX).avail_addr() + 4).store(60_000, Ordering::Release);
                jump(f, TX, 1);
            })
        }),
        case("available index far ahead", Split, ring("available index"), |s| tx(s, |f| jump(f, TX, 1000))),
        case("available index backwards", Split, ring("available index"), |s| tx(s, |f| jump(f, TX, 65_535))),
        case("same head available twice, in flight", Split, Nothing, |s| {
            let frame = crate::harness::udp(s.stuck.mac(), s.vnic.mac.0, b"twice");
            let mut front = s.connect();
            let at = front.memory().alloc(2048, 64);
            front.memory().write(at, &[&[0; 12][..], &frame].concat());
            for _ in 0..2 {
                offer(&mut front, TX, at, 12 + frame.len() as u32, 0, 0);
            }
            Box::new(front)
        }),
        case("used index overwritten by the driver", Split, Nothing, |s| {
            tx(s, |f| {
                let memory = f.memory().clone();
                memory.word(f.ring(TX).used_addr() + 2).store(4711, Ordering::Release);
                f.kick(TX).unwrap();
            })
        }),
        case("all ones in all of a ring", Split, ring("available index"), |s| {
            tx(s, |f| scribble(f, TX, 0xff))
        }),
        case("receive: available index far ahead", Split, ring("available index"), |s| {
            rx(s, |f| jump(f, RX, 1000))
        }),
        case("receive: descriptor that is its own next", Split, ring("a loop"), |s| {
            rx(s, |f| offer(f, RX, 0, 0, NEXT | WRITE, 0))
        }),
    ]
}

fn packed_only() -> Vec<Case> {
    let ring = |text| Connection("ring", text);
    vec![
        case("chain through all of the ring", Packed, ring("a loop, or longer"), |s| {
            tx(s, |f| {
                let ring = f.ring(TX);
                for slot in 0..ring.size() {
                    ring.write_raw_desc(ring.desc_addr(), slot, 0, 0, NEXT, 0);
                }
                offer(f, TX, 0, 0, NEXT, 0);
            })
        }),
        case("buffer id beyond the ring", Packed, ring("buffer id 60000"), |s| {
            tx(s, |f| offer(f, TX, 0, 100, 0, 60_000))
        }),
        case("buffer id of a chain in flight", Packed, ring("is in flight already"), |s| {
            let frame = crate::harness::udp(s.stuck.mac(), s.vnic.mac.0, b"twice");
            let mut front = s.connect();
            let at = front.memory().alloc(2048, 64);
            front.memory().write(at, &[&[0; 12][..], &frame].concat());
            for _ in 0..2 {
                offer(&mut front, TX, at, 12 + frame.len() as u32, 0, 7);
            }
            Box::new(front)
        }),
        case("wrap counter that lies", Packed, Nothing, |s| {
            tx(s, |f| {
                let (desc, size) = (f.ring(TX).desc_addr(), f.ring(TX).size());
                for slot in 0..size {
                    f.ring(TX).write_raw_desc(desc, slot, 0, 100, 1 << 7 | 1 << 15, slot);
                }
                f.kick(TX).unwrap();
            })
        }),
        case("all ones in all of a ring", Packed, Nothing, |s| tx(s, |f| scribble(f, TX, 0xff))),
        case("receive: buffer id beyond the ring", Packed, ring("buffer id 16"), |s| {
            rx(s, |f| offer(f, RX, 0, 2048, WRITE, 16))
        }),
    ]
}

fn either_layout() -> Vec<Case> {
    let ring = |text| Connection("ring", text);
    vec![
        case("address outside memory", Both, ring(OUTSIDE), |s| tx(s, |f| offer(f, TX, NOWHERE, 100, 0, 0))),
        case("address and length that wrap", Both, ring(OUTSIDE), |s| {
            tx(s, |f| offer(f, TX, u64::MAX - 10, 100, 0, 0))
        }),
        case("address astride the end of memory", Both, ring(OUTSIDE), |s| {
            tx(s, |f| {
                let end = f.memory().size();
                offer(f, TX, end - 50, 100, 0, 0);
            })
        }),
        case("length of 4 GiB less a byte", Both, ring("chain"), |s| {
            tx(s, |f| offer(f, TX, 0, u32::MAX, 0, 0))
        }),
        case("buffer of no bytes", Both, Frame("malformed"), |s| tx(s, |f| offer(f, TX, 0, 0, 0, 0))),
        case("buffer shorter than its virtio header", Both, Frame("malformed"), |s| {
            tx(s, |f| offer(f, TX, 0, 11, 0, 0))
        }),
        case("writable buffer to transmit", Both, ring("device-writable"), |s| {
            tx(s, |f| offer(f, TX, 0, 100, WRITE, 0))
        }),
        case("INDIRECT and NEXT in one descriptor", Both, ring("both INDIRECT and NEXT"), |s| {
            tx(s, |f| offer(f, TX, 0, 16, INDIRECT | NEXT, 0))
        }),
        case("indirect table outside memory", Both, ring(OUTSIDE), |s| {
            tx(s, |f| offer(f, TX, NOWHERE, 160, INDIRECT, 0))
        }),
        case("indirect table astride the end of memory", Both, ring(OUTSIDE), |s| {
            tx(s, |f| {
                let end = f.memory().size();
                offer(f, TX, end - 16, 32, INDIRECT, 0);
            })
        }),
        case("indirect table of one and a half entries", Both, ring("positive multiple of 16"), |s| {
            tx(s, |f| offer(f, TX, 0, 24, INDIRECT, 0))
        }),
        case("indirect table of no entries", Both, ring("positive multiple of 16"), |s| {
            tx(s, |f| offer(f, TX, 0, 0, INDIRECT, 0))
        }),
        case("indirect though not negotiated", Both, ring("not negotiated"), |s| {
            let features = Options::default().features & !INDIRECT_DESC;
            let mut front = s.connect_with(Options { features, ..Options::default() });
            offer(&mut front, TX, 0, 16, INDIRECT, 0);
            Box::new(front)
        }),
        case("chain of more buffers than a frame may have", Both, Frame("too_scattered"), |s| {
            tx(s, |f| {
                let chain: Vec<_> = (0..100).map(|i| Buffer::readable(i * 4, 4)).collect();
                f.ring(TX).add_indirect(&chain).unwrap();
                let _ = f.ring(TX).publish();
                f.kick(TX).unwrap();
            })
        }),
        case("lengths rewritten while they are read", Both, Nothing, |s| {
            rewriting(s, Duration::from_millis(150), |memory, desc, n| {
                memory.write(desc + 8, &(60 + 900 * (n as u32 & 1)).to_le_bytes());
            })
        }),
        case("addresses rewritten while they are read", Both, ring(OUTSIDE), |s| {
            // Until the worker reads a changed address.
            rewriting(s, Duration::from_secs(8), |memory, desc, n| {
                memory.write(desc + 4, &(0xffu32 * (n as u32 & 1)).to_le_bytes());
            })
        }),
        case("all zeros in all of a running ring", Both, Nothing, |s| tx(s, |f| scribble(f, TX, 0))),
        case("receive: buffer outside memory", Both, ring(OUTSIDE), |s| {
            rx(s, |f| offer(f, RX, NOWHERE, 2048, WRITE, 0))
        }),
        case("receive: readable buffer", Both, ring("device-readable"), |s| {
            rx(s, |f| offer(f, RX, 0, 2048, 0, 0))
        }),
        case("receive: buffer of a byte", Both, Frame("unacceptable"), |s| {
            rx(s, |f| {
                for n in 0..8 {
                    offer(f, RX, 0, 1, WRITE, n);
                }
            })
        }),
        case("receive: merged buffers shorter than a header", Both, Frame("unacceptable"), |s| {
            rx(s, |f| {
                while f.ring(RX).reap().is_some() {}
                let at = f.memory().alloc(16 * 11 + 500, 16);
                for n in 0..16 {
                    // Only the first holds a header, but not the frame.
                    let buffer = Buffer::writable(at + 11 * n, if n == 0 { 500 } else { 11 });
                    f.ring(RX).add(&[buffer]).unwrap();
                }
                let _ = f.ring(RX).publish();
                f.kick(RX).unwrap();
            })
        }),
        case("receive: a thousand buffers of a header's length", Both, Nothing, |s| {
            let options = Options { queue_size: 1024, buffer_size: 12, ..Options::default() };
            let mut front = s.connect_with(options);
            let (start, mut frames) = (Instant::now(), 0);
            while start.elapsed() < Duration::from_millis(100) {
                let room = 64 - s.peer.front.in_flight(0).min(64);
                s.send_to_liar(room);
                frames += std::iter::from_fn(|| front.receive(0)).count();
            }
            assert!(frames > 0);
            Box::new(front)
        }),
        case("receive: no buffers, ever", Both, Frame("held_too_long"), |s| rx(s, |_| {})),
    ]
}

pub fn cases() -> Vec<Case> {
    [split_only(), packed_only(), either_layout()].concat()
}
