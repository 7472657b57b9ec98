//! Guests that lie: a lie costs its guest the connection or the frame, and other ports nothing.

mod harness;

use harness::frames::*;
use harness::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tidegate_evidence::Connection;
use tidegate_frontend::driver::Buffer;
use tidegate_frontend::front_end::{FrontEnd, Options};

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// Makes one descriptor of virtqueue `index` available, unchecked.
fn offer(front: &mut FrontEnd, index: usize, addr: u64, len: u32, flags: u16, next: u16) {
    front.ring(index).offer_raw(addr, len, flags, next);
    front.kick(index).unwrap();
}

fn jump(front: &mut FrontEnd, index: usize, by: u16) {
    let memory = front.memory().clone();
    let word = memory.word(front.ring(index).avail_addr() + 2);
    word.store(word.load(Ordering::Relaxed).wrapping_add(by), Ordering::Release);
    front.kick(index).unwrap();
}

fn endless(front: &mut FrontEnd, index: usize) {
    let ring = front.ring(index);
    for slot in 0..ring.size() {
        ring.write_raw_desc(ring.desc_addr(), slot, 0, 0, NEXT, 0);
    }
    offer(front, index, 0, 0, NEXT, 0);
}

type Lie = (&'static str, fn(&mut FrontEnd));

#[test]
fn a_ring_that_lies_costs_its_port_the_connection_and_others_nothing() {
    let mut lies: Vec<Lie> = vec![
        ("an address nowhere", |f| offer(f, 1, 1 << 40, 100, 0, 0)),
        ("an address at the end of all", |f| offer(f, 1, u64::MAX - 10, 100, 0, 0)),
        ("a buffer to write in a transmit queue", |f| offer(f, 1, 0, 100, WRITE, 0)),
        ("a table nowhere", |f| offer(f, 1, 1 << 40, 160, INDIRECT, 0)),
    ];
    let split_ones: [Lie; 4] = [
        ("a loop without end", |f| offer(f, 1, 0, 0, NEXT, 0)),
        ("a descriptor beyond the table", |f| offer(f, 1, 0, 100, NEXT, 60_000)),
        ("an index far ahead", |f| jump(f, 1, 1000)),
        ("an index that runs backwards", |f| jump(f, 1, 65_535)),
    ];
    let packed_ones: [Lie; 2] = [
        ("a chain without end", |f| endless(f, 1)),
        ("a buffer id beyond the ring", |f| offer(f, 1, 0, 100, 0, 60_000)),
    ];
    lies.extend(if packed() { &packed_ones[..] } else { &split_ones });
    for workers in [1, 2] {
        let host = TestSwitch::new(workers);
        // FIFO loses none of the frames above the limit.
        let limited = "tx = { max = \"50mbit\" }\nqueueing = \"fifo\"";
        let mut a = host.guest_with(&vnic("a", 1, limited), ring(1024));
        let mut b = host.guest_with(&vnic("b", 2, ""), ring(1024));
        let mut stream = Stream::new(&a, &b);
        let liar = contract(&vnic("liar", 3, ""));
        host.add(&liar);
        for &(what, lie) in &lies {
            let mut guest = host.connect(liar.clone(), Options::default());
            let before = host.port("liar").last_error;
            guest.send(&udp(b.mac(), guest.mac(), b"still honest"));
            host.until(|| guest.front.in_flight(0) == 0);
            lie(&mut guest.front);
            host.until(|| {
                stream.send(&mut a);
                b.each(|frame| stream.check(frame));
                let port = host.port("liar");
                port.connection == Connection::Waiting && port.last_error.is_some()
            });
            let after = host.port("liar").last_error.unwrap();
            assert_ne!(before, Some(after), "{what}");
        }
        let mut guest = host.connect(liar, Options::default());
        let honest = udp(a.mac(), guest.mac(), b"an honest one at last");
        guest.send(&honest);
        assert_eq!(a.receive(), honest);
        host.until(|| {
            b.each(|frame| stream.check(frame));
            stream.is_complete()
        });
    }
}

#[test]
fn a_receive_ring_that_lies_costs_the_receiver_its_connection() {
    let lies: [Lie; 3] = [
        ("a buffer to read in a receive queue", |f| offer(f, 0, 0, 2048, 0, 0)),
        ("an address nowhere", |f| offer(f, 0, 1 << 40, 2048, WRITE, 0)),
        match packed() {
            true => ("a buffer id beyond the ring", |f| offer(f, 0, 0, 2048, WRITE, 16)),
            false => ("an index far ahead", |f| jump(f, 0, 1000)),
        },
    ];
    let host = TestSwitch::new(1);
    let mut a = host.guest(&vnic("a", 1, ""));
    let mut b = host.guest(&vnic("b", 2, ""));
    let liar = contract(&vnic("liar", 3, ""));
    host.add(&liar);
    for (what, lie) in lies {
        let mut guest = host.connect(liar.clone(), Options { queue_size: 16, ..Options::default() });
        for _ in 0..16 {
            a.send(&udp(guest.mac(), a.mac(), b"fills a buffer"));
        }
        host.until(|| a.front.in_flight(0) == 0);
        lie(&mut guest.front);
        host.until(|| {
            a.send(&udp(guest.vnic.mac.0, a.mac(), b"into the trap"));
            a.front.in_flight(0);
            host.port("liar").connection == Connection::Waiting
        });
        host.port("liar").last_error.expect(what);
        let frame = udp(b.mac(), a.mac(), b"elsewhere all is well");
        a.send(&frame);
        assert_eq!(b.receive(), frame);
    }
    let mut guest = host.connect(liar, Options::default());
    let frame = udp(guest.mac(), a.mac(), b"to an honest one");
    a.send(&frame);
    assert_eq!(guest.receive(), frame);
    host.until(|| a.front.in_flight(0) == 0);
}

#[test]
fn a_super_frame_in_as_many_parts_as_may_be_is_cut_and_delivered() {
    let host = TestSwitch::new(1);
    let options = Options {
        features: Options::default().features | SENDER,
        buffer_size: 70_000,
        queue_size: 64,
        memory_size: 32 << 20,
        ..Options::default()
    };
    let contract = "tx = { max = \"1gbit\", burst = \"4kB\" }\ndeadline = \"9s\"\nto = [\"c\"]";
    let mut a = host.guest_with(&vnic("a", 1, contract), options);
    let mut c = host.guest(&vnic("c", 9, ""));
    let kind = Kind { v6: false, tcp: true };
    let payload = pattern(20_000);
    let (header, frame) = kind.frame(c.mac(), a.mac(), &payload, 1000);
    let bytes = [&header.bytes(0)[..], &frame].concat();
    let at = a.front.memory().alloc(bytes.len() as u64, 16);
    a.front.memory().write(at, &bytes);
    // The headers and 8 bytes, then 62 single bytes, then the rest: all within the first piece.
    let first = 12 + 192 + 8;
    let mut chain = vec![Buffer::readable(at, first)];
    chain.extend((0..62).map(|i| Buffer::readable(at + u64::from(first + i), 1)));
    let begun = first + 62;
    chain.push(Buffer::readable(at + u64::from(begun), bytes.len() as u32 - begun));
    a.front.ring(1).add_indirect(&chain).unwrap();
    let _ = a.front.ring(1).publish();
    a.front.kick(1).unwrap();
    let mut got = Vec::new();
    while got.len() < payload.len() {
        got.extend(kind.complete(&c.receive()).1);
    }
    assert!(got == payload);
}

#[test]
fn a_chain_of_too_many_parts_costs_the_frame_only() {
    let host = TestSwitch::new(1);
    let mut a = host.guest(&vnic("a", 1, ""));
    let mut c = host.guest(&vnic("c", 9, ""));
    let chain: Vec<_> = (0..100).map(|i| Buffer::readable(i * 4, 4)).collect();
    a.front.ring(1).add_indirect(&chain).unwrap();
    let _ = a.front.ring(1).publish();
    a.front.kick(1).unwrap();
    host.until(|| host.stats("a").tx.dropped.get("too_scattered") == Some(&1));
    host.until(|| a.front.ring(1).reap().is_some());
    let frame = udp(c.mac(), a.mac(), b"as before");
    a.send(&frame);
    assert_eq!(c.receive(), frame);
}

#[test]
fn the_checked_bytes_are_delivered() {
    let host = TestSwitch::new(1);
    let roomy = Options { memory_size: 16 << 20, ..Options::default() };
    let mut a = host.guest_with(&vnic("a", 1, ""), roomy);
    let mut b = host.guest(&vnic("b", 2, ""));
    let good = with_header(12, [0; 12], &udp(b.mac(), a.mac(), &[7; 400]));
    let mut forged = good.clone();
    forged[12 + 6..12 + 12].copy_from_slice(&b.mac());
    let memory = a.front.memory().clone();
    let at = memory.alloc(good.len() as u64, 64);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // The guest's other CPU, which rewrites the frame all the time.
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                memory.write(at, &forged);
                std::hint::spin_loop();
                memory.write(at, &good);
                std::hint::spin_loop();
            }
        });
        let (mut delivered, start) = (0, Instant::now());
        let dropped = || host.stats("a").tx.dropped.get("source_mac").copied().unwrap_or(0);
        while (delivered < 5000 || dropped() < 100) && start.elapsed() < PATIENCE {
            while a.front.ring(1).reap().is_some() {}
            while a.front.ring(1).add(&[Buffer::readable(at, good.len() as u32)]).is_some() {}
            let _ = a.front.ring(1).publish();
            a.front.kick(1).unwrap();
            delivered +=
                b.each(|frame| assert_eq!(frame[6..12], a.vnic.mac.0, "a forged frame was delivered"));
            std::thread::sleep(Duration::from_micros(50));
        }
        done.store(true, Ordering::Relaxed);
        assert!(delivered >= 5000 && dropped() >= 100, "{delivered} delivered, {} caught", dropped());
    });
}
