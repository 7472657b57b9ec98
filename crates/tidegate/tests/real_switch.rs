//! The agent and the real switch, in one process.

#![allow(clippy::disallowed_macros, clippy::disallowed_methods, reason = "these are the program's own rules")]

mod common;

use common::{Lab, until};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use tidegate_switch::server::{Switch, session};

fn start_switch(lab: &Lab) -> Arc<Switch> {
    let switch = Switch::start(1, &[], None).unwrap();
    let listener = UnixListener::bind(lab.path("switch.sock")).unwrap();
    let shared = Arc::clone(&switch);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            session::spawn(Arc::clone(&shared), stream.unwrap());
        }
    });
    switch
}

#[test]
fn contracts_come_into_force_change_and_go() {
    let lab = Lab::new();
    let switch = start_switch(&lab);
    let agent = lab.agent();
    let realtime = "tx = { max = \"50mbit\", burst = \"2kB\" }\ndeadline = \"10ms\"\nto = [\"b\"]";
    let text = lab.vnic("a", 1, realtime) + &lab.vnic("b", 2, "rx = { max = \"1gbit\" }");
    let (status, answer) = agent.apply(&text);
    assert_eq!(status, 200, "{answer}");
    assert_eq!(
        (&agent.vnic("a")["state"], &agent.vnic("a")["connection"]),
        (&"in force".into(), &"waiting".into())
    );
    let (status, answer) = agent.request("PATCH", "/v1/vnics/a", r#"{"set": {"tx.max": "20mbit"}}"#);
    assert_eq!(status, 200, "{answer}");
    let limit = |name: &str| switch.ports().iter().find(|p| p.vnic.name == name).and_then(|p| p.vnic.tx.max);
    assert_eq!(limit("a").unwrap().bits(), 20_000_000);

    let front_end = UnixStream::connect(lab.path("b.sock")).unwrap();
    until("connected", || (agent.vnic("b")["connection"] == "connected").then_some(()));
    agent.stop();
    let agent = lab.agent();
    assert_eq!(agent.vnic("b")["connection"], "connected");
    drop(front_end);
    until("waiting", || (agent.vnic("b")["connection"] == "waiting").then_some(()));

    for name in ["a", "b"] {
        let (status, answer) = agent.request("DELETE", &format!("/v1/vnics/{name}"), "");
        assert_eq!(status, 200, "{answer}");
        assert!(!lab.path(&format!("{name}.sock")).exists());
    }
    assert!(switch.ports().is_empty());
}

#[test]
fn a_front_end_in_server_mode_is_dialled() {
    let lab = Lab::new();
    let switch = start_switch(&lab);
    let agent = lab.agent();
    let (status, answer) = agent.apply(&lab.vnic("a", 1, "").replace(" }", ", mode = \"client\" }"));
    assert_eq!(status, 200, "{answer}");
    assert_eq!(switch.ports().len(), 1);
    until("disconnected", || (agent.vnic("a")["connection"] == "disconnected").then_some(()));
    let listener = UnixListener::bind(lab.path("a.sock")).unwrap();
    for _ in 0..2 {
        let (front_end, _) = listener.accept().unwrap();
        until("connected", || (agent.vnic("a")["connection"] == "connected").then_some(()));
        drop(front_end);
    }
}

#[test]
fn a_tap_that_is_deleted_is_made_again() {
    let may = rustix::process::geteuid().is_root() && Path::new("/dev/net/tun").exists();
    if !tidegate_testkit::need("making taps needs root and /dev/net/tun", may) {
        return;
    }
    let lab = Lab::new();
    let switch = start_switch(&lab);
    let agent = lab.agent();
    let name = format!("tgr{}", std::process::id() % 100_000);
    let text =
        format!("[vnic.t]\nattach = {{ tap = \"{name}\" }}\nmac = \"52:54:00:00:00:07\"\nsegment = 1\n");
    let (status, answer) = agent.apply(&text);
    assert_eq!(status, 200, "{answer}");
    assert_eq!(
        (&agent.vnic("t")["state"], &agent.vnic("t")["connection"]),
        (&"in force".into(), &"up".into())
    );
    // `ip` shows this thread's namespace, /sys another's.
    let address = || {
        let shown = std::process::Command::new("ip").args(["-o", "link", "show", &name]).output().unwrap();
        shown.status.success().then(|| String::from_utf8(shown.stdout).unwrap())
    };
    assert!(address().unwrap().contains("52:54:00:00:00:07"));
    let deleted = std::process::Command::new("ip").args(["link", "del", &name]).status();
    if deleted.is_ok_and(|s| s.success()) {
        until("made again", address);
        until("in force", || (agent.vnic("t")["connection"] == "up").then_some(()));
    }
    // The switch keeps the tap's descriptor, a new agent does not.
    agent.stop();
    assert!(address().is_some());
    let agent = lab.agent();
    assert_eq!(agent.vnic("t")["connection"], "up");
    assert_eq!(agent.request("DELETE", "/v1/vnics/t", "").0, 200);
    assert!(switch.ports().is_empty());
    until("gone", || address().is_none().then_some(()));
}
