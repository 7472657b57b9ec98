//! Answers that are slow, or lie, and captures without end.

use super::common::{Lab, RunningAgent, identity, until};
use super::{MANY, hello, queries, reason, scene};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};
use tidegate::places::KeepOff;
use tidegate_contract::{Attach, Nanos, SocketMode, SocketOwner};
use tidegate_evidence::Quarantine;
use tidegate_switch::control::channel::send;
use tidegate_switch::control::message::{NotFollowed, Reply, Request, WorkStatus};
use tidegate_switch::stats::Region;
use tidegate_testkit::fake_switch::open_descriptors;

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
