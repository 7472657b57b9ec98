//! Faults of messages on the socket.

use crate::scene::{
    Case,
    Costs::{Connection, Nothing},
    Kept,
    Layout::Split,
    Scene, case,
};
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::net::SendFlags;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use tidegate_frontend::attack::counters::Waiters;
use tidegate_frontend::attack::memory::{share_sparse, sparse_file};
use tidegate_frontend::front_end::VERSION_1;
use tidegate_service::scm;
use vhost::vhost_user::message::FrontendReq::{self, *};

/// Flags: 1 is the version, 8 requests an acknowledgement.
fn message(code: FrontendReq, flags: u32, payload: &[u8]) -> Vec<u8> {
    [&words(&[code.into(), flags, payload.len() as u32])[..], payload].concat()
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn send_fds(stream: &UnixStream, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    scm::send(stream, bytes, fds, SendFlags::empty()).unwrap();
}

fn say(scene: &mut Scene, bytes: &[u8]) -> Kept {
    let mut raw = scene.dial();
    raw.write_all(bytes).unwrap();
    Box::new(raw)
}

fn say_running(scene: &mut Scene, bytes: &[u8]) -> Kept {
    let front = scene.connect();
    front.stream().unwrap().write_all(bytes).unwrap();
    Box::new(front)
}

/// Passes a descriptor that is no eventfd, in each of the three messages that carry one.
fn no_eventfd(scene: &mut Scene, make: fn() -> OwnedFd) -> Kept {
    let mut kept = Vec::new();
    for code in [SET_VRING_KICK, SET_VRING_CALL, SET_VRING_ERR] {
        let before = scene.liar();
        let raw = scene.dial();
        let fd = make();
        send_fds(&raw, &message(code, 1, &words(&[0, 0])), &[fd.as_fd()]);
        scene.host.until(|| scene.liar().thrown_out != before.thrown_out);
        let why = scene.liar().last_error.unwrap();
        assert!(why.starts_with(&format!("{code:?}: ")), "{why}");
        scene.host.until(|| scene.liar().connection == tidegate_evidence::Connection::Waiting);
        kept.push((raw, fd));
    }
    Box::new(kept)
}

fn made(fd: i32) -> OwnedFd {
    assert!(fd >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: a new descriptor, not owned elsewhere.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

fn timer() -> OwnedFd {
    // SAFETY: a plain call.
    made(unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, 0) })
}

fn signals() -> OwnedFd {
    // SAFETY: an empty mask that lives during the call.
    made(unsafe {
        let mask: libc::sigset_t = std::mem::zeroed();
        libc::signalfd(-1, &raw const mask, 0)
    })
}

fn watched_files() -> OwnedFd {
    // SAFETY: a plain call.
    made(unsafe { libc::inotify_init1(0) })
}

fn waited_for(scene: &mut Scene, code: FrontendReq) -> Kept {
    let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    let waiters = Waiters::on(&event, 300_000).unwrap();
    let raw = scene.dial();
    send_fds(&raw, &message(code, 1, &words(&[0, 0])), &[event.as_fd()]);
    Box::new((raw, event, waiters))
}

fn no_memory(scene: &mut Scene, code: FrontendReq, payload: &[u8], file: impl AsFd) -> Kept {
    let raw = scene.dial();
    send_fds(&raw, &message(code, 1, payload), &[file.as_fd()]);
    Box::new(raw)
}

pub fn cases() -> Vec<Case> {
    let wrong = |text| Connection("message", text);
    // These cases do not depend on the rings' layout.
    vec![
        case("another protocol", Split, wrong("is not part of the vhost-user protocol"), |s| {
            say(s, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        }),
        case("reply to nothing", Split, wrong("sent a reply, but the switch asked nothing"), |s| {
            say(s, &message(SET_OWNER, 5, &[]))
        }),
        case("another protocol version", Split, wrong("flags 0x2"), |s| say(s, &message(SET_OWNER, 2, &[]))),
        case(
            "payload of 4 GiB less a byte",
            Split,
            wrong("bytes of payload, expected 8 and 32 for each region, at most 1032"),
            |s| say(s, &words(&[5, 1, u32::MAX])),
        ),
        case("payload of another length", Split, wrong("wrong size"), |s| {
            say(s, &message(GET_FEATURES, 1, &[1]))
        }),
        case("message of all ones", Split, wrong("is not part of the vhost-user protocol"), |s| {
            say(s, &[0xff; 64])
        }),
        case("features that were not offered", Split, wrong("not offered"), |s| {
            say(s, &message(SET_FEATURES, 1, &u64::MAX.to_ne_bytes()))
        }),
        case("other features while rings run", Split, wrong("is running"), |s| {
            say_running(s, &message(SET_FEATURES, 1, &VERSION_1.to_ne_bytes()))
        }),
        case(
            "start before anything else",
            Split,
            wrong("SET_VRING_KICK for queue 0 before SET_FEATURES"),
            |s| say(s, &message(SET_VRING_KICK, 1, &0x100u64.to_ne_bytes())),
        ),
        case("start before memory", Split, wrong("before any memory"), |s| {
            let features = message(SET_FEATURES, 1, &VERSION_1.to_ne_bytes());
            say(s, &[features, message(SET_VRING_KICK, 1, &0x100u64.to_ne_bytes())].concat())
        }),
        case("ring of no entries", Split, wrong("0 entries"), |s| {
            say(s, &message(SET_VRING_NUM, 1, &words(&[0, 0])))
        }),
        case("ring of 100 entries, split", Split, wrong("expected a power of two"), |s| {
            say(s, &message(SET_VRING_NUM, 1, &words(&[0, 100])))
        }),
        case("ring of 65536 entries", Split, wrong("65536 entries"), |s| {
            say(s, &message(SET_VRING_NUM, 1, &words(&[0, 65536])))
        }),
        case("ring of another size while it runs", Split, wrong("is running"), |s| {
            say_running(s, &message(SET_VRING_NUM, 1, &words(&[1, 4])))
        }),
        case("ring moved while it runs", Split, wrong("is running"), |s| {
            say_running(s, &message(SET_VRING_ADDR, 1, &[&words(&[1, 0])[..], &[0; 32]].concat()))
        }),
        case("base moved while the ring runs", Split, wrong("is running"), |s| {
            say_running(s, &message(SET_VRING_BASE, 1, &words(&[1, 1])))
        }),
        case("queue that does not exist", Split, wrong("queue index 4294967295"), |s| {
            say(s, &message(GET_VRING_BASE, 1, &words(&[u32::MAX, 0])))
        }),
        case("rings outside memory", Split, wrong("is not in the guest's memory"), |s| {
            let mut front = s.connect();
            front.stop_queue(1).unwrap();
            let addresses: Vec<u8> =
                [0x1000u64, 0x2000, 0x3000, 0].iter().flat_map(|a| a.to_ne_bytes()).collect();
            let stream = front.stream().unwrap();
            (&*stream).write_all(&message(SET_VRING_ADDR, 1, &[words(&[1, 0]), addresses].concat())).unwrap();
            // The connection may be closed already.
            let _ = (&*stream).write_all(&message(SET_VRING_KICK, 1, &0x101u64.to_ne_bytes()));
            Box::new(front)
        }),
        case("rings at odd addresses", Split, wrong("not aligned"), |s| {
            let mut front = s.connect();
            front.stop_queue(1).unwrap();
            let start = front.memory().user_addr() + 1;
            let addresses: Vec<u8> = [start, start, start, 0].iter().flat_map(|a| a.to_ne_bytes()).collect();
            let stream = front.stream().unwrap();
            (&*stream).write_all(&message(SET_VRING_ADDR, 1, &[words(&[1, 0]), addresses].concat())).unwrap();
            // The connection may be closed already.
            let _ = (&*stream).write_all(&message(SET_VRING_KICK, 1, &0x101u64.to_ne_bytes()));
            Box::new(front)
        }),
        case("base that the used index contradicts", Split, wrong("more than 256 entries in flight"), |s| {
            let mut front = s.connect();
            front.stop_queue(1).unwrap();
            let stream = front.stream().unwrap();
            (&*stream).write_all(&message(SET_VRING_BASE, 1, &words(&[1, 30_000]))).unwrap();
            // The connection may be closed already.
            let _ = (&*stream).write_all(&message(SET_VRING_KICK, 1, &0x101u64.to_ne_bytes()));
            Box::new(front)
        }),
        case("pipe where an eventfd is expected", Split, wrong("is not an eventfd"), |s| {
            no_eventfd(s, || std::io::pipe().unwrap().1.into())
        }),
        case("epoll where an eventfd is expected", Split, wrong("is not an eventfd"), |s| {
            no_eventfd(s, || epoll::create(epoll::CreateFlags::CLOEXEC).unwrap())
        }),
        case("timer where an eventfd is expected", Split, wrong("is not an eventfd"), |s| {
            no_eventfd(s, timer)
        }),
        case("signal descriptor where an eventfd is expected", Split, wrong("is not an eventfd"), |s| {
            no_eventfd(s, signals)
        }),
        case("inotify where an eventfd is expected", Split, wrong("is not an eventfd"), |s| {
            no_eventfd(s, watched_files)
        }),
        case("socket as memory", Split, wrong("SET_MEM_TABLE: memory region 0: not a file"), |s| {
            let table = [1u64, 0, 4096, 0, 0].map(u64::to_ne_bytes).concat();
            no_memory(s, SET_MEM_TABLE, &table, UnixStream::pair().unwrap().0)
        }),
        case(
            "socket as the dirty log",
            Split,
            wrong("SET_LOG_BASE: the descriptor is not shared memory"),
            |s| no_memory(s, SET_LOG_BASE, &[0; 16], UnixStream::pair().unwrap().0),
        ),
        case("socket as the in-flight region", Split, wrong("SET_INFLIGHT_FD: the descriptor is not"), |s| {
            no_memory(s, SET_INFLIGHT_FD, &[0; 24], UnixStream::pair().unwrap().0)
        }),
        case(
            "memory of a file of /proc",
            Split,
            wrong("not memory but on a file system of type 0x9fa0"),
            |s| {
                let table = [1u64, 0, 4096, 0, 0].map(u64::to_ne_bytes).concat();
                no_memory(s, SET_MEM_TABLE, &table, std::fs::File::open("/proc/self/maps").unwrap())
            },
        ),
        // Refused since the trial takes too long or, on a busy machine, gives no answer in time.
        case("call with 300,000 waiters", Split, wrong("in a test of the eventfd"), |s| {
            waited_for(s, SET_VRING_CALL)
        }),
        case(
            "sparse memory of 3 TiB",
            Split,
            Connection("quota", "3072.1 GiB of guest memory requested"),
            |s| {
                let file = sparse_file(3 << 40).unwrap();
                let mut front = s.connect();
                assert!(share_sparse(&mut front, &file, &[3 << 40]).is_err());
                Box::new(front)
            },
        ),
        case("more descriptors than a message may have", Split, wrong("SET_OWNER"), |s| {
            let raw = s.dial();
            let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
            send_fds(&raw, &message(SET_OWNER, 1, &[]), &[event.as_fd(); 8]);
            Box::new(raw)
        }),
        case("memory without descriptors", Split, wrong("guest memory is not shared"), |s| {
            say(s, &message(SET_MEM_TABLE, 1, &words(&[0, 0])))
        }),
        case("closed in the middle of a message", Split, wrong("closed in the middle"), |s| {
            drop(say(s, &message(SET_FEATURES, 1, &[0; 8])[..15]));
            Box::new(())
        }),
        case("message that is never finished", Split, Connection("stalled", "stalled in the middle"), |s| {
            say(s, &message(SET_FEATURES, 1, &[0; 8])[..15])
        }),
        case("a byte now and then", Split, Connection("stalled", "stalled in the middle"), |s| {
            let mut raw = s.dial();
            let bytes = message(SET_MEM_TABLE, 1, &[0; 40]);
            let (start, before) = (Instant::now(), s.liar().thrown_out);
            for byte in &bytes {
                if s.liar().thrown_out != before || raw.write_all(&[*byte]).is_err() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(100));
            }
            assert!(start.elapsed() < Duration::from_millis(100 * bytes.len() as u64));
            Box::new(raw)
        }),
        case(
            "questions whose answers are never read",
            Split,
            Connection("stalled", "of reading its reply"),
            |s| {
                let mut raw = s.dial();
                let many = message(GET_FEATURES, 1, &[]).repeat(100);
                while raw.write_all(&many).is_ok() {}
                Box::new(raw)
            },
        ),
        case("100 connections, one after the other", Split, Nothing, |s| {
            for _ in 0..100 {
                drop(s.dial());
            }
            s.host.until(|| s.liar().connection == tidegate_evidence::Connection::Waiting);
            Box::new(())
        }),
        case("150 connections while one is served", Split, Nothing, |s| {
            let front = s.connect();
            let before = s.liar().refused_connections;
            let others: Vec<_> = (0..150).map(|_| s.dial()).collect();
            // One waits; the others are turned away one by one, at the rate of accepting.
            s.host.until(|| s.liar().refused_connections > before + 10);
            drop(others);
            Box::new(front)
        }),
        case("an heir that never speaks, and a hundred behind it", Split, Nothing, |s| {
            let front = s.connect();
            let heir = s.dial();
            s.host.until(|| s.liar().heir);
            let others: Vec<_> = (0..100).map(|_| s.dial()).collect();
            drop(others);
            assert!(s.liar().heir);
            Box::new((front, heir))
        }),
        case("an heir that asks without end", Split, Nothing, |s| {
            let front = s.connect();
            let before = s.liar().refused_connections;
            let mut heir = s.dial();
            heir.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            let (question, mut answer) = (message(GET_FEATURES, 1, &[]), [0; 20]);
            while heir.write_all(&question).is_ok() && heir.read_exact(&mut answer).is_ok() {}
            s.host.until(|| s.liar().refused_connections > before && !s.liar().heir);
            Box::new(front)
        }),
        case("an heir with descriptors that never has its turn", Split, Nothing, |s| {
            let front = s.connect();
            let heir = s.dial();
            let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
            let call = message(SET_VRING_CALL, 1, &[0; 8]);
            for _ in 0..60 {
                send_fds(&heir, &call, &[event.as_fd()]);
            }
            send_fds(&heir, &message(SET_MEM_TABLE, 1, &[0xff; 40]), &[event.as_fd(); 250]);
            s.host.until(|| s.liar().heir);
            Box::new((heir, front))
        }),
        case("an heir's table of garbage", Split, Connection("message", "SET_MEM_TABLE"), |s| {
            let front = s.connect();
            let heir = s.dial();
            let table = message(SET_MEM_TABLE, 9, &[0xff; 40]);
            (&heir).write_all(&table).unwrap();
            s.host.until(|| s.liar().heir);
            drop(front);
            Box::new(heir)
        }),
        case("an heir while the first hangs", Split, Connection("stalled", "middle of a message"), |s| {
            let front = s.connect();
            let heir = s.dial();
            s.host.until(|| s.liar().heir);
            front.stream().unwrap().write_all(&message(GET_FEATURES, 1, &[])[..5]).unwrap();
            s.host.until(|| s.liar().thrown_out.contains_key("stalled"));
            drop(heir);
            Box::new(front)
        }),
    ]
}
