//! A descriptor that takes long to close delays only its own port.

use crate::harness::{PATIENCE, TestSwitch, contract, udp, vnic};
use crate::pulse::Pulse;
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use tidegate_evidence::Connection;
use tidegate_frontend::attack::sockets::{Lingering, message, one_page, send_with};
use tidegate_frontend::front_end::{FrontEnd, Options};
use tidegate_switch::control::Client;
use tidegate_switch::server::{Switch, replace, session};
use vhost::vhost_user::message::FrontendReq;

/// Linger time, longer than any step here.
const LINGER: Duration = Duration::from_secs(60);
const AT_ONCE: Duration = Duration::from_secs(5);

type Pass = fn(&UnixStream, &mut Lingering);

fn hung(host: &TestSwitch, pass: impl FnOnce(&UnixStream, &mut Lingering)) -> Lingering {
    host.add(&contract(&vnic("hostile", 3, "")));
    let mut socket = Lingering::new(LINGER).unwrap();
    let stream = UnixStream::connect(host.socket("hostile")).unwrap();
    pass(&stream, &mut socket);
    drop(stream);
    socket
}

fn as_memory(stream: &UnixStream, socket: &mut Lingering) {
    socket.pass(stream, FrontendReq::SET_MEM_TABLE, &one_page()).unwrap();
}

#[track_caller]
fn at_once<T>(what: &str, act: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let done = act();
    assert!(start.elapsed() < AT_ONCE, "{what} took {:?}", start.elapsed());
    done
}

#[test]
fn a_removal_does_not_wait_for_a_socket_that_lingers() {
    let ways: [(&str, Pass); 7] = [
        ("as memory", as_memory),
        ("as the log", |stream, socket| {
            socket.pass(stream, FrontendReq::SET_LOG_BASE, &[0; 16]).unwrap();
        }),
        ("as the in-flight region", |stream, socket| {
            socket.pass(stream, FrontendReq::SET_INFLIGHT_FD, &[0; 24]).unwrap();
        }),
        ("as a kick", |stream, socket| socket.pass(stream, FrontendReq::SET_VRING_KICK, &[0; 8]).unwrap()),
        ("as a call", |stream, socket| socket.pass(stream, FrontendReq::SET_VRING_CALL, &[0; 8]).unwrap()),
        ("as an error counter", |stream, socket| {
            socket.pass(stream, FrontendReq::SET_VRING_ERR, &[0; 8]).unwrap();
        }),
        ("with a message that has none", |stream, socket| {
            socket.pass(stream, FrontendReq::SET_OWNER, &[]).unwrap();
        }),
    ];
    let host = TestSwitch::new(1);
    let pulse = Pulse::start(&host);
    for (way, pass) in ways {
        let _socket = hung(&host, pass);
        host.until(|| host.port("hostile").thrown_out.contains_key("message"));
        at_once(way, || host.switch.remove_port("hostile").unwrap());
        pulse.beats();
    }
}

/// Unreceived descriptors are closed with the socket on which they are queued.
#[test]
fn queued_descriptors_are_closed_without_delaying_a_port() {
    let host = TestSwitch::new(1);
    let pulse = Pulse::start(&host);
    let _in_a_message_that_is_never_whole = hung(&host, |stream, socket| {
        let whole = message(FrontendReq::SET_MEM_TABLE, &one_page());
        send_with(stream, &whole[..20], &[socket.fd()]).unwrap();
        socket.close_own();
    });
    host.until(|| host.port("hostile").thrown_out.contains_key("message"));
    at_once("removal, of one in the middle of a message", || host.switch.remove_port("hostile").unwrap());

    // Behind a served connection: some are turned away, others never accepted.
    host.add(&contract(&vnic("hostile", 3, "")));
    let served = FrontEnd::connect(host.socket("hostile"), Options::default()).unwrap();
    let (mut sockets, mut others) = (Vec::new(), Vec::new());
    host.until(|| {
        let mut socket = Lingering::new(LINGER).unwrap();
        let other = UnixStream::connect(host.socket("hostile")).unwrap();
        // A connection closed before the descriptor was sent is made again. `close_own` would then close the
        // last descriptor, and block this thread for the linger time.
        if send_with(&other, &[0], &[socket.fd()]).is_ok() {
            socket.close_own();
            sockets.push(socket);
            others.push(other);
        }
        sockets.len() == 4
    });
    host.until(|| host.port("hostile").refused_connections > 0);
    others.clear();
    drop(served);
    at_once("removal, with others that wait", || host.switch.remove_port("hostile").unwrap());
    pulse.beats();
}

#[test]
fn a_port_takes_the_next_front_end_when_the_last_one_is_closed() {
    let host = TestSwitch::new(1);
    let pulse = Pulse::start(&host);
    let mut socket = hung(&host, as_memory);
    host.until(|| host.port("hostile").closing);
    let path = host.socket("hostile");
    let connecting = std::thread::spawn(move || FrontEnd::connect(path, Options::default()).map(drop));
    std::thread::sleep(Duration::from_millis(500));
    assert!(!connecting.is_finished());
    assert_eq!(host.port("hostile").connection, Connection::Waiting);
    pulse.beats();
    socket.read_all();
    host.until(|| connecting.is_finished());
    connecting.join().unwrap().unwrap();
    assert!(!host.port("hostile").closing);
}

/// Lets a second switch continue with this one's ports. Both live as long as the result.
pub fn upgrade(host: &TestSwitch) -> impl Sized {
    let path = host.socket("control");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    host.switch.control.set(listener.try_clone().unwrap().into()).unwrap();
    let switch = host.switch.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            session::spawn(switch.clone(), stream);
        }
    });
    let next = Switch::start(1, &[], None).unwrap();
    let client = Client::connect(&path).unwrap();
    let went_on =
        at_once("an upgrade", || replace::prepare(&next, client, None).unwrap().start_traffic().unwrap());
    (next, went_on)
}

#[test]
fn an_upgrade_does_not_wait_for_a_socket_that_lingers() {
    let host = TestSwitch::new(1);
    let mut a = host.guest(&vnic("a", 1, ""));
    let mut b = host.guest(&vnic("b", 2, ""));
    let _socket = hung(&host, as_memory);
    host.until(|| host.port("hostile").closing);
    let _both = upgrade(&host);
    let frame = udp(b.mac(), a.mac(), b"through the next one");
    a.send(&frame);
    let start = Instant::now();
    while b.try_receive().is_none_or(|bytes| !bytes.ends_with(&frame)) {
        assert!(start.elapsed() < PATIENCE);
    }
}

/// As many descriptors as one message carries, all quick to close.
#[test]
fn unrequested_descriptors_are_all_closed() {
    let count = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let host = TestSwitch::new(1);
    host.add(&contract(&vnic("hostile", 3, "")));
    let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    let before = count();
    for n in 1..20 {
        let stream = UnixStream::connect(host.socket("hostile")).unwrap();
        let _ = send_with(&stream, &message(FrontendReq::SET_OWNER, &[]), &[event.as_fd(); 253]);
        host.until(|| host.port("hostile").thrown_out.get("message") == Some(&n));
    }
    let why = host.port("hostile").last_error.unwrap();
    assert!(why.contains("253 file descriptors, expected at most 0"), "{why}");
    host.until(|| count() <= before + 1);
}
