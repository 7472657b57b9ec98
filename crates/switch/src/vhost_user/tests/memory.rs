//! What a well-behaved front end may do with memory, and with chains in flight in it.

use super::*;
use tidegate_frontend::driver::Buffer;
use tidegate_frontend::front_end::{self, VERSION_1};
use vhost::vhost_user::{VhostUserFrontend, VhostUserProtocolFeatures};

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
    // The last region must stay while a queue is in it.
    let first = super::region(guest.memory());
    guest.protocol().unwrap().remove_mem_region(&first).unwrap_err();
    let error = port.wait_gone(1).last_error.unwrap();
    assert!(error.contains("the last region cannot be removed while queue 0 is running"), "{error}");
}

#[test]
fn frames_in_flight_come_back_if_the_front_end_keeps_the_inflight_region() {
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
        // The device forgets its state.
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
        // Stopped in order, it leaves nothing to recover.
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
