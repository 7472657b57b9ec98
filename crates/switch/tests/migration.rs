//! Live migration: every page that the switch writes is in the dirty log (vhost-user, "Migration").

mod harness;

use harness::dirty::{Log, Pages, changed, copy, migrating, snapshot};
use harness::frames::*;
use harness::*;
use proptest::prelude::*;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tidegate_contract::{Bytes, Host, Rate};
use tidegate_evidence::Connection;
use tidegate_frontend::front_end::{FrontEnd, Options, RING_PACKED};
use tidegate_switch::virtio::log::PAGE;
use vhost::{VhostBackend, VringConfigData};

/// VHOST_VRING_F_LOG.
const LOG_USED: u32 = 1;

fn options(packed: bool) -> Options {
    let packed = if packed { RING_PACKED } else { 0 };
    migrating(Options {
        features: Options::default().features | SENDER | GUEST_CSUM | packed,
        queue_size: 128,
        buffer_size: 3000,
        ..Options::default()
    })
}

fn frame(to: [u8; 6], from: [u8; 6], len: usize, segments: bool) -> ([u8; 12], Vec<u8>) {
    if segments {
        let tcp = Kind { v6: false, tcp: true };
        let (header, frame) = tcp.frame(to, from, &pattern(len), 500);
        return (header.bytes(0), frame);
    }
    ([0; 12], udp(to, from, &pattern(len.min(1400))))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    /// Checks what an otherwise idle guest receives, and its used rings.
    #[test]
    fn every_page_that_is_written_is_in_the_log(
        packed in any::<bool>(),
        workers in 1usize..=2,
        received in prop::collection::vec((1usize..2500, any::<bool>()), 1..24),
        sent in 1usize..40,
    ) {
        let host = TestSwitch::new(workers);
        let mut a = host.guest_with(&vnic("a", 1, ""), options(false));
        let vnic_b = contract(&vnic("b", 2, ""));
        host.add(&vnic_b);
        let mut front = FrontEnd::connect(host.socket("b"), options(packed)).unwrap();
        host.until(|| host.port("b").connection == Connection::Up);
        let log = Log::new(&front, 0);
        log.start(&mut front).unwrap();

        let before = snapshot(&front);
        for (len, segments) in &received {
            let (header, frame) = frame(vnic_b.mac.0, a.mac(), *len, *segments);
            a.send_with(header, &frame);
        }
        host.until(|| host.stats("b").rx.frames == received.len() as u64 && a.front.in_flight(0) == 0);
        // Both: before a worker sleeps it enables kicks on each queue, and a stop logs that write.
        front.stop_queue(0).unwrap();
        front.stop_queue(1).unwrap();
        let (marked, written) = (log.take(), changed(&before, &front));
        prop_assert!(!written.is_empty());
        prop_assert!(written.is_subset(&marked), "not in the log: {:?}", &written - &marked);
        // The log marks only the rings, and buffers of at most 3000 bytes.
        let segments: usize = received.iter().map(|(len, cut)| if *cut { len.div_ceil(500) } else { 1 }).sum();
        prop_assert!(marked.len() <= 2 * segments + 6, "{} pages for {segments} frames", marked.len());

        // For sent frames the switch writes only the ring.
        front.enable_queue(1, false).unwrap();
        front.start_queue(1).unwrap();
        let bytes = with_header(12, [0; 12], &udp(a.mac(), vnic_b.mac.0, &pattern(700)));
        for _ in 0..sent {
            prop_assert!(front.push(0, &bytes));
        }
        front.flush(0);
        log.take();
        let before = snapshot(&front);
        front.enable_queue(1, true).unwrap();
        host.until(|| host.stats("a").rx.frames == sent as u64);
        front.stop_queue(1).unwrap();
        let (marked, written) = (log.take(), changed(&before, &front));
        prop_assert!(!written.is_empty());
        prop_assert!(written.is_subset(&marked), "not in the log: {:?}", &written - &marked);
        prop_assert!(marked.len() <= 4, "{marked:?}");

        // Logging ends while the queues run, as it began.
        front.start_queue(0).unwrap();
        front.enable_queue(0, true).unwrap();
        Log::stop(&mut front);
        let (header, frame) = frame(vnic_b.mac.0, a.mac(), 100, false);
        let seen = host.stats("b").rx.frames;
        a.send_with(header, &frame);
        host.until(|| host.stats("b").rx.frames > seen);
        prop_assert_eq!(log.take().len(), 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, failure_persistence: None, ..ProptestConfig::default() })]

    /// Migrates as QEMU does: copies all memory, then the pages written since, and at last, with the queues
    /// stopped, the rest.
    #[test]
    fn a_copy_made_while_all_goes_on_is_the_memory(
        packed in any::<bool>(),
        workers in 1usize..=2,
        paced in any::<bool>(),
        segments in any::<bool>(),
        rounds in 1usize..4,
    ) {
        let host = TestSwitch::new(workers);
        let pace = if paced { "tx = { max = \"60mbit\" }" } else { "" };
        let mut a = host.guest_with(&vnic("a", 1, pace), options(false));
        let vnic_b = contract(&vnic("b", 2, pace));
        host.add(&vnic_b);
        let mut front = FrontEnd::connect(host.socket("b"), options(packed)).unwrap();
        host.until(|| host.port("b").connection == Connection::Up);

        let (mac, peer, over) = (vnic_b.mac.0, a.mac(), AtomicBool::new(false));
        let mut flood = |over: &AtomicBool| {
            let mut len = 1;
            while !over.load(Ordering::Relaxed) {
                len = len % 2400 + 37;
                let (header, frame) = frame(mac, peer, len, segments);
                a.front.send(0, &with_header(12, header, &frame));
                a.drain();
                if len % 16 == 0 {
                    std::thread::sleep(Duration::from_micros(100));
                }
            }
        };
        let received = || host.stats("b").rx.frames;
        let result = std::thread::scope(|scope| {
            scope.spawn(|| flood(&over));
            let _ends = OnDrop(|| over.store(true, Ordering::Relaxed));
            let mut buffer = Vec::new();
            let mut work = |front: &mut FrontEnd| {
                while front.receive_into(0, &mut buffer) {}
                for _ in 0..8 {
                    front.push(0, &with_header(12, [0; 12], &udp(peer, mac, &pattern(900))));
                }
                front.flush(0);
            };
            host.until(|| {
                work(&mut front);
                received() > 200
            });
            let log = Log::new(&front, 0);
            log.start(&mut front).unwrap();
            let mut target = snapshot(&front);
            // All pages but the receive buffers, which only the switch writes.
            let buffers = front.buffers(0);
            let whole = buffers.start.div_ceil(PAGE)..buffers.end / PAGE;
            let own: Pages =
                (0..front.memory().size() / PAGE).filter(|page| !whole.contains(page)).collect();
            for _ in 0..rounds {
                let before = received();
                host.until(|| {
                    work(&mut front);
                    received() > before + 50
                });
                copy(&front, &(&log.take() | &own), &mut target);
            }
            // Only this guest stops.
            std::thread::sleep(Duration::from_millis(2));
            for queue in [0, 1] {
                front.stop_queue(queue).unwrap();
            }
            let last = log.take();
            copy(&front, &last, &mut target);
            let missing = changed(&target, &front);
            prop_assert!(missing.is_empty(), "differ: {missing:?}; last were {last:?}");
            std::thread::sleep(Duration::from_millis(2));
            prop_assert_eq!(changed(&target, &front), Pages::new());
            prop_assert_eq!(log.take(), Pages::new());
            // The rings are always among the last pages.
            prop_assert!(!last.is_empty());
            Ok(())
        });
        result?;
    }
}

/// Runs a closure at the end of a test, even of a failed one.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// VHOST_VRING_F_LOG with a translated address, which differs from the used ring's. It needs no LOG_ALL.
#[test]
fn a_used_ring_is_noted_where_the_front_end_says() {
    for packed in [false, true] {
        let host = TestSwitch::new(1);
        let mut a = host.guest_with(&vnic("a", 1, ""), options(false));
        let vnic_b = contract(&vnic("b", 2, ""));
        host.add(&vnic_b);
        let mut front = FrontEnd::connect(host.socket("b"), options(packed)).unwrap();
        host.until(|| host.port("b").connection == Connection::Up);
        let log = Log::new(&front, 0);
        log.pass(&mut front).unwrap();
        let elsewhere = front.memory().size() - PAGE;
        let mut say = |flags: u32, at: Option<u64>| {
            let memory = front.memory().clone();
            let ring = front.ring(0);
            let config = VringConfigData {
                queue_max_size: ring.size(),
                queue_size: ring.size(),
                flags,
                desc_table_addr: memory.to_user(ring.desc_addr()),
                used_ring_addr: memory.to_user(ring.used_addr()),
                avail_ring_addr: memory.to_user(ring.avail_addr()),
                log_addr: at,
            };
            front.protocol().unwrap().set_vring_addr(0, &config).map_err(|error| error.to_string())
        };
        let mut send = || {
            let seen = host.stats("b").rx.frames;
            a.send(&udp(vnic_b.mac.0, a.mac(), b"one"));
            host.until(|| host.stats("b").rx.frames > seen);
        };
        send();
        assert_eq!(log.take(), Pages::new(), "logging is off");
        say(LOG_USED, Some(elsewhere)).unwrap();
        send();
        let mut marked = Pages::new();
        host.until(|| {
            marked.extend(log.take());
            marked.contains(&(elsewhere / PAGE))
        });
        say(0, None).unwrap();
        marked.extend(log.take());
        assert!(marked.len() > 1, "{marked:?}");
        send();
        assert_eq!(log.take(), Pages::new());
        // An address for which the log has no bit.
        let beyond = log.size * 8 * PAGE;
        let refused = say(LOG_USED, Some(beyond)).is_err();
        host.until(|| host.port("b").last_error.is_some());
        let error = host.port("b").last_error.unwrap();
        assert!(error.contains("SET_VRING_ADDR: the log has bits for"), "{error}");
        assert!(refused);
    }
}

#[test]
fn a_log_that_is_too_small_is_refused_with_the_reason() {
    let host = TestSwitch::new(1);
    host.add(&contract(&vnic("b", 2, "")));
    let mut front = FrontEnd::connect(host.socket("b"), options(false)).unwrap();
    host.until(|| host.port("b").connection == Connection::Up);
    let log = Log::new(&front, 1);
    assert!(log.start(&mut front).is_err() || front.stop_queue(0).is_err(), "the connection ends");
    host.until(|| host.port("b").last_error.is_some());
    let error = host.port("b").last_error.unwrap();
    assert!(error.contains("SET_FEATURES: the log has bits for"), "{error}");
}

#[test]
fn a_log_that_is_taken_away_costs_its_port_and_nothing_else() {
    let host = TestSwitch::new(1);
    let mut a = host.guest(&vnic("a", 1, ""));
    let mut c = host.guest(&vnic("c", 3, ""));
    let vnic_b = contract(&vnic("b", 2, ""));
    host.add(&vnic_b);
    let mut front = FrontEnd::connect(host.socket("b"), options(false)).unwrap();
    host.until(|| host.port("b").connection == Connection::Up);
    let log = Log::new(&front, 0);
    log.start(&mut front).unwrap();
    rustix::fs::ftruncate(log.memory.fd(), 0).unwrap();
    a.send(&udp(vnic_b.mac.0, a.mac(), b"writes to the log"));
    host.until(|| host.port("b").last_error.is_some());
    let error = host.port("b").last_error.unwrap();
    assert!(error.contains("taken away"), "{error}");
    a.send(&udp(c.mac(), a.mac(), b"goes on"));
    c.receive();
}

/// SEND_RARP (vhost-user): requests an announcement for a silent guest.
#[test]
fn an_address_is_announced_when_the_front_end_asks() {
    let host = TestSwitch::new(1);
    let mut bridge = host.guest(&vnic("bridge", 1, "allowed = { macs = \"any\" }"));
    let vnic_b = contract(&vnic("b", 2, ""));
    host.add(&vnic_b);
    let front = FrontEnd::connect(host.socket("b"), options(false)).unwrap();
    let own = vnic_b.mac.0;
    assert_eq!(bridge.receive()[6..12], own, "when the port came up");
    let rarp = |mac: [u8; 6]| {
        let header = [19u32, 0x9, 8].map(u32::to_ne_bytes).concat();
        front.stream().unwrap().write_all(&[&header[..], &mac, &[0; 2]].concat()).unwrap();
    };
    rarp(own);
    let mut reply = [0; 20];
    front.stream().unwrap().read_exact(&mut reply).unwrap();
    assert_eq!((reply[0], reply[12..].iter().all(|byte| *byte == 0)), (19, true));
    let frame = bridge.receive();
    assert_eq!((&frame[6..12], &frame[12..14]), (&own[..], &[0x80, 0x35][..]));
    // Not for another vNIC's address: QEMU names the address that it was started with, to no effect.
    rarp([0x52, 0x54, 0, 0, 0, 1]);
    front.stream().unwrap().read_exact(&mut reply).unwrap();
    assert_eq!((reply[0], bridge.drain()), (19, 0));
    // The budget of flooded frames limits these announcements too.
    let (flood, flood_burst) = (Rate::from_bits(8_000).unwrap(), Bytes::new(600));
    host.switch.set_host(Host { flood, flood_burst, ..Host::default() }).unwrap();
    for _ in 0..50 {
        rarp(own);
        front.stream().unwrap().read_exact(&mut reply).unwrap();
        bridge.drain();
    }
    assert!(host.stats("b").tx.dropped["flood_cap"] > 0);
    assert_eq!(host.port("b").last_error, None);
}
