//! What a front end may not do, and what it costs: its connection, nothing more.

use super::*;
use crate::vhost_user::features;
use crate::virtio::Inflight;
use proptest::prelude::*;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use std::os::fd::AsFd;
use tidegate_frontend::attack::counters::{WAITERS, Waiters};
use tidegate_frontend::front_end::{PROTOCOL_FEATURES, VERSION_1};

/// The port serves the next front end as if nothing had been.
fn assert_serves(port: &Port) {
    let before = port.status.snapshot().connects;
    let guest = port.connect(one_pair());
    assert_eq!(port.wait(|now| now.state == State::Ready).queue_pairs, 1);
    drop(guest);
    port.wait_gone(before + 1);
}

/// Waits until the `n`th front end was thrown out; why.
fn thrown_out(port: &Port, n: u64) -> String {
    let now = port.wait(|now| now.protocol_errors == n && now.state == State::Waiting);
    let reason = now.last_error.unwrap();
    let last = port.events().pop().unwrap();
    assert_eq!(last, format!("disconnect: {reason}"));
    reason
}

#[test]
fn garbage_ends_the_connection_and_is_named() {
    let port = Port::server(1);
    let mut raw = port.dial();
    raw.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let reason = thrown_out(&port, 1);
    assert!(reason.contains("is not of the vhost-user protocol"), "{reason}");
    assert!(matches!(raw.read(&mut [0]), Ok(0) | Err(_)));
    assert_serves(&port);
    // The reason stays until there is a better one.
    assert_eq!(port.status.snapshot().last_error, Some(reason));
}

#[test]
fn a_half_message_stops_nobody_from_stopping() {
    for bytes in [&[1u8, 0, 0][..], &message(FrontendReq::SET_FEATURES, 1, &[0; 8])[..15]] {
        let port = Port::server(1);
        let mut raw = port.dial();
        raw.write_all(bytes).unwrap();
        port.wait(|now| now.connects == 1);
        // Others are turned away meanwhile.
        assert_eq!(port.dial().read(&mut [0]).unwrap(), 0);
        port.wait(|now| now.refused == 1);
        let (done, stopped) = mpsc::channel();
        let thread = port.thread;
        std::thread::spawn(move || {
            thread.stop();
            done.send(()).unwrap();
        });
        // The message itself has PATIENCE to complete.
        stopped.recv_timeout(PATIENCE / 2).expect("stopped");
    }
}

#[test]
fn a_half_message_is_waited_for_and_not_for_ever() {
    let port = Port::server_with(PortConfig {
        message_timeout: Duration::from_millis(30),
        ..PortConfig::new("test", 1)
    });
    let mut raw = port.dial();
    raw.write_all(&[3, 0, 0]).unwrap();
    let reason = thrown_out(&port, 1);
    assert!(reason.contains("stalled in the middle of a message"), "{reason}");
    assert_serves(&port);
}

#[test]
fn a_message_may_come_byte_by_byte() {
    let port = Port::server(1);
    let mut raw = port.dial();
    for byte in message(FrontendReq::GET_FEATURES, 1, &[]) {
        raw.write_all(&[byte]).unwrap();
        std::thread::yield_now();
    }
    reply(&mut raw);
    let bytes = message(FrontendReq::SET_FEATURES, 1, &VERSION_1.to_ne_bytes());
    raw.write_all(&bytes[..13]).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    raw.write_all(&bytes[13..]).unwrap();
    port.wait(|now| now.features == VERSION_1);
}

#[test]
fn closing_in_the_middle_of_a_message_is_an_error() {
    let port = Port::server(1);
    let mut raw = port.dial();
    raw.write_all(&[3, 0, 0]).unwrap();
    drop(raw);
    assert_eq!(thrown_out(&port, 1), "closed in the middle of a message");
    assert_serves(&port);
}

#[test]
fn a_front_end_that_reads_no_replies_keeps_nobody_waiting() {
    let port = Port::server_with(PortConfig {
        message_timeout: Duration::from_millis(30),
        ..PortConfig::new("test", 1)
    });
    let mut raw = port.dial();
    let many = message(FrontendReq::GET_FEATURES, 1, &[]).repeat(100);
    // Ends because the port closes the connection.
    while raw.write_all(&many).is_ok() {}
    let reason = thrown_out(&port, 1);
    assert!(reason.contains("or of reading its reply"), "{reason}");
    assert_serves(&port);
}

#[test]
fn what_a_worker_is_to_signal_never_makes_it_wait() {
    crate::eventfd::prepare();
    let port = Port::server(1);
    let codes = [FrontendReq::SET_VRING_KICK, FrontendReq::SET_VRING_CALL, FrontendReq::SET_VRING_ERR];
    for (n, code) in (1..).zip(codes) {
        let (_reader, writer) = std::io::pipe().unwrap();
        send_fds(&port.dial(), &message(code, 1, &words(&[0, 0])), &[writer.as_fd()]);
        let reason = thrown_out(&port, n);
        assert_eq!(reason, format!("{code:?}: the descriptor for queue 0 is not an eventfd"));
    }
    // One that blocks is made one that does not.
    let full = eventfd(0, EventfdFlags::empty()).unwrap();
    rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    let raw = port.dial();
    send_fds(&raw, &message(FrontendReq::SET_VRING_ERR, 1, &words(&[0, 0])), &[full.as_fd()]);
    (&raw).write_all(&message(FrontendReq::SET_VRING_NUM, 1, &words(&[0, 3]))).unwrap();
    let reason = thrown_out(&port, 4);
    assert!(reason.contains("expected a power of two"), "{reason}");
    assert_serves(&port);
    // And one that is made to block again, when it was accepted.
    let full = eventfd(0, EventfdFlags::empty()).unwrap();
    let mut raw = port.dial();
    send_fds(&raw, &message(FrontendReq::SET_VRING_ERR, 1, &words(&[0, 0])), &[full.as_fd()]);
    raw.write_all(&message(FrontendReq::GET_FEATURES, 1, &[])).unwrap();
    reply(&mut raw);
    rustix::fs::fcntl_setfl(&full, rustix::fs::OFlags::empty()).unwrap();
    rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    raw.write_all(&message(FrontendReq::SET_VRING_NUM, 1, &words(&[0, 3]))).unwrap();
    let reason = thrown_out(&port, 5);
    assert!(reason.contains("expected a power of two"), "{reason}");
    assert_serves(&port);
}

#[test]
fn two_messages_sent_as_one_with_descriptors_are_refused() {
    let port = Port::server(1);
    let event = eventfd(0, EventfdFlags::empty()).unwrap();
    // The descriptor is meant for the second. Whose it is cannot be told: neither gets it.
    let polled = message(FrontendReq::SET_VRING_CALL, 1, &words(&[1 << 8, 0]));
    let called = message(FrontendReq::SET_VRING_CALL, 1, &words(&[0, 0]));
    send_fds(&port.dial(), &[polled, called].concat(), &[event.as_fd()]);
    let reason = thrown_out(&port, 1);
    assert!(reason.contains("SET_VRING_CALL") && reason.contains("file descriptors"), "{reason}");
    assert_serves(&port);
}

#[test]
fn memory_without_descriptors_is_explained_whatever_comes_behind_it() {
    let event = eventfd(0, EventfdFlags::empty()).unwrap();
    let slots = 1u64 << 15;
    for code in [FrontendReq::SET_MEM_TABLE, FrontendReq::ADD_MEM_REG] {
        let (raw, ours) = UnixStream::pair().unwrap();
        // One region, of the two forms.
        let payload = [&words(&[1, 0])[..], &[1; 32]].concat();
        let call = message(FrontendReq::SET_VRING_CALL, 1, &words(&[0, 0]));
        if code == FrontendReq::ADD_MEM_REG {
            let features = features::VHOST_USER_F_PROTOCOL_FEATURES.to_ne_bytes();
            send_fds(&raw, &message(FrontendReq::SET_FEATURES, 1, &features), &[]);
            send_fds(&raw, &message(FrontendReq::SET_PROTOCOL_FEATURES, 1, &slots.to_ne_bytes()), &[]);
        }
        send_fds(&raw, &message(code, 1, &payload), &[]);
        send_fds(&raw, &call, &[event.as_fd()]);
        // All is there before the first is looked at.
        let dir = tempfile::tempdir().unwrap();
        let end = SocketEnd::Stream(ours.into());
        let port = Port::spawn(dir, PathBuf::new(), PortConfig::new("test", 1), end);
        let reason = thrown_out(&port, 1);
        assert!(reason.contains("share=on") && reason.contains(&format!("{code:?}")), "{reason}");
    }
}

#[test]
fn memory_that_is_not_shared_is_explained() {
    let port = Port::server(1);
    let guest = FrontEnd::connect(&port.path, Options { share: false, ..one_pair() });
    assert!(guest.is_err());
    let reason = thrown_out(&port, 1);
    assert!(
        reason.contains("guest memory is not shared; add share=on: `-object memory-backend-memfd,id=mem,size=...,share=on -machine memory-backend=mem`")
            && reason.contains("`<memoryBacking><access mode='shared'/></memoryBacking>`"),
        "{reason}"
    );
    // As QEMU does it: no table at all, but rings.
    let mut raw = port.dial();
    prepare(&mut raw);
    let kick = eventfd(0, EventfdFlags::empty()).unwrap();
    let bytes = message(FrontendReq::SET_VRING_KICK, 1, &words(&[0, 0]));
    send_fds(&raw, &bytes, &[kick.as_fd()]);
    let reason = thrown_out(&port, 2);
    assert!(reason.contains("before any memory: guest memory is not shared"), "{reason}");
    // With share=off on a file of its own: the file is passed, and stays empty.
    let mut raw = port.dial();
    prepare(&mut raw);
    let memory = SharedMemory::new(0, 0x1_0000).unwrap();
    send_memory(&raw, &memory);
    assert_eq!(reply(&mut raw), [0; 8]);
    memory.write(0xffff, &[0]);
    for bytes in [
        message(FrontendReq::SET_VRING_NUM, 1, &words(&[1, 4])),
        ring_addresses(1, &memory, 0),
        message(FrontendReq::SET_VRING_KICK, 1, &0x101u64.to_ne_bytes()),
    ] {
        raw.write_all(&bytes).unwrap();
    }
    let reason = thrown_out(&port, 3);
    assert!(reason.contains("all zeros here: guest memory is not shared"), "{reason}");
    assert_serves(&port);
}

#[test]
fn an_in_flight_region_that_is_none_of_ours_is_refused() {
    let port = Port::server(1);
    let ours = Inflight::create(2, 8).unwrap();
    let small = Inflight::create(2, 7).unwrap();
    let one = Inflight::create(1, 8).unwrap();
    let foreign = memfd_create("foreign", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&foreign, ours.bytes()).unwrap();
    let unsealed = memfd_create("unsealed", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&unsealed, ours.bytes()).unwrap();
    fcntl_add_seals(&foreign, SealFlags::SHRINK).unwrap();
    let (pipe, _writer) = std::io::pipe().unwrap();
    let given = |bytes: u64, offset: u64, queues: u16, entries: u16| {
        let mut payload = [bytes.to_ne_bytes(), offset.to_ne_bytes()].concat();
        payload.extend([queues.to_ne_bytes(), entries.to_ne_bytes(), [0; 2], [0; 2]].concat());
        message(FrontendReq::SET_INFLIGHT_FD, 9, &payload)
    };
    let bytes = ours.bytes();
    let cases = [
        (given(bytes, 0, 2, 8), unsealed.as_fd(), "not sealed"),
        (given(bytes, 0, 2, 8), pipe.as_fd(), "not shared memory"),
        (given(bytes, 0, 2, 8), foreign.as_fd(), "another format"),
        (given(bytes, 4096, 2, 8), ours.fd(), "not the size, offset"),
        (given(bytes, 0, 3, 8), ours.fd(), "not the size, offset"),
        (given(one.bytes(), 0, 1, 8), one.fd(), "a region for 1 queues, but the port has 2"),
        (given(0, 0, 0, 8), ours.fd(), "SET_INFLIGHT_FD: wrong size, values or file descriptors"),
    ];
    let mut n = 0;
    for (bytes, fd, expected) in cases {
        n += 1;
        let mut raw = port.dial();
        prepare(&mut raw);
        send_fds(&raw, &bytes, &[fd]);
        let reason = thrown_out(&port, n);
        assert!(reason.starts_with("SET_INFLIGHT_FD") && reason.contains(expected), "{reason}");
    }
    // Too few entries for a ring are found when it starts; no region is taken when one runs.
    let memory = SharedMemory::new(0, 0x1_0000).unwrap();
    for (region, starts, expected) in
        [(&small, false, "queue 1 of 8 entries"), (&ours, true, "SET_INFLIGHT_FD: queue 1 is running")]
    {
        n += 1;
        let mut raw = port.dial();
        prepare(&mut raw);
        let given = given(region.bytes(), 0, 2, region.entries());
        send_fds(&raw, &given, &[region.fd()]);
        assert_eq!(reply(&mut raw), [0; 8]);
        send_memory(&raw, &memory);
        assert_eq!(reply(&mut raw), [0; 8]);
        let num = message(FrontendReq::SET_VRING_NUM, 9, &words(&[1, 8]));
        for bytes in [num, ring_addresses(1, &memory, 0)] {
            raw.write_all(&bytes).unwrap();
            assert_eq!(reply(&mut raw), [0; 8]);
        }
        raw.write_all(&message(FrontendReq::SET_VRING_KICK, 1, &0x101u64.to_ne_bytes())).unwrap();
        if starts {
            send_fds(&raw, &given, &[region.fd()]);
        }
        let reason = thrown_out(&port, n);
        assert!(reason.contains(expected), "{reason}");
    }
    assert_serves(&port);
}

/// Negotiates, so that everything is allowed.
fn prepare(raw: &mut UnixStream) {
    for bytes in
        [message(FrontendReq::GET_FEATURES, 1, &[]), message(FrontendReq::GET_PROTOCOL_FEATURES, 1, &[])]
    {
        raw.write_all(&bytes).unwrap();
        reply(raw);
    }
    let protocol = 1u64 | 1 << 3 | 1 << 12 | 1 << 15;
    let features = VERSION_1 | PROTOCOL_FEATURES;
    for (code, value) in
        [(FrontendReq::SET_PROTOCOL_FEATURES, protocol), (FrontendReq::SET_FEATURES, features)]
    {
        raw.write_all(&message(code, 9, &value.to_ne_bytes())).unwrap();
        assert_eq!(reply(raw), [0; 8]);
    }
}

#[test]
fn every_wrong_message_is_named_and_ends_its_connection_only() {
    use FrontendReq::*;
    let port = Port::server(1);
    let memory = SharedMemory::new(0, 0x1_0000).unwrap();
    let unaligned = ring_addresses(0, &memory, 0x8);
    let u64s = |values: &[u64]| -> Vec<u8> { values.iter().flat_map(|v| v.to_ne_bytes()).collect() };
    let no_fd = 0x100u64.to_ne_bytes();
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (
            message(SET_VRING_NUM, 1, &words(&[2, 256])),
            "SET_VRING_NUM: queue index 2, but the port has 1 queue pairs (0 to 1)",
        ),
        (message(SET_VRING_ENABLE, 1, &words(&[9, 1])), "SET_VRING_ENABLE: queue index 9"),
        (message(SET_VRING_ENABLE, 1, &words(&[0, 2])), "SET_VRING_ENABLE: "),
        (message(GET_VRING_BASE, 1, &words(&[u32::MAX, 0])), "GET_VRING_BASE: queue index 4294967295"),
        (
            message(SET_VRING_NUM, 1, &words(&[0, 3])),
            "SET_VRING_NUM: 3 entries for queue 0, expected a power of two",
        ),
        (message(SET_VRING_NUM, 1, &words(&[0, 0])), "SET_VRING_NUM: 0 entries"),
        (message(SET_VRING_NUM, 1, &words(&[0, 65536])), "SET_VRING_NUM: 65536 entries"),
        (message(SET_VRING_NUM, 1, &words(&[1, 4])), "SET_VRING_NUM: queue 1 is running"),
        (message(SET_VRING_NUM, 1, &[0; 4]), "SET_VRING_NUM: wrong size"),
        (message(SET_VRING_BASE, 1, &words(&[0, 65536])), "SET_VRING_BASE: index 65536 for queue 0"),
        (message(SET_VRING_BASE, 1, &words(&[1, 1])), "SET_VRING_BASE: queue 1 is running"),
        (unaligned, "a ring that is not aligned"),
        (ring_addresses(1, &memory, 0x4000), "SET_VRING_ADDR: queue 1 is running"),
        (message(SET_VRING_KICK, 1, &no_fd), "SET_VRING_KICK for queue 0 before SET_VRING_NUM"),
        (message(SET_VRING_KICK, 1, &[0; 8]), "SET_VRING_KICK: wrong size, values or file descriptors"),
        (message(SET_FEATURES, 1, &u64s(&[1 << 17])), "SET_FEATURES: bit 17 not offered"),
        (
            message(SET_FEATURES, 1, &u64s(&[VERSION_1])),
            "SET_FEATURES: other features while queue 1 is running",
        ),
        (message(SET_PROTOCOL_FEATURES, 1, &u64s(&[1 << 8])), "SET_PROTOCOL_FEATURES: 0x100 not offered"),
        (message(SET_MEM_TABLE, 1, &words(&[0, 0])), "guest memory is not shared"),
        (message(ADD_MEM_REG, 1, &[0; 40]), "guest memory is not shared"),
        (
            message(REM_MEM_REG, 1, &u64s(&[0, 7, 8, 9, 0])),
            "REM_MEM_REG: no region of 8 bytes at guest address 0x7",
        ),
        (message(NET_SET_MTU, 1, &u64s(&[1500])), "NET_SET_MTU: not supported"),
        (message(SEND_RARP, 1, &u64s(&[0])), "SEND_RARP: protocol feature RARP was not negotiated"),
        (message(SEND_RARP, 1, &words(&[0])), "SEND_RARP: wrong size"),
        (message(SET_LOG_BASE, 1, &u64s(&[4096, 0])), "SET_LOG_BASE: protocol feature"),
        (message(IOTLB_MSG, 1, &[0; 40]), "IOTLB_MSG: not supported"),
        (message(SET_STATUS, 1, &u64s(&[15])), "SET_STATUS: not supported"),
        (message(POSTCOPY_ADVISE, 1, &[]), "POSTCOPY_ADVISE: not supported"),
        (message(GET_CONFIG, 1, &words(&[0, 4, 0, 0])), "GET_CONFIG: not supported, nor offered"),
        (message(GET_INFLIGHT_FD, 1, &[0; 24]), "GET_INFLIGHT_FD: wrong size, values"),
        (
            message(GET_INFLIGHT_FD, 1, &words(&[0, 0, 0, 0, 8 << 16 | 2, 0])),
            "GET_INFLIGHT_FD: queue 1 is running",
        ),
        (message(CHECK_DEVICE_STATE, 1, &[]), "CHECK_DEVICE_STATE: not supported"),
        (message(RESET_DEVICE, 1, &[]), "RESET_DEVICE: not supported"),
        (message(GET_FEATURES, 1, &[1]), "GET_FEATURES: wrong size"),
        (message(SET_OWNER, 5, &[]), "SET_OWNER: a reply to nothing"),
        (message(SET_OWNER, 2, &[]), "SET_OWNER: flags 0x2"),
        (message(SET_OWNER, 1, &[0; 4097]), "SET_OWNER: 4097 bytes of payload"),
    ];
    let mut n = 0;
    for (bytes, expected) in cases {
        n += 1;
        let mut raw = port.dial();
        prepare(&mut raw);
        // Queue 1 runs, queue 0 is not described.
        send_memory(&raw, &memory);
        assert_eq!(reply(&mut raw), [0; 8]);
        run_queue_1(&mut raw, &memory);
        raw.write_all(&bytes).unwrap();
        let reason = thrown_out(&port, n);
        assert!(reason.contains(expected), "{reason:?}, expected {expected:?}");
    }
    assert_serves(&port);
}

#[test]
fn packed_rings_that_cannot_be_are_refused() {
    use FrontendReq::*;
    let port = Port::server(1);
    let memory = SharedMemory::new(0, 0x1_0000).unwrap();
    let start = |base: u32| {
        [
            message(SET_VRING_NUM, 1, &words(&[1, 7])),
            message(SET_VRING_BASE, 1, &words(&[1, base])),
            ring_addresses(1, &memory, 0),
            message(SET_VRING_KICK, 1, &0x101u64.to_ne_bytes()),
        ]
        .concat()
    };
    let number = "expected from 1 up to 32768";
    let cases = [
        (message(SET_VRING_NUM, 1, &words(&[1, 0])), number),
        (message(SET_VRING_NUM, 1, &words(&[1, 32769])), number),
        (message(SET_VRING_NUM, 1, &words(&[1, 65536])), number),
        (start(7), "queue 1 cannot start: started at 0x7"),
        (start(0x8002_8001), "queue 1 cannot start: started at 0x80028001"),
    ];
    for (n, (bytes, expected)) in (1..).zip(cases) {
        let mut raw = port.dial();
        let features = VERSION_1 | PROTOCOL_FEATURES | features::F_RING_PACKED;
        prepare(&mut raw);
        raw.write_all(&message(SET_FEATURES, 1, &features.to_ne_bytes())).unwrap();
        send_memory(&raw, &memory);
        assert_eq!(reply(&mut raw), [0; 8]);
        raw.write_all(&bytes).unwrap();
        let reason = thrown_out(&port, n);
        assert!(reason.contains(expected), "{reason:?}, expected {expected:?}");
    }
    assert_serves(&port);
}

fn run_queue_1(raw: &mut UnixStream, memory: &SharedMemory) {
    let num = message(FrontendReq::SET_VRING_NUM, 9, &words(&[1, 8]));
    let kick = message(FrontendReq::SET_VRING_KICK, 9, &0x101u64.to_ne_bytes());
    for bytes in [num, ring_addresses(1, memory, 0), kick] {
        raw.write_all(&bytes).unwrap();
        assert_eq!(reply(raw), [0; 8]);
    }
}

#[test]
fn what_was_not_negotiated_is_not_obeyed() {
    let port = Port::server(1);
    for (n, (code, payload, expected)) in [
        (FrontendReq::GET_QUEUE_NUM, vec![], "GET_QUEUE_NUM: protocol feature"),
        (
            FrontendReq::GET_INFLIGHT_FD,
            words(&[0, 0, 0, 0, 8 << 16 | 2, 0]),
            "GET_INFLIGHT_FD: protocol feature",
        ),
        (FrontendReq::REM_MEM_REG, vec![0; 40], "REM_MEM_REG: protocol feature"),
        (
            FrontendReq::SET_VRING_ENABLE,
            words(&[0, 1]),
            "SET_VRING_ENABLE: PROTOCOL_FEATURES was not negotiated",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let mut raw = port.dial();
        raw.write_all(&message(FrontendReq::SET_FEATURES, 1, &VERSION_1.to_ne_bytes())).unwrap();
        raw.write_all(&message(code, 1, &payload)).unwrap();
        let reason = thrown_out(&port, n as u64 + 1);
        assert!(reason.contains(expected), "{reason}");
    }
    // Early SET_VRING_ENABLE is checked like any other.
    for (n, (payload, expected)) in [
        (words(&[2, 1]), "SET_VRING_ENABLE: queue index 2"),
        (words(&[0, 7]), "SET_VRING_ENABLE: invalid parameters"),
        (words(&[0]), "SET_VRING_ENABLE: wrong size"),
    ]
    .into_iter()
    .enumerate()
    {
        let mut raw = port.dial();
        raw.write_all(&message(FrontendReq::SET_VRING_ENABLE, 1, &payload)).unwrap();
        let reason = thrown_out(&port, n as u64 + 5);
        assert!(reason.contains(expected), "{reason}");
    }
}

#[test]
fn rings_outside_the_memory_are_refused_by_the_device() {
    let port = Port::server(1);
    let mut raw = port.dial();
    prepare(&mut raw);
    let memory = SharedMemory::new(0, 0x1_0000).unwrap();
    let elsewhere = SharedMemory::new(0, 0x1_0000).unwrap();
    send_memory(&raw, &memory);
    assert_eq!(reply(&mut raw), [0; 8]);
    for bytes in [
        message(FrontendReq::SET_VRING_NUM, 1, &words(&[0, 4])),
        message(FrontendReq::SET_VRING_BASE, 1, &words(&[0, 0])),
        ring_addresses(0, &elsewhere, 0),
        message(FrontendReq::SET_VRING_KICK, 1, &0x100u64.to_ne_bytes()),
    ] {
        raw.write_all(&bytes).unwrap();
    }
    let reason = thrown_out(&port, 1);
    assert!(reason.contains("queue 0 cannot start: the descriptor table"), "{reason}");
}

#[test]
fn a_new_table_without_a_running_ring_is_refused() {
    let port = Port::server(1);
    let mut guest = port.connect(one_pair());
    let elsewhere = SharedMemory::new(0, 0x1_0000).unwrap();
    let table = [region(&elsewhere)];
    use vhost::VhostBackend;
    guest.protocol().unwrap().set_mem_table(&table).unwrap_err();
    let reason = thrown_out(&port, 1);
    assert!(reason.starts_with("SET_MEM_TABLE: queue 0: "), "{reason}");
}

#[test]
fn a_device_that_refuses_is_heard() {
    let port = Port::server(1);
    port.device().refuse_start = Some("deadlines need preallocated memory".into());
    assert!(FrontEnd::connect(&port.path, one_pair()).is_err());
    assert_eq!(thrown_out(&port, 1), "queue 0 cannot start: deadlines need preallocated memory");
    assert_eq!(port.device().listened, 0, "its kick is forgotten");
}

/// A host that is too busy is not the front end's doing: it may come again, and is not quarantined.
#[test]
fn a_counter_that_could_not_be_tried_out_is_refused_and_not_recorded() {
    for code in [FrontendReq::SET_VRING_CALL, FrontendReq::SET_VRING_KICK] {
        let config = PortConfig::new("test", 1);
        let errands = config.errands.clone();
        let port = Port::server_with(config);
        let raw = port.dial();
        port.wait(|now| now.connects == 1);
        let (done, busy) = mpsc::channel::<()>();
        assert!(errands.ask(Duration::ZERO, move || busy.recv()).is_none());
        let event = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        send_fds(&raw, &message(code, 1, &words(&[0, 0])), &[event.as_fd()]);
        let reason = thrown_out(&port, 1);
        assert!(reason.contains("could not be tried out within 500 ms"), "{reason}");
        drop(done);
        assert_eq!(port.thread.conduct().held(std::time::Instant::now()).events, 0);
        assert_eq!(port.device().listened, 0);
    }
}

/// As many as one message carries wait to be closed: they count each.
#[test]
fn what_waits_to_be_closed_is_counted_by_descriptors() {
    let config = PortConfig::new("test", 1);
    let errands = config.errands.clone();
    let port = Port::server_with(config);
    let raw = port.dial();
    port.wait(|now| now.connects == 1);
    let (done, busy) = mpsc::channel::<()>();
    errands.give_up(Slow(busy));
    let memory = SharedMemory::new(0, 0x1_0000).unwrap();
    send_fds(&raw, &message(FrontendReq::SET_MEM_TABLE, 1, &words(&[1, 0])), &[memory.fd(); 8]);
    thrown_out(&port, 1);
    let closing = errands.closing();
    drop(done);
    assert!(closing >= 9, "{closing}");
}

#[test]
fn error_descriptors_are_signalled_to_those_to_blame() {
    let port = Port::server(1);
    for blame in [true, false] {
        let raw = port.dial();
        let err = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let bytes = message(FrontendReq::SET_VRING_ERR, 1, &words(&[0, 0]));
        send_fds(&raw, &bytes, &[err.as_fd()]);
        if blame {
            (&raw).write_all(b"garbage, and enough of it").unwrap();
            thrown_out(&port, 1);
        } else {
            drop(raw);
            port.wait_gone(3);
        }
        // The next front end is taken when nothing of the last is left to do.
        drop(port.dial());
        port.wait_gone(if blame { 2 } else { 4 });
        assert_eq!(rustix::io::read(&err, &mut [0u8; 8]).is_ok(), blame);
    }
}

#[test]
fn an_error_descriptor_that_is_slow_to_signal_is_recorded() {
    crate::eventfd::prepare();
    let port = Port::server(1);
    let raw = port.dial();
    let err = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    let _waiters = Waiters::on(&err, WAITERS).unwrap();
    send_fds(&raw, &message(FrontendReq::SET_VRING_ERR, 1, &words(&[0, 0])), &[err.as_fd()]);
    (&raw).write_all(b"garbage, and enough of it").unwrap();
    thrown_out(&port, 1);
    // The next front end is taken when it is done.
    drop(port.dial());
    port.wait_gone(2);
    assert_eq!(port.thread.conduct().held(std::time::Instant::now()).events, 1);
}

/// Codes of the protocol and a few beyond, mostly with the right flags.
fn any_message() -> impl Strategy<Value = Vec<u8>> {
    let flags = prop_oneof![8 => Just(1u32), 4 => Just(9u32), 1 => any::<u32>()];
    let payload = prop_oneof![
        4 => Just(8usize),
        1 => Just(40usize),
        1 => 0usize..64,
    ]
    .prop_flat_map(|len| {
        let byte = prop_oneof![3 => Just(0u8), 2 => Just(1u8), 1 => any::<u8>()];
        proptest::collection::vec(byte, len)
    });
    (0u32..48, flags, payload, -3i32..4).prop_map(|(code, flags, payload, lie)| {
        // The size is mostly true.
        let size = payload.len() as u32;
        let size = if lie == 3 { size.wrapping_add(1) } else { size };
        let mut bytes = words(&[code, flags, size]);
        bytes.extend(payload);
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever is said, with descriptors or without: the port serves the next.
    #[test]
    fn nothing_that_can_be_sent_ends_the_port(
        messages in proptest::collection::vec((any_message(), 0usize..3), 1..12),
        negotiated in any::<bool>(),
    ) {
        let port = Port::server_with(PortConfig {
            message_timeout: Duration::from_millis(20),
            ..PortConfig::new("test", 1)
        });
        let mut raw = port.dial();
        let memory = SharedMemory::new(0, 0x1_0000).unwrap();
        if negotiated {
            prepare(&mut raw);
            set_up_rings(&mut raw, &memory, 2);
        }
        let fds = [memory.fd(), memory.fd()];
        for (bytes, count) in &messages {
            if scm::send(&raw, bytes, &fds[..*count], SendFlags::empty()).is_err() {
                break;
            }
        }
        drop(raw);
        port.wait_gone(1);
        assert_serves(&port);
    }
}
