//! Forbidden messages and descriptors of a front end: they cost its connection, nothing more.

use super::*;
use proptest::prelude::*;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use tidegate_frontend::attack::counters::{WAITERS, Waiters};
use tidegate_frontend::front_end::VERSION_1;

#[test]
fn garbage_ends_the_connection_and_is_named() {
    let port = Port::server(1);
    let mut raw = port.dial();
    raw.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let reason = thrown_out(&port, 1);
    assert!(reason.contains("is not part of the vhost-user protocol"), "{reason}");
    assert!(matches!(raw.read(&mut [0]), Ok(0) | Err(_)));
    assert_serves(&port);
    // The reason stays until there is a newer one.
    assert_eq!(port.status.snapshot().last_error, Some(reason));
}

#[test]
fn a_half_message_does_not_prevent_a_stop() {
    for bytes in [&[1u8, 0, 0][..], &message(FrontendReq::SET_FEATURES, 1, &[0; 8])[..15]] {
        let port = Port::server(1);
        let mut raw = port.dial();
        raw.write_all(bytes).unwrap();
        port.wait(|now| now.connects == 1);
        // Others are refused meanwhile.
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
fn a_front_end_that_reads_no_replies_delays_no_other() {
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
fn a_worker_never_waits_for_an_eventfd_that_it_signals() {
    crate::eventfd::prepare();
    let port = Port::server(1);
    let codes = [FrontendReq::SET_VRING_KICK, FrontendReq::SET_VRING_CALL, FrontendReq::SET_VRING_ERR];
    for (n, code) in (1..).zip(codes) {
        let (_reader, writer) = std::io::pipe().unwrap();
        send_fds(&port.dial(), &message(code, 1, &words(&[0, 0])), &[writer.as_fd()]);
        let reason = thrown_out(&port, n);
        assert_eq!(reason, format!("{code:?}: the descriptor for queue 0 is not an eventfd"));
    }
    // A blocking counter is made non-blocking.
    let full = eventfd(0, EventfdFlags::empty()).unwrap();
    rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    let raw = port.dial();
    send_fds(&raw, &message(FrontendReq::SET_VRING_ERR, 1, &words(&[0, 0])), &[full.as_fd()]);
    (&raw).write_all(&message(FrontendReq::SET_VRING_NUM, 1, &words(&[0, 3]))).unwrap();
    let reason = thrown_out(&port, 4);
    assert!(reason.contains("expected a power of two"), "{reason}");
    assert_serves(&port);
    // Also one that is made blocking after it was accepted.
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
    // The descriptor is meant for the second. Its owner is unknown: neither gets it.
    let polled = message(FrontendReq::SET_VRING_CALL, 1, &words(&[1 << 8, 0]));
    let called = message(FrontendReq::SET_VRING_CALL, 1, &words(&[0, 0]));
    send_fds(&port.dial(), &[polled, called].concat(), &[event.as_fd()]);
    let reason = thrown_out(&port, 1);
    assert!(reason.contains("SET_VRING_CALL") && reason.contains("file descriptors"), "{reason}");
    assert_serves(&port);
}

/// The host's load is not the front end's fault: it may reconnect, and is not quarantined.
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
        assert!(reason.contains("the test of the eventfd took longer than 500 ms"), "{reason}");
        drop(done);
        assert_eq!(port.thread.conduct().delays(std::time::Instant::now()).events, 0);
        assert_eq!(port.device().listened, 0);
    }
}

/// As many as one message carries wait to be closed: each counts.
#[test]
fn descriptors_that_wait_to_be_closed_are_counted() {
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

/// Returns how many descriptors of this process are this file or counter.
fn open_as(fd: impl AsFd) -> usize {
    let same = |number: &std::ffi::OsStr| {
        let stat = std::fs::metadata(std::path::Path::new("/proc/self/fd").join(number)).ok()?;
        let info = std::fs::read_to_string(std::path::Path::new("/proc/self/fdinfo").join(number)).ok()?;
        // All counters are one file.
        let counter = info.lines().find(|line| line.starts_with("eventfd-id:")).map(str::to_owned);
        Some((stat.dev(), stat.ino(), counter))
    };
    let own = same(fd.as_fd().as_raw_fd().to_string().as_ref());
    assert!(own.is_some());
    std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter(|fd| same(&fd.as_ref().unwrap().file_name()) == own)
        .count()
}

/// For a message refused by any check, errands close its descriptors.
#[test]
fn a_refusal_closes_nothing_on_the_ports_thread() {
    use FrontendReq::*;
    let region = |size: u64| [0, size, 0, 0].map(u64::to_ne_bytes).concat();
    let log = [1u64 << 30, 0].map(u64::to_ne_bytes).concat();
    let inflight = [&[0; 16][..], &[2u16, 8, 0, 0].map(u16::to_ne_bytes).concat()].concat();
    let cases = [
        ("a queue that there is not", SET_VRING_CALL, words(&[9, 0]), true),
        ("a start before memory", SET_VRING_KICK, words(&[0, 0]), true),
        ("bit 8 beside a descriptor", SET_VRING_ERR, words(&[1 << 8, 0]), true),
        ("a table longer than its file", SET_MEM_TABLE, [words(&[1, 0]), region(1 << 30)].concat(), false),
        ("a region longer than its file", ADD_MEM_REG, [words(&[0, 0]), region(1 << 30)].concat(), false),
        ("a log that was not negotiated", SET_LOG_BASE, log, false),
        ("an in-flight region that can shrink", SET_INFLIGHT_FD, inflight, false),
    ];
    for (what, code, payload, is_counter) in cases {
        let config = PortConfig::new("test", 1);
        let errands = config.errands.clone();
        let port = Port::server_with(config);
        let mut raw = port.dial();
        prepare(&mut raw);
        let (done, busy) = mpsc::channel::<()>();
        errands.give_up(Slow(busy));
        let memory = SharedMemory::new(0, 0x1_0000).unwrap();
        let event = eventfd(0, EventfdFlags::empty()).unwrap();
        let file = if is_counter { event.as_fd() } else { memory.fd() };
        let before = open_as(file);
        send_fds(&raw, &message(code, 1, &payload), &[file]);
        let reason = thrown_out(&port, 1);
        assert_eq!(open_as(file), before + 1, "{what}: {reason}");
        drop(done);
        let start = std::time::Instant::now();
        while open_as(file) > before {
            assert!(start.elapsed() < PATIENCE, "{what}: it is never closed");
        }
    }
}

#[test]
fn error_descriptors_are_signalled_to_faulty_front_ends() {
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
        // The next front end is accepted when all of the last is closed.
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
    // The next front end is accepted when that is done.
    drop(port.dial());
    port.wait_gone(2);
    assert_eq!(port.thread.conduct().delays(std::time::Instant::now()).events, 1);
}

/// Codes of the protocol and a few beyond, mostly with the right flags.
pub fn any_message() -> impl Strategy<Value = Vec<u8>> {
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

    /// Whatever is sent, with descriptors or without: the port serves the next.
    #[test]
    fn no_message_ends_the_port(
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
