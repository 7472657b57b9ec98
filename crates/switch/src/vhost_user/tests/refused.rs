//! Forbidden messages: each is named, and ends its connection only.

use super::*;
use crate::vhost_user::features;
use crate::virtio::Inflight;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use std::os::fd::AsFd;
use tidegate_frontend::front_end::{PROTOCOL_FEATURES, VERSION_1};

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
        // All is there before the first look.
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
    // Like QEMU: no table, but rings.
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
        (given(bytes, 4096, 2, 8), ours.fd(), "size, offset, queues or entries differ"),
        (given(bytes, 0, 3, 8), ours.fd(), "size, offset, queues or entries differ"),
        (given(one.bytes(), 0, 1, 8), one.fd(), "the region is for 1 queues, but the port has 2"),
        (given(0, 0, 0, 8), ours.fd(), "SET_INFLIGHT_FD: the region has no queues or no entries"),
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
    // Too few entries for a ring are found at its start; no region is added while one runs.
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
        (
            message(SET_VRING_KICK, 1, &[0; 8]),
            "SET_VRING_KICK: 0 file descriptors for queue 0, expected 1, or bit 8",
        ),
        (message(SET_FEATURES, 1, &u64s(&[1 << 17])), "SET_FEATURES: bit 17 not offered"),
        (
            message(SET_FEATURES, 1, &u64s(&[VERSION_1])),
            "SET_FEATURES: the features cannot change while queue 1 is running",
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
        (message(GET_INFLIGHT_FD, 1, &[0; 24]), "GET_INFLIGHT_FD: the region has no queues"),
        (
            message(GET_INFLIGHT_FD, 1, &words(&[0, 0, 0, 0, 8 << 16 | 2, 0])),
            "GET_INFLIGHT_FD: queue 1 is running",
        ),
        (message(CHECK_DEVICE_STATE, 1, &[]), "CHECK_DEVICE_STATE: not supported"),
        (message(RESET_DEVICE, 1, &[]), "RESET_DEVICE: not supported"),
        (message(GET_FEATURES, 1, &[1]), "GET_FEATURES: wrong size"),
        (message(SET_OWNER, 5, &[]), "SET_OWNER: the front end sent a reply, but the switch asked nothing"),
        (message(SET_OWNER, 2, &[]), "SET_OWNER: flags 0x2"),
        (message(SET_OWNER, 1, &[0; 4097]), "SET_OWNER: wrong size: 4097 bytes of payload, expected 0"),
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

/// Also by the check of its descriptors, and to unnegotiated messages.
#[test]
fn a_refusal_is_answered_if_the_front_end_asked_for_answers() {
    let port = Port::server(1);
    let (_reader, writer) = std::io::pipe().unwrap();
    for (n, (code, payload, files)) in (1..).zip([
        (FrontendReq::SET_VRING_NUM, words(&[0, 3]), None),
        (FrontendReq::SET_VRING_CALL, words(&[0, 0]), None),
        (FrontendReq::SET_VRING_CALL, words(&[0, 0]), Some(writer.as_fd())),
        (FrontendReq::SEND_RARP, words(&[0, 0]), None),
    ]) {
        let mut raw = port.dial();
        prepare(&mut raw);
        send_fds(&raw, &message(code, 9, &payload), files.as_slice());
        assert_eq!(u64::from_ne_bytes(reply(&mut raw)), 1, "{code:?}");
        thrown_out(&port, n);
        assert_eq!(raw.read(&mut [0]).unwrap(), 0);
    }
    // Messages with a reply of their own get none.
    let mut raw = port.dial();
    prepare(&mut raw);
    raw.write_all(&message(FrontendReq::GET_VRING_BASE, 9, &words(&[2, 0]))).unwrap();
    assert_eq!(raw.read(&mut [0]).unwrap(), 0);
    assert_serves(&port);
}

/// Its payload is not waited for.
#[test]
fn a_header_that_promises_another_length_is_refused_by_itself() {
    let port = Port::server(1);
    for (n, (code, size)) in
        (1..).zip([(FrontendReq::SET_FEATURES, 4096), (FrontendReq::SET_MEM_TABLE, 8 + 33 * 32)])
    {
        let mut raw = port.dial();
        raw.write_all(&words(&[code.into(), 1, size])).unwrap();
        let reason = thrown_out(&port, n);
        assert!(reason.starts_with(&format!("{code:?}: wrong size: {size} bytes of payload")), "{reason}");
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
fn messages_of_features_that_were_not_negotiated_are_refused() {
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
    // Early SET_VRING_ENABLE is checked as well.
    for (n, (payload, expected)) in [
        (words(&[2, 1]), "SET_VRING_ENABLE: queue index 2"),
        (words(&[0, 7]), "SET_VRING_ENABLE: 7 for queue 0, expected 1 to enable or 0 to disable"),
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
