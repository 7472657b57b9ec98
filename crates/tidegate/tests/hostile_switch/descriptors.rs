//! Descriptors: too many, without end, and such that take long to close.

use super::common::{Lab, until};
use super::{MANY, hello, queries, reason, scene};
use rustix::net::SendFlags;
use rustix::process::{Resource, getrlimit};
use std::fs::File;
use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tidegate_service::scm::{self, SCM_MAX};
use tidegate_switch::control::channel::send;
use tidegate_switch::control::message::{Reply, Request};
use tidegate_switch::control::notes::{self, Change, Note};
use tidegate_switch::stats::Region;

/// Counts the descriptors of /dev/null; the agent runs in this process too.
fn descriptors() -> usize {
    let all = std::fs::read_dir("/proc/self/fd").unwrap();
    let links = all.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    links.filter(|link| link == Path::new("/dev/null")).count()
}

/// Waits until the previous test's descriptors are closed. Returns the number of the others.
fn few_descriptors() -> usize {
    until("the descriptors of the test before are closed", || Some(descriptors()).filter(|open| *open < 10))
}

fn send_many(stream: &UnixStream, bytes: &[u8], fd: BorrowedFd<'_>, count: usize) -> io::Result<usize> {
    scm::send(stream, bytes, &vec![fd; count], SendFlags::empty())
}

#[test]
fn too_many_descriptors_disturb_only_until_they_are_closed() {
    let _turn = MANY.lock().unwrap_or_else(PoisonError::into_inner);
    let lab = Lab::new();
    let (mut switch, agent) = scene(&lab);
    let before = few_descriptors();
    let null = File::open("/dev/null").unwrap();
    let keeper = |switch: &tidegate_testkit::fake_switch::FakeSwitch| {
        until("it is told", || switch.state().note_sockets.last().map(|fd| fd.try_clone().unwrap()))
    };
    let tell = |keeper: &OwnedFd, vnic: String, what: Change, count: usize| {
        let all = vec![null.as_fd(); count];
        let note = Note { vnic, change: what };
        until("there is room for a note", || notes::send(keeper, &note, &all).ok());
    };
    let most = getrlimit(Resource::Nofile).current.unwrap() as usize / 2;
    let vnics = most / 250 + 1;
    let too_many = |keeper: &OwnedFd| {
        for vnic in 0..vnics {
            tell(keeper, format!("v{vnic}"), Change::Tap, 250);
        }
        until("there are too many", || (descriptors() > most).then_some(()));
    };
    let few = || until("few are kept", || (descriptors() < before + 250).then_some(()));

    // The switch reports that the descriptors are unused.
    let dead = keeper(&switch);
    too_many(&dead);
    for vnic in 0..vnics {
        tell(&dead, format!("v{vnic}"), Change::Listener, 1);
    }
    few();

    // A new switch replaces the old one, whose note socket still sends.
    too_many(&dead);
    switch.restart();
    until("it is trusted again", || reason(&agent).is_none().then_some(()));
    few();
    let next = keeper(&switch);
    tell(&next, "a".into(), Change::Tap, 100);
    until("its descriptors are kept", || (descriptors() >= before + 100).then_some(()));
    assert!(
        notes::send(&dead, &Note { vnic: "a".into(), change: Change::Closed }, &[]).is_err(),
        "it is read still"
    );

    // The switch ends.
    too_many(&next);
    drop(next);
    switch.restart();
    until("it is trusted again", || reason(&agent).is_none().then_some(()));
    few();
    queries(&agent);
}

#[test]
fn descriptors_without_end_stop_no_query() {
    let _turn = MANY.lock().unwrap_or_else(PoisonError::into_inner);
    let lab = Lab::new();
    let (switch, agent) = scene(&lab);
    let before = few_descriptors();
    let null = Arc::new(File::open("/dev/null").unwrap());
    let region = Arc::new(Region::create().unwrap());
    let note_sockets: Arc<Mutex<Vec<OwnedFd>>> = Arc::default();
    let file = Arc::clone(&null);
    switch.answer_with(move |stream, request, _| {
        // The most descriptors that a message takes.
        let _ = send_many(stream, &[], file.as_fd(), SCM_MAX);
        match request {
            Request::Hello => {
                let mut all = vec![file.as_fd(); 1000];
                all[0] = region.file();
                send(stream, &hello(), &all).is_ok()
            }
            _ => send(stream, &Reply::Done, &vec![file.as_fd(); 1000]).is_ok(),
        }
    });
    let mut most = before;
    let end = Instant::now() + Duration::from_secs(5);
    while Instant::now() < end {
        queries(&agent);
        most = most.max(descriptors());
    }
    assert!(most < before + 20, "{before} descriptors before, {most} while it sends them");

    // Then in notes for ever new vNICs, each with a connection's most descriptors.
    switch.answer_honestly();
    until("it is trusted again", || reason(&agent).is_none().then_some(()));
    let note_socket =
        until("it is told", || switch.state().note_sockets.first().map(|fd| fd.try_clone().unwrap()));
    note_sockets.lock().unwrap().push(note_socket);
    let switch_sockets = Arc::clone(&note_sockets);
    let flood = std::thread::spawn(move || {
        let (socket, mut sent) = (switch_sockets.lock().unwrap().pop().unwrap(), 0u64);
        let end = Instant::now() + Duration::from_secs(8);
        while Instant::now() < end {
            let what = match sent % 3 {
                0 => Change::Descriptors((sent..sent + SCM_MAX as u64).collect()),
                1 => Change::Tap,
                _ => Change::Listener,
            };
            let note = Note { vnic: format!("v{}", sent / 3), change: what };
            match notes::send(&socket, &note, &vec![null.as_fd(); SCM_MAX]) {
                Ok(()) => sent += 1,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => std::thread::yield_now(),
                Err(_) => break,
            }
        }
        sent
    });
    let (limit, mut most) = (getrlimit(Resource::Nofile), 0);
    while !flood.is_finished() {
        queries(&agent);
        most = most.max(descriptors());
    }
    let sent = flood.join().unwrap();
    println!("{sent} notes of {SCM_MAX} descriptors: at most {most} of {:?}", limit.current);
    assert!(sent > 100, "{sent} notes are no flood");
    // Half of the limit, and one note's descriptors.
    assert!(most <= limit.current.unwrap() as usize / 2 + 2 * SCM_MAX, "{most} descriptors are kept");
}

/// Returns a TCP socket that takes a minute to close, and its peer.
fn lingering() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let peer = listener.accept().unwrap().0;
    socket.set_nonblocking(true).unwrap();
    while socket.write(&[0; 1 << 16]).is_ok() {}
    socket.set_nonblocking(false).unwrap();
    rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::from_secs(60))).unwrap();
    (socket.into(), peer)
}

#[test]
fn descriptors_that_take_long_to_close_delay_no_query() {
    // Made in the original network namespace: the lab's has no loopback interface that is up.
    let (make, made) = sync_channel(1);
    std::thread::spawn(move || while make.send(lingering()).is_ok() {});
    let made = Arc::new(Mutex::new(made));
    let lab = Lab::new();
    let (switch, agent) = scene(&lab);
    // Only the agent closes these sockets; here they are dropped once sent.
    let peers: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
    let (open, sockets) = (Arc::clone(&peers), Arc::clone(&made));
    switch.answer_with(move |stream, request, _| {
        if *request == Request::Subscribe {
            return false;
        }
        let (socket, peer) = sockets.lock().unwrap().recv().unwrap();
        open.lock().unwrap().push(peer);
        match request {
            // In place of the statistics, and where none is expected.
            Request::Hello => send(stream, &hello(), &[socket.as_fd()]).is_ok(),
            _ => send(stream, &Reply::Done, &[socket.as_fd()]).is_ok(),
        }
    });
    let end = Instant::now() + Duration::from_secs(10);
    while Instant::now() < end {
        queries(&agent);
    }
    let began = Instant::now();
    switch.answer_honestly();
    until("it is trusted again", || reason(&agent).is_none().then_some(()));
    // Also in notes, each descriptor replacing the last.
    let note_socket =
        until("it is told", || switch.state().note_sockets.first().map(|fd| fd.try_clone().unwrap()));
    for _ in 0..20 {
        let (socket, peer) = made.lock().unwrap().recv().unwrap();
        peers.lock().unwrap().push(peer);
        let note = Note { vnic: "a".into(), change: Change::Listener };
        notes::send(&note_socket, &note, &[socket.as_fd()]).unwrap();
    }
    for rate in ["7mbit", "8mbit"] {
        queries(&agent);
        assert_eq!(
            agent.request("PATCH", "/v1/vnics/a", &format!(r#"{{"set": {{"tx.max": "{rate}"}}}}"#)).0,
            200
        );
    }
    assert_eq!(agent.request("DELETE", "/v1/vnics/a", "").0, 200);
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    println!(
        "{} sockets, trusted and changed again after {:?}",
        peers.lock().unwrap().len(),
        began.elapsed()
    );
    // Otherwise a thread of the switch that still waits to send a socket keeps the others open, and threads
    // that other tests need close them for minutes.
    peers.lock().unwrap().clear();
}
