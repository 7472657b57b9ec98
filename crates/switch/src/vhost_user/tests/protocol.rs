//! What a well-behaved front end may do: negotiation, queues, frames.

use super::*;
use crate::vhost_user::features::{self, F_VERSION_1, NET_F_MQ, NET_F_MRG_RXBUF};
use tidegate_frontend::driver::Buffer;
use tidegate_frontend::front_end::{self, FrontEndError, VERSION_1};
use vhost::VhostBackend;
use vhost::vhost_user::message::FrontendReq::{
    GET_FEATURES, SET_FEATURES, SET_PROTOCOL_FEATURES, SET_VRING_BASE, SET_VRING_CALL, SET_VRING_ENABLE,
    SET_VRING_KICK,
};

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
    // Allocated before it was passed.
    assert_eq!(now.memory_preallocated, Some(true));
    assert_eq!((now.connects, now.refused, now.protocol_errors), (1, 0, 0));
    exchange(&port, &mut guest, 2, 10);
}

#[test]
fn a_port_of_one_pair_refuses_two_pairs_and_multiqueue() {
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
fn only_negotiated_features_are_in_use() {
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
    // More than the ring holds, so buffers are reused.
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
    // A second time starts or stops nothing.
    assert_eq!(guest.stop_queue(1).unwrap(), 5);
    assert_eq!(port.events(), [""; 0]);
    // Enabled lasts: QEMU says it once.
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
        // Both places, wrap counters on top, equal since nothing is in flight.
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
    // The same front end continues as usual, but does not enable anything again.
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
    // Without (bit 8), with: in any state when the first is read.
    for _ in 0..20 {
        let payload = |polled: u64| (polled << 8 | 1).to_ne_bytes();
        send_fds(raw, &message(SET_VRING_CALL, 1, &payload(1)), &[]);
        send_fds(raw, &message(SET_VRING_CALL, 9, &payload(0)), &[event.as_fd()]);
        assert_eq!(reply(&mut raw), [0; 8]);
        assert_eq!(port.events(), ["call 1 false", "call 1 true"]);
    }
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
