//! What a well-behaved front end may do.

use super::*;
use crate::vhost_user::features::{self, F_VERSION_1, NET_F_MQ, NET_F_MRG_RXBUF};
use rustix::event::{EventfdFlags, eventfd};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use tidegate_frontend::driver::Buffer;
use tidegate_frontend::front_end::{self, FrontEndError, VERSION_1};
use tidegate_frontend::memory::SharedMemory;
use vhost::VhostBackend;
use vhost::vhost_user::message::FrontendReq::{
    GET_FEATURES, SET_FEATURES, SET_PROTOCOL_FEATURES, SET_VRING_BASE, SET_VRING_CALL, SET_VRING_ENABLE,
    SET_VRING_KICK,
};
use vhost::vhost_user::{VhostUserFrontend, VhostUserProtocolFeatures};

fn frame(header: usize, tag: u8, len: usize) -> Vec<u8> {
    let mut frame = vec![0; header];
    frame.extend((0..len).map(|i| tag ^ i as u8));
    frame
}

/// Sends, and expects back, `count` frames on each pair.
fn exchange(port: &Port, guest: &mut FrontEnd, pairs: usize, count: u8) {
    let header = guest.header_len();
    for pair in 0..pairs {
        let frames: Vec<_> = (0..count).map(|tag| frame(header, tag, 100)).collect();
        let sent = guest.send_batch(pair, frames.iter().map(Vec::as_slice));
        assert_eq!(sent, frames.len());
        assert_eq!(port.device().reflect(), frames.len());
        for sent in &frames {
            let got = guest.receive(pair).expect("a frame came back");
            assert_eq!(got[header..], sent[header..]);
        }
        assert_eq!(guest.receive(pair), None);
        assert_eq!(guest.in_flight(pair), 0);
    }
}

#[test]
fn a_handshake_starts_and_enables_every_queue() {
    let port = Port::server(2);
    let mut guest = port.connect(two_pairs());
    let negotiated = two_pairs().features & !front_end::PROTOCOL_FEATURES;
    assert_eq!(guest.features(), two_pairs().features);
    let mut expected = vec![format!("features {negotiated:#x}"), "memory".into()];
    for index in 0..4 {
        expected.push(format!("start {index} size 64 base 0 kick true call true"));
        expected.push(format!("enable {index} true"));
    }
    assert_eq!(port.events(), expected);
    let now = port.wait(|now| now.state == State::Ready && now.queue_pairs == 2);
    assert_eq!(now.features, negotiated);
    assert_ne!(now.features & NET_F_MQ, 0);
    assert_eq!(now.protocol_features, 1 | 1 << 3);
    // Allocated before it was passed on.
    assert_eq!(now.memory_preallocated, Some(true));
    assert_eq!((now.connects, now.refused, now.protocol_errors), (1, 0, 0));
    exchange(&port, &mut guest, 2, 10);
}

#[test]
fn one_pair_is_not_multiqueue_and_more_are_not_had() {
    let port = Port::server(1);
    match FrontEnd::connect(&port.path, two_pairs()) {
        Err(FrontEndError::Queues { has: 2, wanted: 4 }) => {}
        other => panic!("{:?}", other.err()),
    }
    port.wait_gone(1);
    let guest = port.connect(one_pair());
    assert_eq!(guest.features() & NET_F_MQ, 0);
}

#[test]
fn features_are_what_was_negotiated_and_no_more() {
    let port = Port::server(1);
    for wanted in [0, NET_F_MRG_RXBUF, F_VERSION_1, front_end::PROTOCOL_FEATURES] {
        let mut guest = port.connect(Options { features: wanted, ..one_pair() });
        let virtio = wanted & !front_end::PROTOCOL_FEATURES;
        let now = port.wait(|now| now.state == State::Ready);
        assert_eq!(now.features, virtio);
        assert_eq!(guest.header_len(), features::header_len(virtio));
        // Without protocol features queues are enabled by being started.
        assert!(port.events().contains(&"enable 1 true".to_string()));
        exchange(&port, &mut guest, 1, 3);
        let n = now.connects;
        drop(guest);
        port.wait_gone(n);
    }
}

#[test]
fn frames_longer_than_a_buffer_are_merged() {
    let port = Port::server(1);
    let mut guest = port.connect(one_pair());
    // Three buffers' worth, sent as one raw chain.
    let long = frame(12, 7, 5000);
    let addr = guest.memory().alloc(long.len() as u64, 1);
    guest.memory().write(addr, &long);
    let ring = guest.ring(1);
    ring.add_indirect(&[
        Buffer::readable(addr, 12),
        Buffer::readable(addr + 12, 2500),
        Buffer::readable(addr + 2512, 2500),
    ])
    .unwrap();
    let _ = ring.publish();
    assert!(!guest.wait_receive(Duration::ZERO).unwrap());
    assert_eq!(port.device().reflect(), 1);
    assert!(guest.wait_receive(PATIENCE).unwrap());
    let got = guest.receive(0).unwrap();
    assert_eq!(got[10..12], 3u16.to_le_bytes());
    assert_eq!(got[12..], long[12..]);
}

#[test]
fn a_sleeping_guest_is_called() {
    let port = Port::server(1);
    let mut guest = port.connect(one_pair());
    // More than the ring holds, so buffers are recycled.
    for tag in 0..200 {
        assert!(guest.send(0, &frame(12, tag, 60)));
        let device = port.device.clone();
        let reflect = std::thread::spawn(move || device.lock().unwrap().reflect());
        assert!(guest.wait_receive(PATIENCE).unwrap());
        assert_eq!(reflect.join().unwrap(), 1);
        assert_eq!(guest.receive(0).unwrap()[12..], frame(12, tag, 60)[12..]);
    }
}

#[test]
fn a_disabled_queue_carries_nothing_until_enabled() {
    let port = Port::server(1);
    let mut guest = port.connect(one_pair());
    port.events();
    guest.enable_queue(1, false).unwrap();
    assert_eq!(port.events(), ["enable 1 false"]);
    assert_eq!(port.status.snapshot().state, State::Connected);
    assert!(guest.send(0, &frame(12, 1, 60)));
    assert_eq!(port.device().reflect(), 0);
    guest.enable_queue(1, true).unwrap();
    assert_eq!(port.events(), ["enable 1 true"]);
    assert_eq!(port.status.snapshot().state, State::Ready);
    assert_eq!(port.device().reflect(), 1);
}

#[test]
fn a_stopped_queue_goes_on_where_it_was() {
    let port = Port::server(1);
    let mut guest = port.connect(one_pair());
    exchange(&port, &mut guest, 1, 5);
    port.events();
    assert_eq!(guest.stop_queue(1).unwrap(), 5);
    assert_eq!(port.events(), ["stop 1"]);
    assert_eq!(port.status.snapshot().state, State::Connected);
    // Asking again does not start or stop anything.
    assert_eq!(guest.stop_queue(1).unwrap(), 5);
    assert_eq!(port.events(), [""; 0]);
    // Enabled is not forgotten: QEMU says it once.
    guest.start_queue(1).unwrap();
    assert_eq!(port.events(), ["start 1 size 64 base 5 kick true call true", "enable 1 true"]);
    exchange(&port, &mut guest, 1, 5);
}

#[test]
fn packed_rings_are_negotiated_and_may_have_any_size() {
    let port = Port::server(1);
    let features = one_pair().features | front_end::RING_PACKED;
    for (n, queue_size) in (1..).zip([64, 61, 1000]) {
        let mut guest = port.connect(Options { features, queue_size, ..one_pair() });
        assert_ne!(guest.features() & front_end::RING_PACKED, 0);
        assert!(
            port.events().contains(&format!("start 1 size {queue_size} base 2147516416 kick true call true"))
        );
        exchange(&port, &mut guest, 1, 50);
        // Both places, wrap counters on top, alike since nothing is in flight.
        let place = 50 | 0x8000;
        assert_eq!(guest.stop_queue(1).unwrap(), place | place << 16);
        assert_eq!(guest.stop_queue(1).unwrap(), place | place << 16);
        guest.start_queue(1).unwrap();
        exchange(&port, &mut guest, 1, 50);
        guest.stop_queue(1).unwrap();
        guest.start_queue(1).unwrap();
        exchange(&port, &mut guest, 1, 50);
        let now = port.status.snapshot();
        assert_ne!(now.features & front_end::RING_PACKED, 0);
        drop(guest);
        port.wait_gone(n);
    }
}

#[test]
fn a_base_of_one_layout_is_forgotten_with_the_other() {
    let port = Port::server(1);
    let mut raw = port.dial();
    let memory = SharedMemory::new(0, 0x1_0000).unwrap();
    let base = |base: u32| message(SET_VRING_BASE, 9, &words(&[0, base]));
    let features = |packed: bool| {
        let layout = if packed { front_end::RING_PACKED } else { 0 };
        let features = VERSION_1 | front_end::PROTOCOL_FEATURES | layout;
        message(SET_FEATURES, 9, &features.to_ne_bytes())
    };
    raw.write_all(&message(GET_FEATURES, 1, &[])).unwrap();
    reply(&mut raw);
    raw.write_all(&message(SET_PROTOCOL_FEATURES, 1, &words(&[1 << 3, 0]))).unwrap();
    for bytes in [features(true), base(0x8003_8003), features(false)] {
        raw.write_all(&bytes).unwrap();
        assert_eq!(reply(&mut raw), [0; 8]);
    }
    set_up_rings(&mut raw, &memory, 1);
    assert!(port.events().contains(&"start 0 size 4 base 0 kick true call false".to_string()));
}

#[test]
fn a_queue_may_be_enabled_before_features_are_set() {
    // QEMU 7 and later does so, on the first start and after a reconnection.
    let port = Port::server(1);
    let mut raw = port.dial();
    raw.write_all(&message(GET_FEATURES, 1, &[])).unwrap();
    assert_eq!(reply(&mut raw), features::offered(1).to_ne_bytes());
    raw.write_all(&message(SET_PROTOCOL_FEATURES, 1, &words(&[1 << 3, 0]))).unwrap();
    for index in 0..2 {
        raw.write_all(&message(SET_VRING_ENABLE, 9, &words(&[index, 1]))).unwrap();
        assert_eq!(reply(&mut raw), [0; 8]);
    }
    raw.write_all(&message(SET_VRING_ENABLE, 9, &words(&[0, 0]))).unwrap();
    assert_eq!(reply(&mut raw), [0; 8]);
    // The same front end goes on as usual, but enables nothing again.
    let memory = SharedMemory::new(0, 0x1_0000).unwrap();
    let features = VERSION_1 | front_end::PROTOCOL_FEATURES;
    raw.write_all(&message(SET_FEATURES, 9, &features.to_ne_bytes())).unwrap();
    assert_eq!(reply(&mut raw), [0; 8]);
    set_up_rings(&mut raw, &memory, 2);
    assert_eq!(
        port.events(),
        [
            "features 0x100000000",
            "memory",
            "start 0 size 4 base 0 kick true call false",
            "start 1 size 4 base 0 kick true call false",
            "enable 1 true"
        ]
    );
}

#[test]
fn notifications_of_a_running_queue_are_replaced() {
    let port = Port::server(1);
    let guest = port.connect(one_pair());
    port.events();
    let mut raw = guest.stream().unwrap();
    let event = eventfd(0, EventfdFlags::empty()).unwrap();
    for (code, polled) in
        [(SET_VRING_CALL, false), (SET_VRING_KICK, false), (SET_VRING_CALL, true), (SET_VRING_KICK, true)]
    {
        let payload = u64::from(polled) << 8 | 1;
        let fds = [event.as_fd()];
        let fds: &[_] = if polled { &[] } else { &fds };
        send_fds(raw, &message(code, 9, &payload.to_ne_bytes()), fds);
        assert_eq!(reply(&mut raw), [0; 8]);
    }
    assert_eq!(port.events(), ["call 1 true", "kick 1 true", "call 1 false", "kick 1 false"]);
}

#[test]
fn descriptors_are_not_taken_for_those_of_the_message_before() {
    let port = Port::server(1);
    let guest = port.connect(one_pair());
    port.events();
    let mut raw = guest.stream().unwrap();
    let event = eventfd(0, EventfdFlags::empty()).unwrap();
    // Without (bit 8), with: whatever of it is there when the first is read.
    for _ in 0..20 {
        let payload = |polled: u64| (polled << 8 | 1).to_ne_bytes();
        send_fds(raw, &message(SET_VRING_CALL, 1, &payload(1)), &[]);
        send_fds(raw, &message(SET_VRING_CALL, 9, &payload(0)), &[event.as_fd()]);
        assert_eq!(reply(&mut raw), [0; 8]);
        assert_eq!(port.events(), ["call 1 false", "call 1 true"]);
    }
}

#[test]
fn running_queues_go_on_in_a_new_memory_table() {
    let port = Port::server(1);
    let mut guest = port.connect(one_pair());
    exchange(&port, &mut guest, 1, 5);
    port.events();
    guest.share_memory().unwrap();
    assert_eq!(port.events(), ["memory"]);
    exchange(&port, &mut guest, 1, 5);
}

#[test]
fn memory_may_come_and_go_by_region() {
    let port = Port::server(1);
    let mut guest =
        port.connect(Options { protocol_features: VhostUserProtocolFeatures::all(), ..one_pair() });
    assert_eq!(port.status.snapshot().protocol_features, 0b1111 | 1 << 12 | 1 << 15);
    exchange(&port, &mut guest, 1, 5);
    let more = SharedMemory::new(1 << 32, 0x10_0000).unwrap();
    let region = region(&more);
    port.events();
    let protocol = guest.protocol().unwrap();
    assert_eq!(protocol.get_max_mem_slots().unwrap(), 32);
    protocol.add_mem_region(&region).unwrap();
    assert_eq!(port.events(), ["memory"]);
    // A frame from the new region.
    let addr = more.alloc(72, 1);
    more.write(addr, &frame(12, 9, 60));
    guest.ring(1).add(&[Buffer::readable(addr, 72)]).unwrap();
    let _ = guest.ring(1).publish();
    assert_eq!(port.device().reflect(), 1);
    assert_eq!(guest.receive(0).unwrap()[12..], frame(12, 9, 60)[12..]);
    let protocol = guest.protocol().unwrap();
    protocol.remove_mem_region(&region).unwrap();
    assert_eq!(port.events(), ["memory"]);
    guest.ring(1).reap().unwrap();
    exchange(&port, &mut guest, 1, 5);
    // The last region cannot go while a queue is in it.
    let first = super::region(guest.memory());
    guest.protocol().unwrap().remove_mem_region(&first).unwrap_err();
    let error = port.wait_gone(1).last_error.unwrap();
    assert!(error.contains("the last region, while queue 0 is running"), "{error}");
}

#[test]
fn what_was_in_flight_comes_back_if_the_front_end_keeps_the_account() {
    let inflight = VhostUserProtocolFeatures::INFLIGHT_SHMFD | VhostUserProtocolFeatures::REPLY_ACK;
    for features in [VERSION_1, VERSION_1 | front_end::RING_PACKED] {
        let port = Port::server(1);
        let features = features | front_end::PROTOCOL_FEATURES;
        let mut guest = port.connect(Options { protocol_features: inflight, features, ..one_pair() });
        exchange(&port, &mut guest, 1, 5);
        let frames: Vec<_> = (0..7).map(|tag| frame(12, tag, 100)).collect();
        guest.send_batch(0, frames.iter().map(Vec::as_slice));
        for _ in 0..3 {
            assert!(port.device().swallow(1));
        }
        port.events();
        // The device forgets all it knew.
        guest.disconnect();
        port.wait_gone(1);
        guest.reconnect().unwrap();
        let events = port.events();
        for recovered in ["recovered 0: 0 unsent", "recovered 1: 3 unsent"] {
            assert!(events.iter().any(|event| event == recovered), "{events:?}");
        }
        assert_eq!(guest.in_flight(0), 4, "the others were not seen yet");
        assert_eq!(port.device().reflect(), 4);
        for sent in &frames[3..] {
            assert_eq!(guest.receive(0).unwrap()[12..], sent[12..]);
        }
        exchange(&port, &mut guest, 1, 60);
        // Stopped in order, there is nothing to recover.
        port.events();
        for index in [0, 1] {
            guest.stop_queue(index).unwrap();
            guest.start_queue(index).unwrap();
            guest.enable_queue(index, true).unwrap();
        }
        let events = port.events();
        assert!(!events.iter().any(|event| event.starts_with("recovered")), "{events:?}");
        exchange(&port, &mut guest, 1, 5);
    }
}

/// QEMU before 8.0, with several queue pairs.
#[test]
fn a_region_may_come_and_go_once_per_queue_pair() {
    let port = Port::server(2);
    let mut guest =
        port.connect(Options { protocol_features: VhostUserProtocolFeatures::all(), ..one_pair() });
    exchange(&port, &mut guest, 1, 5);
    let first = super::region(guest.memory());
    let more = SharedMemory::new(1 << 32, 0x10_0000).unwrap();
    let region = region(&more);
    port.events();
    let protocol = guest.protocol().unwrap();
    protocol.add_mem_region(&first).unwrap();
    assert_eq!(port.events(), Vec::<String>::new());
    protocol.add_mem_region(&region).unwrap();
    protocol.add_mem_region(&region).unwrap();
    assert_eq!(port.events(), ["memory"]);
    protocol.remove_mem_region(&region).unwrap();
    protocol.remove_mem_region(&region).unwrap();
    assert_eq!(port.events(), ["memory"]);
    exchange(&port, &mut guest, 1, 5);
    // Another file at the same addresses is not the same region.
    let other = SharedMemory::new(guest.memory().guest_addr(), 0x10_0000).unwrap();
    let mut imposter = super::region(&other);
    (imposter.guest_phys_addr, imposter.memory_size) = (first.guest_phys_addr, first.memory_size);
    guest.protocol().unwrap().add_mem_region(&imposter).unwrap_err();
    let error = port.wait_gone(1).last_error.unwrap();
    assert!(error.contains("overlap"), "{error}");
}

#[test]
fn all_memory_may_go_when_nothing_runs() {
    let port = Port::server(1);
    let mut guest =
        port.connect(Options { protocol_features: VhostUserProtocolFeatures::all(), ..one_pair() });
    for index in 0..2 {
        guest.stop_queue(index).unwrap();
    }
    let only = region(guest.memory());
    guest.protocol().unwrap().remove_mem_region(&only).unwrap();
    assert_eq!(port.status.snapshot().memory_preallocated, None);
    guest.share_memory().unwrap();
    for index in 0..2 {
        guest.start_queue(index).unwrap();
    }
    exchange(&port, &mut guest, 1, 5);
}

#[test]
fn a_server_serves_one_front_end_after_the_other() {
    let port = Port::server(1);
    let mut guest = port.connect(one_pair());
    for n in 1..=3 {
        exchange(&port, &mut guest, 1, 5);
        guest.disconnect();
        let now = port.wait_gone(n);
        assert_eq!((now.features, now.queue_pairs), (0, 0));
        assert_eq!((now.protocol_errors, now.last_error), (0, None));
        let last = port.events().pop().unwrap();
        assert_eq!(last, "disconnect: the front end closed the connection");
        guest.reconnect().unwrap();
        let base = n * 5;
        let start = format!("start 1 size 64 base {base} kick true call true");
        assert!(port.events().contains(&start));
    }
    exchange(&port, &mut guest, 1, 5);
    // Another one, with memory of its own.
    drop(guest);
    port.wait_gone(4);
    exchange(&port, &mut port.connect(one_pair()), 1, 5);
}

#[test]
fn a_client_asks_for_the_next_stream() {
    let (port, theirs) = Port::client();
    let mut guest = FrontEnd::from_stream(theirs, one_pair()).unwrap();
    exchange(&port, &mut guest, 1, 5);
    let (_, unwanted) = UnixStream::pair().unwrap();
    let refused = port.thread.attach(unwanted.into()).unwrap_err();
    assert!(refused.to_string().contains("has a front end already"));
    for n in 1..=2 {
        guest.disconnect();
        port.wait_gone(n);
        let (theirs, ours) = UnixStream::pair().unwrap();
        port.thread.attach(ours.into()).unwrap();
        guest.attach(theirs).unwrap();
        exchange(&port, &mut guest, 1, 5);
    }
}

#[test]
fn a_second_front_end_is_refused_and_the_first_not_disturbed() {
    let port = Port::server(1);
    let mut guest = port.connect(one_pair());
    for n in 1..=2 {
        assert!(FrontEnd::connect(&port.path, one_pair()).is_err());
        port.wait(|now| now.refused == n);
    }
    exchange(&port, &mut guest, 1, 5);
    let now = port.status.snapshot();
    assert_eq!((now.connects, now.state), (1, State::Ready));
}

#[test]
fn reset_owner_disables_all_queues() {
    let port = Port::server(1);
    let mut guest = port.connect(one_pair());
    port.events();
    guest.protocol().unwrap().reset_owner().unwrap();
    assert_eq!(port.events(), ["enable 0 false", "enable 1 false"]);
    assert_eq!(port.status.snapshot().state, State::Connected);
}

#[test]
fn stopping_disconnects_and_unserves() {
    let port = Port::server(1);
    let guest = port.connect(one_pair());
    port.thread.stop();
    let last = port.device.lock().unwrap().events.pop();
    assert_eq!(last.as_deref(), Some("disconnect: the port was stopped"));
    let mut raw = guest.stream().unwrap();
    assert_eq!(raw.read(&mut [0]).unwrap(), 0);
    // Its socket is closed by an errand.
    let start = std::time::Instant::now();
    while UnixStream::connect(&port.path).is_ok() {
        assert!(start.elapsed() < PATIENCE);
    }
}

/// What it left takes long to close: until that is done the port's thread waits, and does not look without a pause.
#[test]
fn a_front_end_that_hung_up_with_much_to_close_keeps_no_cpu() {
    let config = PortConfig::new("overloaded", 1);
    let errands = config.errands.clone();
    let port = Port::server_with(config);
    let mut stream = port.dial();
    port.wait(|now| now.connects == 1);
    let (done, slow) = mpsc::channel::<()>();
    errands.give_up(Slow(slow));
    (0..100).for_each(|_| errands.give_up(()));
    let busy = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let task = tasks
            .map(|task| task.unwrap().path())
            .find(|task| {
                std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name == "port overloaded\n")
            })
            .unwrap();
        // The first number is the time it ran for, ns.
        let stat = std::fs::read_to_string(task.join("schedstat")).unwrap();
        stat.split_whitespace().next().unwrap().parse::<u64>().unwrap()
    };
    // It wakes the port's thread, which answers, and then sees how much there is to close. There is no answer where the
    // thread was still awake, and saw that before.
    stream.write_all(&message(FrontendReq::GET_FEATURES, 1, &[])).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let _ = stream.read(&mut [0; 20]);
    std::thread::sleep(Duration::from_millis(100));
    drop(stream);
    std::thread::sleep(Duration::from_millis(100));
    let before = busy();
    std::thread::sleep(Duration::from_secs(1));
    let ran = busy() - before;
    drop(done);
    assert!(ran < 200_000_000, "it ran for {} ms of a second", ran / 1_000_000);
    port.wait_gone(1);
}

/// Counted, not timed: a thread that polls would switch some 200 times.
#[test]
fn an_idle_port_does_not_run() {
    let port = Port::server_with(PortConfig::new("idle", 1));
    let _guest = port.connect(one_pair());
    let switches = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let task = tasks
            .map(|task| task.unwrap().path())
            // Threads of other tests end meanwhile.
            .find(|task| std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name == "port idle\n"))
            .unwrap();
        let status = std::fs::read_to_string(task.join("status")).unwrap();
        let lines = status.lines().filter(|line| line.contains("ctxt_switches"));
        lines.map(|line| line.split_whitespace().last().unwrap().parse::<u64>().unwrap()).sum::<u64>()
    };
    std::thread::sleep(Duration::from_millis(50));
    let before = switches();
    std::thread::sleep(Duration::from_secs(1));
    let after = switches();
    assert!(after - before < 20, "{} wake-ups", after - before);
}

#[test]
fn queue_pairs_out_of_range_are_refused() {
    for queue_pairs in [0, 129] {
        let (_, ours) = UnixStream::pair().unwrap();
        let spawned = PortThread::spawn(
            PortConfig::new("test", queue_pairs),
            SocketEnd::Stream(ours.into()),
            Box::new(Arc::new(Mutex::new(Device::default()))),
            Arc::default(),
        );
        assert!(spawned.unwrap_err().to_string().contains("expected 1 to 128"));
    }
}
