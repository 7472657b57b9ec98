//! During an upgrade, agent and switch of different releases read each other's control messages.
//!
//! ```text
//!  recorded/control-0.1.0 (written by commit d34f7b9) ─▶ parsed ─▶ equal to the same messages, made here
//!  the same messages ─▶ JSON ─▶ equal to the recorded lines: the earlier release reads ours
//! ```

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::fmt::Debug;
use tidegate_contract::{Host, Mac, Vnic, parse};
use tidegate_evidence::{Connection, HeldUp};
use tidegate_switch::control::message::{Hello, LinkKind, PROTOCOL, PortStatus, Reply, Request, Retired};
use tidegate_switch::control::notes::{Change, Note};
use tidegate_switch::vhost_user::saved::{SavedConnection, SavedLog, SavedRegion, SavedVring};
use tidegate_switch::worker::handover::Levels;

const CONTRACT: &str = r#"
[vnic.web]
attach = { vhost-user = "/run/tidegate/vm/web.sock" }
mac = "52:54:00:00:00:01"
segment = 7
tx = { max = "100mbit", burst = "64kB", min = "5mbit" }
rx = { max = "50mbit" }
weight = 3
allowed = { prefixes = ["10.0.0.1/32"], vlans = [7] }

[vnic.voice]
attach = { tap = "tg-voice", netns = "/run/netns/voice" }
mac = "52:54:00:00:00:02"
segment = 7
tx = { max = "2mbit", burst = "2kB" }
deadline = "1ms"
to = ["web"]
"#;

fn vnics() -> Vec<Vnic> {
    parse(CONTRACT, "recorded").expect("valid").vnics.into_iter().map(|v| v.value).collect()
}

fn connection() -> SavedConnection {
    SavedConnection {
        stream: 1,
        features: Some(0x1_4000_8000),
        protocol_features: 0x2d,
        regions: vec![SavedRegion {
            guest_addr: 0,
            user_addr: 0x7f00_0000_0000,
            size: 1 << 30,
            mmap_offset: 4096,
            file: 2,
        }],
        memory_is_alive: true,
        vrings: vec![
            SavedVring {
                size: Some(256),
                addresses: Some((0x1000, 0x2000, 0x3000)),
                base: Some(17),
                log: Some(0x4000),
                kick: Some(3),
                call: Some(4),
                err: None,
                enabled: true,
                running: true,
            },
            SavedVring::default(),
        ],
        inflight: Some(5),
        log: Some(SavedLog { file: 6, size: 8192, offset: 0 }),
    }
}

fn status(vnic: Vnic, index: usize) -> PortStatus {
    PortStatus {
        vnic,
        index,
        worker: 0,
        connection: Connection::Up,
        features: 0x1_0000_0020,
        queue_pairs: 1,
        deadline_suspended: Some("a reason".into()),
        last_error: Some("an error".into()),
        refused_connections: 2,
        heir: true,
        thrown_out: BTreeMap::from([("protocol".into(), 1)]),
        held: HeldUp::default(),
        shared: vec![],
        closing: false,
    }
}

fn requests() -> Vec<Request> {
    let [web, voice] = <[Vnic; 2]>::try_from(vnics()).expect("two");
    let set = |vnic: &Vnic, link| Request::SetPort { vnic: Box::new(vnic.clone()), link };
    vec![
        Request::Hello,
        Request::SetHost(Host::default()),
        set(&web, LinkKind::Unchanged),
        set(&web, LinkKind::Listener),
        set(&web, LinkKind::Stream),
        set(&voice, LinkKind::Tap),
        set(
            &web,
            LinkKind::Restored { listener: true, saved: Box::new(connection()), numbers: vec![1, 2, 3] },
        ),
        Request::RemovePort { name: "web".into() },
        Request::Ports,
        Request::Subscribe,
        Request::Retire,
        Request::Release,
        Request::Inherit,
        Request::Capture { name: "web".into(), snaplen: 128 },
    ]
}

fn replies() -> Vec<Reply> {
    let ports: Vec<PortStatus> =
        vnics().into_iter().enumerate().map(|(index, vnic)| status(vnic, index)).collect();
    let levels = Levels { tx: Some(-5), rx: None, flood: 1500 };
    vec![
        Reply::Done,
        Reply::Hello(Hello {
            protocol: PROTOCOL,
            version: "0.1.0".into(),
            pid: 7,
            started: 8,
            workers: 2,
            directable: false,
            shares_queues: false,
            knows_rdma: false,
            knows_zero_copy: false,
            rdma: vec![],
        }),
        Reply::Ports(ports.clone()),
        Reply::Retired(Box::new(Retired {
            host: Host::default(),
            ports,
            levels: vec![("web".into(), levels)],
            learned: vec![(Mac([2, 0, 0, 0, 0, 9]), "web".into(), 3)],
            stopped: 12345,
            dropped: true,
            watchdog_us: Some(8_000_000),
        })),
        Reply::Refused("a reason".into()),
    ]
}

fn notes() -> Vec<Note> {
    let note = |change| Note { vnic: "web".into(), change };
    vec![
        note(Change::Descriptors(vec![1, 2])),
        note(Change::State { messages: 9, saved: Box::new(connection()) }),
        note(Change::Closed),
        note(Change::Listener),
        note(Change::Tap),
    ]
}

/// Returns the recorded messages of `kind`; each line is the kind, a blank, and JSON.
fn recorded(kind: &str) -> Vec<&'static str> {
    let lines = include_str!("recorded/control-0.1.0").lines();
    lines.filter_map(|line| line.strip_prefix(kind)?.strip_prefix(' ')).collect()
}

fn agree<T: Serialize + DeserializeOwned + PartialEq + Debug>(kind: &str, ours: &[T]) {
    let recorded = recorded(kind);
    assert_eq!(recorded.len(), ours.len(), "one line for each {kind}");
    for (line, message) in recorded.iter().zip(ours) {
        let read: T = serde_json::from_str(line).unwrap_or_else(|error| panic!("{kind} {line}: {error}"));
        assert_eq!(read, *message, "{line}");
        let written: serde_json::Value = serde_json::to_value(message).expect("it serialises");
        let earlier: serde_json::Value = serde_json::from_str(line).expect("it is JSON");
        assert_eq!(written, earlier, "{kind}: an earlier release may not read this");
    }
}

#[test]
fn requests_of_an_earlier_release_are_read_and_written() {
    agree("request", &requests());
}

#[test]
fn replies_of_an_earlier_release_are_read_and_written() {
    agree("reply", &replies());
}

#[test]
fn notes_of_an_earlier_release_are_read_and_written() {
    agree("note", &notes());
}
