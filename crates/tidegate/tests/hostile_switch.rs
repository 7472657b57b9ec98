//! What an intruder in control of the switch can do to the agent, which is root.
//!
//! ```text
//!  switch that an intruder controls ── answers, notes, descriptors, statistics ──▶ agent ◀── six queries, in time
//! ```

#![allow(clippy::disallowed_macros, clippy::disallowed_methods, reason = "these are the program's own rules")]

mod common;

use common::{Lab, RunningAgent, identity, until};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::SendFlags;
use rustix::process::{Resource, getrlimit};
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tidegate::places::KeepOff;
use tidegate_contract::{Attach, Nanos, SocketMode, SocketOwner};
use tidegate_evidence::Quarantine;
use tidegate_service::scm::{self, SCM_MAX};
use tidegate_switch::control::channel::send;
use tidegate_switch::control::message::{Hello, NotFollowed, PROTOCOL, Reply, Request, WorkStatus};
use tidegate_switch::control::notes::{self, Change, Note};
use tidegate_switch::stats::Region;
use tidegate_switch::stats::layout::Layout;
use tidegate_testkit::fake_switch::open_descriptors;

/// Longest query, which waits up to 300 ms for a fresh look.
const PROMPT: Duration = Duration::from_secs(3);
/// Longest change, which waits for the switch.
const CHANGE: Duration = Duration::from_secs(25);

/// Makes the API's queries. Returns the longest time.
fn queries(agent: &RunningAgent) -> Duration {
    let reads = ["/v1/host", "/v1/vnics", "/v1/vnics/a", "/v1/vnics/a/why", "/metrics"];
    let timed = |method: &str, path: &str, body: &str, within: Duration| {
        let began = Instant::now();
        let (status, answer) = agent.request(method, path, body);
        assert!(status < 500 || status == 503, "{path}: {status} {answer}");
        assert!(began.elapsed() < within, "{path} took {:?}", began.elapsed());
        began.elapsed()
    };
    let longest = reads.iter().map(|path| timed("GET", path, "", PROMPT)).max().unwrap();
    // Faulty text, whose plan does not wait for the switch.
    longest.max(timed("POST", "/v1/plan", "[vnic.x]\n", CHANGE))
}

/// Returns why the switch is unusable, if it is.
fn reason(agent: &RunningAgent) -> Option<String> {
    let host = agent.get("/v1/host").1;
    let places = host["places"].as_array().unwrap().clone();
    let switch = places.into_iter().find(|place| place["name"] == "switch").unwrap();
    switch["reason"].as_str().map(str::to_owned)
}

fn hello() -> Reply {
    static STARTS: AtomicU64 = AtomicU64::new(1 << 40);
    let started = STARTS.fetch_add(1, Ordering::Relaxed);
    Reply::Hello(Hello {
        protocol: PROTOCOL,
        version: "hostile".into(),
        pid: 2,
        started,
        workers: 1,
        directable: true,
        shares_queues: true,
        rdma: vec![],
    })
}

fn statistics() -> Vec<u8> {
    let region = Region::create().unwrap();
    region.claim(0, "a");
    let file = File::from(region.file().try_clone_to_owned().unwrap());
    let mut bytes = vec![0; size_of::<Layout>()];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

fn memfd(bytes: &[u8], seals: SealFlags) -> OwnedFd {
    let fd = memfd_create("hostile", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    File::from(fd.try_clone().unwrap()).write_all_at(bytes, 0).unwrap();
    fcntl_add_seals(&fd, seals).unwrap();
    fd
}

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

fn scene(lab: &Lab) -> (tidegate_testkit::fake_switch::FakeSwitch, RunningAgent) {
    let (switch, agent) = (lab.switch(), lab.agent());
    assert_eq!(agent.apply(&lab.vnic("a", 1, "")).0, 200);
    until("in force", || (agent.vnic("a")["state"] == "in force").then_some(()));
    (switch, agent)
}

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
fn truncated_statistics_crash_no_process() {
    let lab = Lab::new();
    let (switch, agent) = scene(&lab);
    let (bytes, given) = (statistics(), Arc::new(Mutex::new(Vec::new())));
    let files = Arc::clone(&given);
    switch.answer_with(move |stream, request, _| {
        if *request != Request::Hello {
            return false;
        }
        // Unsealed, the file looks right until it is mapped.
        let file = memfd(&bytes, SealFlags::empty());
        send(stream, &hello(), &[file.as_fd()]).unwrap();
        files.lock().unwrap().push(file);
        true
    });
    for _ in 0..20 {
        for file in given.lock().unwrap().iter() {
            ftruncate(file, 0).unwrap();
        }
        queries(&agent);
        std::thread::sleep(Duration::from_millis(50));
    }
    let why = reason(&agent).expect("it is not trusted");
    assert!(why.contains("sealed"), "{why}");
    switch.answer_honestly();
    until("it is trusted again", || reason(&agent).is_none().then_some(()));
}

#[test]
fn only_memory_that_never_faults_is_accepted_as_statistics() {
    let lab = Lab::new();
    let (switch, agent) = scene(&lab);
    let bytes = statistics();
    let longer = [&bytes[..], &[0; 4096]].concat();
    let other_version = [&bytes[..8], &u64::MAX.to_ne_bytes(), &bytes[16..]].concat();
    let file = tempfile::tempfile().unwrap();
    file.write_all_at(&bytes, 0).unwrap();
    let huge = memfd_create("huge", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB);
    let mut kinds: Vec<(&str, OwnedFd)> = vec![
        ("can grow", memfd(&bytes, SealFlags::SHRINK | SealFlags::SEAL)),
        ("can shrink", memfd(&bytes, SealFlags::GROW | SealFlags::SEAL)),
        ("is longer", memfd(&longer, SEALS)),
        ("is shorter", memfd(&bytes[..bytes.len() - 4096], SEALS)),
        ("is of another version", memfd(&other_version, SEALS)),
        ("is a file", file.into()),
        ("is a pipe", std::io::pipe().unwrap().0.into()),
        ("is a device", File::open("/dev/zero").unwrap().into()),
        ("is a socket", UnixStream::pair().unwrap().0.into()),
    ];
    if let Ok(huge) = huge {
        ftruncate(&huge, 2 << 20).unwrap();
        fcntl_add_seals(&huge, SEALS).unwrap();
        kinds.push(("has huge pages", huge));
    }
    for (what, file) in kinds {
        switch.answer_with(move |stream, request, _| {
            *request == Request::Hello && send(stream, &hello(), &[file.as_fd()]).is_ok()
        });
        let why = until(what, || reason(&agent).filter(|why| why.contains("statistics")));
        println!("{what}: {why}");
        queries(&agent);
    }
    switch
        .answer_with(|stream, request, _| *request == Request::Hello && send(stream, &hello(), &[]).is_ok());
    until("none", || reason(&agent).filter(|why| why.contains("no descriptor of the statistics")));
    switch.answer_honestly();
    until("it is trusted again", || reason(&agent).is_none().then_some(()));
}

#[test]
fn any_contents_of_statistics_are_shown_and_do_no_harm() {
    let lab = Lab::new();
    let (switch, agent) = scene(&lab);
    let honest = statistics();
    let mut random = 1u64;
    for round in 0..12 {
        let mut bytes = honest.clone();
        // Past the header: counters of workers and vNICs, names, misses.
        for word in bytes[16..].chunks_exact_mut(8) {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let value = match round % 4 {
                0 => u64::MAX,
                1 => random,
                2 => random % 40,
                _ => u64::from_ne_bytes(*b"\x1b[2J\n\r\xe2\x80"),
            };
            word.copy_from_slice(&value.to_ne_bytes());
        }
        switch.answer_with(move |stream, request, _| {
            *request == Request::Hello && send(stream, &hello(), &[memfd(&bytes, SEALS).as_fd()]).is_ok()
        });
        std::thread::sleep(Duration::from_millis(700));
        queries(&agent);
        let (status, text) = agent.get("/metrics");
        assert_eq!(status, 200);
        assert!(!text.to_string().contains('\x1b'), "{text}");
    }
    switch.answer_honestly();
    until("it is trusted again", || reason(&agent).is_none().then_some(()));
    assert_eq!(agent.apply(&lab.vnic("b", 2, "")).0, 200);
}

/// Serialises tests that fill this process with descriptors, and one that measures query times.
static MANY: Mutex<()> = Mutex::new(());

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

#[test]
fn a_switch_that_is_slow_delays_no_query_and_other_changes_by_a_bounded_time() {
    // Not beside a test that makes the kernel grow this process's descriptor table: queries open
    // descriptors.
    let _turn = MANY.lock().unwrap_or_else(PoisonError::into_inner);
    let lab = Lab::new();
    let (switch, agent) = scene(&lab);
    let whole = |reply: &Reply| {
        let body = serde_json::to_vec(reply).unwrap();
        [&(body.len() as u32).to_le_bytes()[..], &body].concat()
    };
    // 0: no answer. 1: a byte every half second. 2: each answer late.
    for kind in 0..3 {
        switch.answer_with(move |stream, _, _| {
            match kind {
                0 => std::thread::sleep(Duration::from_secs(60)),
                1 => {
                    for byte in whole(&Reply::Ports(vec![])) {
                        std::thread::sleep(Duration::from_millis(500));
                        if (&mut &*stream).write_all(&[byte]).is_err() {
                            break;
                        }
                    }
                }
                _ => {
                    std::thread::sleep(Duration::from_millis(2800));
                    let region = Region::create().unwrap();
                    let _ = send(stream, &hello(), &[region.file().as_fd()]);
                }
            }
            true
        });
        let (end, mut longest) = (Instant::now() + Duration::from_secs(15), Duration::ZERO);
        let mut rounds = 0;
        while Instant::now() < end {
            longest = longest.max(queries(&agent));
            rounds += 1;
        }
        println!("kind {kind}: {rounds} rounds of six queries, the longest took {longest:?}");
        let accepted = switch.state().accepted;
        println!("{accepted} connections so far; open descriptors: {:?}", open_descriptors().unwrap());
        assert!(rounds >= 3, "{rounds} rounds in 15 s");
        // Changes that do not concern the switch still finish soon.
        let began = Instant::now();
        assert_eq!(agent.request("POST", "/v1/plan", "[host]\nflood = \"1gbit\"\n").0 / 100, 2);
        assert!(began.elapsed() < Duration::from_secs(10), "a plan took {:?}", began.elapsed());
    }
}

#[test]
fn nonsense_is_refused_and_its_words_are_bounded() {
    let lab = Lab::new();
    let (switch, agent) = scene(&lab);
    let framed = |body: Vec<u8>| [&(body.len() as u32).to_le_bytes()[..], &body].concat();
    let ports = |count: usize, name: fn(usize) -> String| {
        let status = switch.state().ports["a"].clone();
        let all = (0..count).map(|n| {
            let mut status = status.clone();
            status.vnic.name = name(n);
            status
        });
        serde_json::to_vec(&Reply::Ports(all.collect())).unwrap()
    };
    let queues = |queues: u16| {
        let mut status = switch.state().ports["a"].clone();
        status.vnic.queues = queues;
        serde_json::to_vec(&Reply::Ports(vec![status])).unwrap()
    };
    let deep = serde_json::to_string(&Reply::Ports(vec![switch.state().ports["a"].clone()])).unwrap();
    let deep = deep.replacen('{', &format!("{{\"ignored\":{},", "[".repeat(1 << 20)), 2);
    let lies: Vec<(&str, Vec<u8>)> = vec![
        ("a message of 4294967295 bytes", u32::MAX.to_le_bytes().to_vec()),
        ("no answer for 3 s", (16u32 << 20).to_le_bytes().to_vec()),
        ("expected value", framed(b"\x1b[2J\xff\xfe".repeat(100))),
        ("expected value", framed(b"[".repeat(1 << 20))),
        ("unknown variant", framed(deep.into_bytes())),
        ("another question: done", framed(serde_json::to_vec(&Reply::Done).unwrap())),
        ("unknown variant", framed(format!("{{\"{}\":1}}", "x".repeat(1 << 20)).into_bytes())),
        ("2000 ports", framed(ports(2000, |n| format!("p{n}")))),
        ("two ports of vNIC a", framed(ports(2, |_| "a".into()))),
        ("65535 queue pairs, expected 1 to 64", framed(queues(u16::MAX))),
        ("0 queue pairs, expected 1 to 64", framed(queues(0))),
        ("an invalid name", framed(ports(1, |_| "../../etc\x1b[2J\n".into()))),
        ("refused: no", framed(serde_json::to_vec(&Reply::Refused("no \x1b[2J\n".repeat(100_000))).unwrap())),
    ];
    for (words, bytes) in lies {
        switch.answer_with(move |stream, request, _| {
            *request == Request::Ports && (&mut &*stream).write_all(&bytes).is_ok() | true
        });
        let why = until(words, || reason(&agent).filter(|why| why.contains(words)));
        assert!(why.len() < 2000, "{words}: {} bytes", why.len());
        queries(&agent);
        switch.answer_honestly();
        until("it is trusted again", || reason(&agent).is_none().then_some(()));
    }
    let many = |count: u16| {
        let traffic = (0..count).map(|n| (n, n + 1, 1 << 60)).collect();
        let why = "no \x1b[2J\n".repeat(1000);
        let not_followed = NotFollowed { workers: [(0, why)].into(), ..NotFollowed::default() };
        Reply::Work(Box::new(WorkStatus { traffic, not_followed, ..WorkStatus::default() }))
    };
    for (words, lie) in [("more pairs", many(5000)), ("another question", Reply::Done)] {
        switch.answer_with(move |stream, request, _| {
            *request == Request::Work && send(stream, &lie, &[]).is_ok()
        });
        until(words, || reason(&agent).filter(|why| why.contains(words)));
        switch.answer_honestly();
        until("it is trusted again", || reason(&agent).is_none().then_some(()));
    }
    // Directions that it was not given are ended at a bounded pace.
    let lies = Arc::new(AtomicU64::new(0));
    let directed = Arc::clone(&lies);
    switch.answer_with(move |stream, request, _| match request {
        Request::Work => {
            let lie = directed.load(Ordering::Relaxed) as usize;
            let mut status = WorkStatus::default();
            status.directions.workers.insert(lie % 64, lie);
            send(stream, &Reply::Work(Box::new(status)), &[]).is_ok()
        }
        Request::Direct(_) => {
            directed.fetch_add(1, Ordering::Relaxed);
            send(stream, &Reply::Refused("no".into()), &[]).is_ok()
        }
        _ => false,
    });
    let end = Instant::now() + Duration::from_secs(6);
    while Instant::now() < end {
        queries(&agent);
    }
    let directed = lies.load(Ordering::Relaxed);
    assert!((1..=3).contains(&directed), "{directed} directions in 6 s");
    switch.answer_honestly();
    until("it is trusted again", || reason(&agent).is_none().then_some(()));
    // The front end's behaviour is also the switch's claim.
    let mut kept_apart = switch.state().ports["a"].clone();
    kept_apart.held.quarantine =
        Some(Quarantine { reason: "\x1b[2J\n".repeat(100_000), seconds: u64::MAX, remaining: u64::MAX });
    let lie = Reply::Ports(vec![kept_apart]);
    switch
        .answer_with(move |stream, request, _| *request == Request::Ports && send(stream, &lie, &[]).is_ok());
    let shown = until("it is kept apart", || {
        let vnic = agent.vnic("a");
        vnic["held"]["quarantine"].is_object().then_some(vnic)
    });
    let quarantine = &shown["held"]["quarantine"];
    assert!(quarantine["seconds"] == 3600 && quarantine["left"] == 3600, "{quarantine}");
    let text = shown.to_string();
    assert!(text.len() < 10_000 && !text.contains("\\u001b"), "{} bytes: {text:.1000}", text.len());
    switch.answer_honestly();
    until("it is trusted again", || reason(&agent).is_none().then_some(()));
    // A second answer belongs to no question: the conversation starts anew.
    let twice = framed(ports(1, |_| "a".into())).repeat(2);
    switch.answer_with(move |stream, request, _| {
        *request == Request::Ports && (&mut &*stream).write_all(&twice).is_ok() | true
    });
    for _ in 0..5 {
        queries(&agent);
        // The agent may take the extra answer for that to this request, and refuse.
        let status = agent.request("PATCH", "/v1/vnics/a", r#"{"set": {"tx.max": "9mbit"}}"#).0;
        assert!(status == 200 || status == 503, "{status}");
    }
    switch.answer_honestly();
    until("it is trusted again", || reason(&agent).is_none().then_some(()));
}

#[test]
fn a_port_that_lies_about_its_socket_moves_no_file() {
    let lab = Lab::new();
    let (switch, agent) = scene(&lab);
    // Another program's socket, which the agent could remove as root; and a path where it could make one.
    let (victim, nowhere) = (lab.path("victim.sock"), lab.path("nowhere.sock"));
    let _listener = UnixListener::bind(&victim).unwrap();
    let (before, own) = (identity(&victim), identity(&lab.path("a.sock")));
    let honest = switch.state().ports["a"].clone();
    for path in [&victim, &nowhere] {
        let mut status = honest.clone();
        status.vnic.attach = Attach::VhostUser {
            path: path.clone(),
            mode: SocketMode::Server,
            owner: SocketOwner { user: Some("1".into()), group: None, mode: Some(0o777) },
        };
        let lie = Reply::Ports(vec![status]);
        switch.answer_with(move |stream, request, _| {
            *request == Request::Ports && send(stream, &lie, &[]).is_ok()
        });
        std::thread::sleep(Duration::from_millis(1500));
        // A change that fails half-way is undone.
        switch.state().refuse = ["b".to_owned()].into();
        let both = lab.vnic("a", 1, "tx = { max = \"9mbit\" }") + &lab.vnic("b", 2, "");
        let (status, answer) = agent.apply(&both);
        assert_eq!(status, 409, "{answer}");
        switch.state().refuse.clear();
        assert_eq!(agent.apply(&both).0, 200);
        assert_eq!(agent.request("DELETE", "/v1/vnics/b", "").0, 200);
        assert!(!nowhere.exists(), "the agent made a socket where the switch said");
        assert_eq!((identity(&victim), identity(&lab.path("a.sock"))), (before, own));
        let meta = std::fs::symlink_metadata(&victim).unwrap();
        assert_ne!((meta.uid(), meta.permissions().mode() & 0o777), (1, 0o777));
        // A new agent does not believe it either.
    }
    drop(agent);
    let agent = lab.agent();
    assert_eq!(agent.request("DELETE", "/v1/vnics/a", "").0, 200);
    assert!(!lab.path("a.sock").exists() && identity(&victim) == before && !nowhere.exists());
}

/// The switch claims that the worker has a CPU, real-time frames flow, and the vNIC has a deadline.
#[test]
fn a_deadline_that_the_agent_did_not_give_keeps_no_cpu_awake() {
    let online = std::thread::available_parallelism().unwrap().get();
    if !tidegate_testkit::need("two CPUs are needed", online > 1) {
        return;
    }
    let lab = Lab::new();
    let switch = lab.switch();
    // No thread of this process, which runs other tests too, leaves a CPU.
    let places = lab.places_with(KeepOff { softirqs: false, halts: true });
    let agent = RunningAgent::start(lab.options(), places).unwrap();
    let envelope = "tx = { max = \"4mbit\", burst = \"2kB\" }\n";
    let sink = lab.vnic("b", 2, "rx = { max = \"1gbit\" }");
    assert_eq!(agent.apply(&(lab.vnic("a", 1, envelope) + &sink)).0, 200);
    until("in force", || (agent.vnic("a")["state"] == "in force").then_some(()));
    let region = Region::create().unwrap();
    region.claim(0, "a");
    region.layout().workers_used.set(1);
    region.layout().workers[0].cpu.set(1);
    let lying = Arc::new(AtomicBool::new(true));
    let mut ports = switch.state().ports.clone();
    let vnic = &mut ports.get_mut("a").unwrap().vnic;
    (vnic.deadline, vnic.queues) = (Some(Nanos::new(10_000_000)), 64);
    let (lie, lies) = (Reply::Ports(ports.into_values().collect()), Arc::clone(&lying));
    let looks = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&looks);
    switch.answer_with(move |stream, request, _| match request {
        Request::Hello => send(stream, &hello(), &[region.file()]).is_ok(),
        Request::Ports => {
            region.layout().vnics[0].realtime_delivered.add(1);
            counted.fetch_add(1, Ordering::Relaxed);
            lies.load(Ordering::Relaxed) && send(stream, &lie, &[]).is_ok()
        }
        _ => false,
    });
    let cpus = || agent.get("/v1/status").1["own_cpus"]["cpus"].clone();
    until("ten looks", || {
        assert_eq!(cpus(), serde_json::json!([]));
        (looks.load(Ordering::Relaxed) >= 10).then_some(())
    });
    // The same claims keep a CPU awake for a deadline that the agent gave.
    lying.store(false, Ordering::Relaxed);
    let deadline = format!("{envelope}deadline = \"10ms\"\nto = [\"b\"]\n");
    let (status, answer) = agent.apply(&(lab.vnic("a", 1, &deadline) + &sink));
    assert_eq!(status, 200, "{answer}");
    until("a CPU is kept awake", || (cpus() == serde_json::json!([0])).then_some(()));
}

#[test]
fn captures_without_end_or_answer_stop_no_query() {
    let lab = Lab::new();
    let (switch, agent) = scene(&lab);
    switch.answer_with(|stream, request, descriptors| {
        let Request::Capture { snaplen, .. } = request else { return false };
        if *snaplen == 64 {
            std::thread::sleep(Duration::from_secs(60));
            return true;
        }
        let mut pipe = File::from(descriptors[0].try_clone().unwrap());
        std::thread::spawn(move || while pipe.write_all(&[0x1b; 1 << 16]).is_ok() {});
        send(stream, &Reply::Done, &[]).is_ok()
    });
    let ask = |snaplen: u32| {
        let mut client = UnixStream::connect(lab.path("api.sock")).unwrap();
        write!(client, "GET /v1/vnics/a/capture?snaplen={snaplen} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        client
    };
    let mut readers = Vec::new();
    for _ in 0..4 {
        let mut client = ask(1000);
        readers.push(std::thread::spawn(move || {
            let (mut bytes, mut buffer) = (0, vec![0; 1 << 16]);
            while let Ok(count @ 1..) = client.read(&mut buffer) {
                bytes += count;
            }
            bytes
        }));
    }
    let silent: Vec<UnixStream> = (0..8).map(|_| ask(1000)).collect();
    let began = Instant::now();
    let mut unanswered = ask(64);
    let mut longest = Duration::ZERO;
    while began.elapsed() < Duration::from_secs(5) {
        longest = longest.max(queries(&agent));
    }
    let mut answer = Vec::new();
    unanswered.read_to_end(&mut answer).unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 503"), "{:?}", String::from_utf8_lossy(&answer));
    drop((agent, silent));
    let bytes: usize = readers.into_iter().map(|reader| reader.join().unwrap()).sum();
    println!("{} MB captured meanwhile, the longest query took {longest:?}", bytes >> 20);
    assert!(bytes > 1 << 20);
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
