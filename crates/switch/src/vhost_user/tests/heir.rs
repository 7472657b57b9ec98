//! A front end that waits while another is served.

use super::hostile::any_message;
use super::*;
use crate::quota::{Account, Amounts};
use crate::vhost_user::errands::Errands;
use crate::vhost_user::features::VHOST_F_LOG_ALL;
use proptest::prelude::*;
use std::thread::JoinHandle;
use std::time::Instant;
use tidegate_frontend::attack::sockets::Lingering;
use vhost::vhost_user::VhostUserProtocolFeatures;
use vhost::{VhostBackend, VhostUserDirtyLogRegion};

/// GET_FEATURES, which is answered.
fn question() -> Vec<u8> {
    message(FrontendReq::GET_FEATURES, 1, &[])
}

/// SET_FEATURES, which asks for the port.
fn demand() -> Vec<u8> {
    message(FrontendReq::SET_FEATURES, 9, &(VERSION_1 | PROTOCOL_FEATURES).to_ne_bytes())
}

/// SET_VRING_CALL or ERR of a queue, without acknowledgement.
fn counter(stream: &UnixStream, code: FrontendReq, queue: u64, fd: impl AsFd) {
    send_fds(stream, &message(code, 1, &queue.to_ne_bytes()), &[fd.as_fd()]);
}

fn event() -> std::os::fd::OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC).unwrap()
}

/// A whole guest: it runs when it has the port.
fn guest(port: &Port) -> JoinHandle<FrontEnd> {
    let path = port.path.clone();
    let guest = std::thread::spawn(move || FrontEnd::connect(path, migrating()).unwrap());
    port.wait(|now| now.heir);
    guest
}

fn migrating() -> Options {
    let more = VhostUserProtocolFeatures::LOG_SHMFD;
    Options { protocol_features: one_pair().protocol_features | more, ..one_pair() }
}

/// The dirty log of a guest: a migration has begun.
fn log(front: &mut FrontEnd) {
    let log = SharedMemory::new(0, 1 << 20).unwrap();
    let region =
        VhostUserDirtyLogRegion { mmap_size: 1 << 20, mmap_offset: 0, mmap_handle: log.fd().as_raw_fd() };
    let features = front.features() | VHOST_F_LOG_ALL;
    front.protocol().unwrap().set_log_base(0, Some(region)).unwrap();
    front.protocol().unwrap().set_features(features).unwrap();
}

/// Returns the used amounts when all given-up objects are closed.
fn settled(account: &Account, errands: &Errands) -> Amounts {
    let start = Instant::now();
    while errands.busy_for().is_some() {
        assert!(start.elapsed() < PATIENCE);
    }
    account.used()
}

/// Checks that the waiting front end was refused: its socket ends, and nothing else happened.
fn turned_away(port: &Port, heir: &mut UnixStream, refused: u64) {
    let mut rest = Vec::new();
    let _ = heir.read_to_end(&mut rest);
    let now = port.wait(|now| now.refused == refused && !now.heir);
    assert_eq!((now.connects, now.protocol_errors, now.last_error), (1, 0, None));
}

#[test]
fn an_heir_learns_the_ports_features_and_gets_the_port_when_the_first_leaves() {
    let port = Port::server(1);
    let mut first = port.connect(one_pair());
    let second = guest(&port);
    exchange(&port, &mut first, 1, 5);
    std::thread::sleep(Duration::from_millis(50));
    assert!(!second.is_finished(), "it has the port beside the first");
    let now = port.status.snapshot();
    assert_eq!((now.connects, now.refused, now.state, now.heir), (1, 0, State::Ready, true));
    first.disconnect();
    let mut second = second.join().unwrap();
    let now = port.wait(|now| now.state == State::Ready);
    assert_eq!((now.connects, now.heir, now.protocol_errors), (2, false, 0));
    exchange(&port, &mut second, 1, 5);
    // And the next one.
    let third = guest(&port);
    drop(second);
    exchange(&port, &mut third.join().unwrap(), 1, 5);
}

#[test]
fn an_heir_gets_the_port_after_a_migration_and_not_when_the_driver_stops() {
    let port = Port::server(1);
    let mut source = port.connect(migrating());
    let target = guest(&port);
    let stop = |source: &mut FrontEnd| assert!((0..2).all(|index| source.stop_queue(index).is_ok()));
    // A guest that reboots.
    stop(&mut source);
    std::thread::sleep(Duration::from_millis(50));
    assert!(!target.is_finished());
    for index in 0..2 {
        source.start_queue(index).unwrap();
        source.enable_queue(index, true).unwrap();
    }
    exchange(&port, &mut source, 1, 5);
    log(&mut source);
    exchange(&port, &mut source, 1, 5);
    assert!(!target.is_finished());
    stop(&mut source);
    let mut target = target.join().unwrap();
    // The source is still connected, and sees the end.
    assert_eq!(source.stream().unwrap().read(&mut [0]).unwrap(), 0);
    exchange(&port, &mut target, 1, 5);
    let ended = "disconnect: the guest continues at the waiting front end";
    assert!(port.events().iter().any(|event| event == ended));
    assert_eq!(port.status.snapshot().protocol_errors, 0);
}

#[test]
fn the_heirs_earlier_messages_hold_once_it_has_the_port() {
    let port = Port::server(1);
    let first = port.connect(one_pair());
    let mut heir = port.dial();
    let protocol = (1u64 << 3).to_ne_bytes();
    heir.write_all(&question()).unwrap();
    reply(&mut heir);
    heir.write_all(&message(FrontendReq::SET_PROTOCOL_FEATURES, 9, &protocol)).unwrap();
    assert_eq!(reply(&mut heir), [0; 8]);
    let calls = [event(), event()];
    for (queue, call) in (0..2).zip(&calls) {
        counter(&heir, FrontendReq::SET_VRING_CALL, queue, call);
        counter(&heir, FrontendReq::SET_VRING_ERR, queue, event());
        let enable = message(FrontendReq::SET_VRING_ENABLE, 9, &words(&[queue as u32, 1]));
        heir.write_all(&enable).unwrap();
        assert_eq!(reply(&mut heir), [0; 8]);
    }
    port.events();
    drop(first);
    heir.write_all(&demand()).unwrap();
    assert_eq!(reply(&mut heir), [0; 8]);
    set_up_rings(&mut heir, &SharedMemory::new(0x1000, 1 << 16).unwrap(), 2);
    let now = port.wait(|now| now.state == State::Ready);
    assert_eq!((now.protocol_features, now.queue_pairs), (1 << 3, 1));
    let events = port.events();
    assert!(events.iter().any(|event| event.starts_with("start 1 size 4") && event.ends_with("call true")));
}

#[test]
fn an_heir_that_is_silent_or_wants_a_used_port_is_turned_away() {
    let heir_timeout = Duration::from_millis(300);
    let port = Port::server_with(PortConfig { heir_timeout, ..PortConfig::new("test", 1) });
    let mut first = port.connect(one_pair());
    let start = Instant::now();
    let mut silent = port.dial();
    turned_away(&port, &mut silent, 1);
    let mut wants = port.dial();
    wants.write_all(&demand()).unwrap();
    turned_away(&port, &mut wants, 2);
    assert!(start.elapsed() >= 2 * heir_timeout);
    // A silent one that has asked may stay.
    let mut quiet = port.dial();
    quiet.write_all(&question()).unwrap();
    reply(&mut quiet);
    std::thread::sleep(2 * heir_timeout);
    assert!(port.status.snapshot().heir);
    quiet.write_all(&question()).unwrap();
    reply(&mut quiet);
    drop(quiet);
    let now = port.wait(|now| !now.heir);
    assert_eq!(now.refused, 2);
    exchange(&port, &mut first, 1, 5);
}

#[test]
fn a_faulty_heir_is_turned_away_and_the_first_does_not_notice() {
    crate::eventfd::prepare();
    let message_timeout = Duration::from_millis(100);
    let config = PortConfig { message_timeout, ..PortConfig::new("test", 1) };
    let waiting = config.waiting.clone();
    let port = Port::server_with(config);
    let mut first = port.connect(one_pair());
    let memory = SharedMemory::new(0x1000, 1 << 16).unwrap();
    type Send = fn(&UnixStream, &SharedMemory);
    let cases: [Send; 9] = [
        // Garbage; a part of a message; the end in the middle of one.
        |mut s, _| s.write_all(&[0xff; 64]).unwrap(),
        |mut s, _| s.write_all(&demand()[..15]).unwrap(),
        |mut s, _| {
            s.write_all(&demand()[..15]).unwrap();
            s.shutdown(std::net::Shutdown::Write).unwrap();
        },
        // Features that are not offered, a message of an unrequested one, a missing queue.
        |mut s, _| {
            let all = message(FrontendReq::SET_PROTOCOL_FEATURES, 1, &u64::MAX.to_ne_bytes());
            s.write_all(&all).unwrap();
        },
        |mut s, _| s.write_all(&message(FrontendReq::GET_QUEUE_NUM, 1, &[])).unwrap(),
        |s, _| counter(s, FrontendReq::SET_VRING_CALL, 2, event()),
        // No counter; many descriptors.
        |s, memory| counter(s, FrontendReq::SET_VRING_CALL, 0, memory.fd()),
        |s, memory| send_fds(s, &message(FrontendReq::SET_VRING_CALL, 1, &[0; 8]), &[memory.fd(); 200]),
        // More than it needs, with unread answers.
        |mut s, _| {
            let _ = s.set_write_timeout(Some(Duration::from_secs(5)));
            while s.write_all(&question().repeat(10)).is_ok() {}
        },
    ];
    for (n, wrong) in (1..).zip(cases) {
        let mut heir = port.dial();
        wrong(&heir, &memory);
        turned_away(&port, &mut heir, n);
        exchange(&port, &mut first, 1, 5);
    }
    holds(&waiting, 0);
    assert_eq!(port.thread.conduct().delays(Instant::now()).events, 0);
}

/// However many it sends: two for each queue, and those that wait to be closed. None is charged to the
/// first.
#[test]
fn the_heirs_descriptors_are_counted_and_bounded() {
    let config = PortConfig::new("test", 1);
    let (account, waiting) = (config.account.clone(), config.waiting.clone());
    let errands = config.errands.clone();
    let port = Port::server_with(config);
    let mut first = port.connect(one_pair());
    let before = settled(&account, &errands);
    let mut heir = port.dial();
    for _ in 0..10 {
        for queue in 0..2 {
            counter(&heir, FrontendReq::SET_VRING_CALL, queue, event());
            counter(&heir, FrontendReq::SET_VRING_ERR, queue, event());
        }
    }
    // A memory table that it cannot have yet is not even read.
    send_fds(&heir, &[memory_table(), question()].concat(), &[event().as_fd(); 250]);
    holds(&waiting, 4);
    exchange(&port, &mut first, 1, 5);
    assert_eq!(settled(&account, &errands), before);
    // Its own now: 250 descriptors are too many.
    drop(first);
    let now = port.wait(|now| now.protocol_errors == 1 && now.state == State::Waiting);
    assert!(now.last_error.unwrap().contains("file descriptors"));
    assert_eq!(heir.read(&mut [0]).unwrap_or(0), 0);
    holds(&waiting, 0);
    holds(&account, 0);
}

/// Its objects take for ever to close: the first is heard, and has its descriptors. So is its next heir, in
/// the end.
#[test]
fn closing_the_heirs_descriptors_does_not_delay_the_first() {
    crate::eventfd::prepare();
    let config = PortConfig::new("test", 1);
    let (account, waiting) = (config.account.clone(), config.waiting.clone());
    let errands = config.errands.clone();
    let port = Port::server_with(config);
    let mut first = port.connect(one_pair());
    let before = settled(&account, &errands);
    let mut socket = Lingering::new(Duration::from_secs(3600)).unwrap();
    let mut heir = port.dial();
    let call = message(FrontendReq::SET_VRING_CALL, 1, &[0; 8]);
    let harmless = event();
    let mut fds = vec![socket.fd()];
    fds.resize(200, harmless.as_fd());
    send_fds(&heir, &call, &fds);
    socket.close_own();
    let told = heir.read(&mut [0]);
    let is_over = |error: &std::io::Error| error.kind() == std::io::ErrorKind::ConnectionReset;
    assert!(told.as_ref().map_or_else(is_over, |bytes| *bytes == 0), "{told:?}");
    // The others wait as long as that takes.
    let mut next = port.dial();
    next.write_all(&question()).unwrap();
    assert!(waiting.used().descriptors > 150);
    for _ in 0..10 {
        assert!(first.stop_queue(0).is_ok() && first.start_queue(0).is_ok());
        first.enable_queue(0, true).unwrap();
    }
    exchange(&port, &mut first, 1, 5);
    assert_eq!(settled(&account, &errands), before);
    assert!(!port.status.snapshot().heir);
    socket.read_all();
    reply(&mut next);
    assert!(port.status.snapshot().heir);
}

/// Waits until this account has so many descriptors.
fn holds(account: &Account, descriptors: u64) {
    let start = Instant::now();
    while account.used() != (Amounts { descriptors, ..Amounts::default() }) {
        assert!(start.elapsed() < PATIENCE, "{:?}, expected {descriptors}", account.used());
    }
}

/// SET_MEM_TABLE of nonexistent memory.
fn memory_table() -> Vec<u8> {
    let mut payload = words(&[1, 0]);
    payload.extend([0xff; 32]);
    message(FrontendReq::SET_MEM_TABLE, 1, &payload)
}

/// Its garbage counts only once it has the port.
#[test]
fn a_garbage_memory_table_is_refused_once_the_heir_has_the_port() {
    let port = Port::server(1);
    let mut first = port.connect(one_pair());
    let heir = port.dial();
    send_fds(&heir, &memory_table(), &[event().as_fd()]);
    port.wait(|now| now.heir);
    exchange(&port, &mut first, 1, 5);
    drop(first);
    let now = port.wait(|now| now.protocol_errors == 1 && now.state == State::Waiting);
    assert!(now.last_error.unwrap().contains("SET_MEM_TABLE"));
    drop(heir);
    assert_eq!(port.wait(|now| now.connects == 2).refused, 0);
    let before = port.status.snapshot().connects;
    drop(port.connect(one_pair()));
    port.wait_gone(before + 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Whatever it sends, with descriptors or without: the first continues with its descriptors; whether
    /// the heir gets the port or not, the next is served, and nothing of the heir remains.
    #[test]
    fn no_message_of_an_heir_affects_the_first(
        messages in proptest::collection::vec((any_message(), 0usize..3), 1..12),
        leaves in any::<bool>(),
    ) {
        crate::eventfd::prepare();
        let message_timeout = Duration::from_millis(20);
        let config = PortConfig { message_timeout, ..PortConfig::new("test", 1) };
        let (account, waiting) = (config.account.clone(), config.waiting.clone());
        let port = Port::server_with(config);
        let mut first = port.connect(one_pair());
        let heir = port.dial();
        let (memory, counter) = (SharedMemory::new(0, 0x1_0000).unwrap(), event());
        let fds = [counter.as_fd(), memory.fd()];
        for (bytes, count) in &messages {
            if scm::send(&heir, bytes, &fds[..*count], SendFlags::empty()).is_err() {
                break;
            }
        }
        exchange(&port, &mut first, 1, 5);
        prop_assert_eq!(port.status.snapshot().connects, 1);
        let heir = (!leaves).then_some(heir);
        drop(first);
        port.wait(|now| now.connects > 1 || now.state == State::Waiting);
        drop(heir);
        let next = port.connect(one_pair());
        port.wait(|now| now.state == State::Ready);
        drop(next);
        port.wait(|now| now.state == State::Waiting && !now.heir);
        holds(&waiting, 0);
        holds(&account, 0);
    }
}

#[test]
fn a_first_that_hangs_is_thrown_out_and_the_heir_has_the_port() {
    let message_timeout = Duration::from_millis(50);
    let port = Port::server_with(PortConfig { message_timeout, ..PortConfig::new("test", 1) });
    let mut first = port.dial();
    port.wait(|now| now.connects == 1);
    let second = guest(&port);
    first.write_all(&demand()[..13]).unwrap();
    exchange(&port, &mut second.join().unwrap(), 1, 5);
    let now = port.status.snapshot();
    assert_eq!((now.connects, now.protocol_errors), (2, 1));
    assert!(now.last_error.unwrap().contains("stalled"));
}

/// Front ends that reconnect at once, for as long as they like: few are looked at, and the port's thread
/// sleeps.
#[test]
fn a_storm_of_front_ends_is_answered_slowly() {
    let port = Port::server_with(PortConfig::new("storm", 1));
    let mut first = port.connect(one_pair());
    let mut heir = port.dial();
    heir.write_all(&question()).unwrap();
    reply(&mut heir);
    let start = Instant::now();
    let (path, over) = (port.path.clone(), Duration::from_secs(1));
    let storm = std::thread::spawn(move || {
        let mut came = 0u64;
        while start.elapsed() < over {
            came += u64::from(UnixStream::connect(&path).is_ok());
        }
        came
    });
    exchange(&port, &mut first, 1, 5);
    heir.write_all(&question()).unwrap();
    reply(&mut heir);
    let came = storm.join().unwrap();
    let (refused, seconds) = (port.status.snapshot().refused, start.elapsed().as_secs_f64());
    assert!(came > 200 && refused > 2, "{came} came, {refused} were refused");
    assert!((refused as f64) < 45.0 * seconds + 2.0, "{refused} of {came} refused in {seconds:.1} s");
    // Ended ones hold no place.
    drop(first);
    let mut port_of_heir = heir;
    port_of_heir.write_all(&demand()).unwrap();
    let now = port.wait(|now| now.connects == 2);
    assert_eq!(now.protocol_errors, 0);
    drop(port_of_heir);
    port.wait(|now| now.connects > 2);
}

/// One after the other: only one in a while has the heir's place.
#[test]
fn heirs_that_come_and_go_are_let_in_slowly() {
    let port = Port::server(1);
    let mut first = port.connect(one_pair());
    let start = Instant::now();
    for _ in 0..8 {
        let mut heir = port.dial();
        heir.write_all(&question()).unwrap();
        reply(&mut heir);
    }
    assert!(start.elapsed() >= Duration::from_millis(7 * 25));
    exchange(&port, &mut first, 1, 5);
    assert_eq!(port.status.snapshot().refused, 0);
}

#[test]
fn stopping_ends_both() {
    let port = Port::server(1);
    let first = port.connect(one_pair());
    let mut heir = port.dial();
    heir.write_all(&question()).unwrap();
    reply(&mut heir);
    port.thread.stop();
    assert_eq!(heir.read(&mut [0]).unwrap_or(0), 0);
    assert_eq!(first.stream().unwrap().read(&mut [0]).unwrap(), 0);
}

/// As an idle port: a thread that polls would switch some 200 times.
#[test]
fn waiting_costs_nothing() {
    let port = Port::server_with(PortConfig::new("waits", 1));
    let _first = port.connect(one_pair());
    let mut heir = port.dial();
    heir.write_all(&question()).unwrap();
    reply(&mut heir);
    heir.write_all(&demand()).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    let before = switches("port waits");
    std::thread::sleep(Duration::from_secs(1));
    let after = switches("port waits");
    assert!(after - before < 20, "{} wake-ups", after - before);
}
