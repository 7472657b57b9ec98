//! Damaged state, and clients that misbehave.

#![allow(clippy::disallowed_macros, clippy::disallowed_methods, reason = "these are the program's own rules")]

mod common;

use common::{Lab, RunningAgent, identity, until};
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const RATE: &str = "tx = { max = \"100mbit\" }";

fn problems(agent: &RunningAgent) -> String {
    agent.get("/v1/host").1["problems"].to_string()
}

#[test]
fn contracts_without_a_good_copy_are_those_last_in_force() {
    let lab = Lab::new();
    let switch = lab.switch();
    let agent = lab.agent();
    agent.apply(&lab.vnic("a", 1, RATE));
    agent.apply(&lab.vnic("b", 2, ""));
    lab.write("c.toml", &lab.vnic("c", 3, ""));
    until("in force", || (switch.ports() == ["a", "b", "c"]).then_some(()));
    until("on disk", || {
        fs::read_to_string(lab.path("state/switch.json")).ok().filter(|t| t.contains("\"c\""))
    });
    agent.stop();
    let socket = identity(&lab.path("a.sock"));
    fs::write(lab.path("state/contracts.json"), vec![0; 700]).unwrap();
    fs::write(lab.path("state/contracts.json.previous"), b"").unwrap();
    switch.log();
    let agent = lab.agent();
    let said = problems(&agent);
    assert!(
        said.contains("the 3 vNICs last in force stay in force") && said.contains("earlier copy"),
        "{said}"
    );
    assert_eq!(agent.vnic("a")["limits"]["tx_bps"], 100_000_000);
    assert!(agent.vnic("c")["owner"].as_str().unwrap().starts_with("file:"));
    agent.stop();
    // The accepted file repaired the state.
    let agent = lab.agent();
    assert_eq!(
        (switch.log(), problems(&agent).as_str()),
        (vec!["host".to_owned(); 2], "[]"),
        "a port was touched"
    );
    assert_eq!(agent.request("DELETE", "/v1/vnics/b", "").0, 200);
    agent.stop();
    assert_eq!(identity(&lab.path("a.sock")), socket);
    let agent = lab.agent();
    assert_eq!((problems(&agent).as_str(), agent.get("/v1/vnics/b").0), ("[]", 404));
    assert_eq!(agent.vnic("a")["state"], "in force");
}

#[test]
fn the_copy_before_is_used_at_every_start_until_a_change_is_accepted() {
    let lab = Lab::new();
    let switch = lab.switch();
    let agent = lab.agent();
    agent.apply(&lab.vnic("a", 1, RATE));
    agent.apply(&lab.vnic("a", 1, "tx = { max = \"9mbit\" }"));
    agent.stop();
    fs::write(lab.path("state/contracts.json"), "{").unwrap();
    for _ in 0..2 {
        let agent = lab.agent();
        assert!(problems(&agent).contains("the copy saved before it is used"), "{}", problems(&agent));
        assert_eq!(agent.vnic("a")["limits"]["tx_bps"], 100_000_000);
        assert_eq!(switch.ports(), ["a"]);
        agent.stop();
    }
    let agent = lab.agent();
    assert_eq!(agent.request("PATCH", "/v1/vnics/a", r#"{"set": {"tx.max": "9mbit"}}"#).0, 200);
    assert_eq!(problems(&agent), "[]");
}

#[test]
fn a_lost_record_costs_no_port() {
    let lab = Lab::new();
    let switch = lab.switch();
    let agent = lab.agent();
    agent.apply(&(lab.vnic("a", 1, RATE) + &lab.vnic("b", 2, "")));
    agent.stop();
    fs::write(lab.path("state/switch.json"), "not a record").unwrap();
    let _ = fs::remove_file(lab.path("state/switch.json.previous"));
    switch.log();
    let agent = lab.agent();
    assert!(problems(&agent).contains("switch.json is damaged"), "{}", problems(&agent));
    until("taken over", || (agent.vnic("b")["state"] == "in force").then_some(()));
    assert_eq!(switch.log(), ["host"]);
    assert_eq!(switch.ports(), ["a", "b"]);
    assert_eq!(agent.request("DELETE", "/v1/vnics/a", "").0, 200);
    assert_eq!(switch.ports(), ["b"]);
    assert!(!lab.path("a.sock").exists());
}

#[test]
fn a_change_that_fails_gives_back_what_it_took_over() {
    let lab = Lab::new();
    let switch = lab.switch();
    let agent = lab.agent();
    agent.apply(&lab.vnic("a", 1, RATE));
    // As another agent would leave it: the port exists, but not in this agent's record.
    let mut foreign = switch.state().ports["a"].clone();
    foreign.vnic.name = "f".into();
    foreign.vnic.mac.0[5] = 6;
    let tidegate_contract::Attach::VhostUser { path, .. } = &mut foreign.vnic.attach else { panic!() };
    *path = lab.path("f.sock");
    let _theirs = UnixListener::bind(lab.path("f.sock")).unwrap();
    foreign.index = 1;
    switch.state().ports.insert("f".into(), foreign.clone());
    switch.state().refuse.insert("bad".into());
    let (status, error) = agent.apply(&(lab.vnic("f", 6, "weight = 5") + &lab.vnic("bad", 7, "")));
    assert_eq!(status, 409, "{error}");
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(switch.ports(), ["a", "f"]);
    assert_eq!(switch.state().ports["f"].vnic, foreign.vnic);
    assert!(lab.path("f.sock").exists());
}

#[test]
fn a_state_folder_that_is_removed_is_made_again() {
    let lab = Lab::new();
    let _switch = lab.switch();
    let agent = lab.agent();
    agent.apply(&lab.vnic("a", 1, RATE));
    fs::remove_dir_all(lab.path("state")).unwrap();
    until("it is there again", || {
        (lab.path("state/contracts.json").exists() && lab.path("state/switch.json").exists()).then_some(())
    });
    assert_eq!(fs::metadata(lab.path("state")).unwrap().permissions().mode() & 0o777, 0o700);
    agent.stop();
    let agent = lab.agent();
    assert_eq!((agent.vnic("a")["state"].as_str(), problems(&agent).as_str()), (Some("in force"), "[]"));
    assert_eq!(agent.request("DELETE", "/v1/vnics/a", "").0, 200);
}

#[test]
fn changes_are_refused_while_the_state_cannot_be_written() {
    let lab = Lab::new();
    let mut switch = lab.switch();
    let agent = lab.agent();
    agent.apply(&lab.vnic("a", 1, RATE));
    // In /proc not even root can make a file.
    fs::rename(lab.path("state"), lab.path("away")).unwrap();
    symlink("/proc/self/fdinfo", lab.path("state")).unwrap();
    switch.log();
    for (status, error) in [
        agent.apply(&lab.vnic("b", 2, "")),
        agent.request("PATCH", "/v1/vnics/a", r#"{"set": {"tx.max": "5mbit"}}"#),
        agent.request("DELETE", "/v1/vnics/a", ""),
    ] {
        assert_eq!(status, 507, "{error}");
        assert!(
            error["error"].as_str().unwrap().starts_with("nothing was changed, because it cannot be saved"),
            "{error}"
        );
    }
    assert_eq!(switch.log(), [""; 0], "something was touched");
    assert!(!lab.path("b.sock").exists());
    assert!(
        problems(&agent).contains("no change can be made") || problems(&agent).contains("are gone"),
        "{}",
        problems(&agent)
    );
    // The promises hold, even after a restart of the switch.
    switch.restart();
    until("in force", || (agent.vnic("a")["state"] == "in force").then_some(()));
    assert_eq!(switch.state().ports["a"].vnic.tx.max.unwrap().bits(), 100_000_000);
    fs::remove_file(lab.path("state")).unwrap();
    fs::rename(lab.path("away"), lab.path("state")).unwrap();
    assert_eq!(agent.apply(&lab.vnic("b", 2, "")).0, 200);
    until("no problem is left", || (problems(&agent) == "[]").then_some(()));
}

#[test]
fn silent_and_slow_clients_delay_no_other_client() {
    let lab = Lab::new();
    let switch = lab.switch();
    let agent = lab.agent();
    agent.apply(&lab.vnic("a", 1, RATE));
    let _silent: Vec<_> = (0..150).map(|_| UnixStream::connect(lab.path("api.sock")).unwrap()).collect();
    let mut slow: Vec<_> = (0..20).map(|_| UnixStream::connect(lab.path("api.sock")).unwrap()).collect();
    for client in &mut slow {
        // A long answer, never read.
        client.write_all(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    }
    let begin = Instant::now();
    assert_eq!(agent.apply(&lab.vnic("b", 2, "")).0, 200);
    assert_eq!(agent.get("/v1/vnics").0, 200);
    assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
    switch.state().ports.get_mut("a").unwrap().vnic.weight = 9;
    until("repaired", || (switch.state().ports["a"].vnic.weight == 1).then_some(()));
    let mut answer = Vec::new();
    slow.remove(0).read_to_end(&mut answer).unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", answer.len());
}

/// Half a head, no body, or an unread answer; each client reconnects when disconnected.
#[test]
fn three_hundred_slow_clients_delay_no_other_client() {
    let lab = Lab::new();
    let _switch = lab.switch();
    let agent = lab.agent();
    // The list exceeds a socket's buffer.
    let many: String = (0..200).map(|n| lab.vnic(&format!("v{n}"), n, "")).collect();
    assert_eq!(agent.apply(&many).0, 200);
    assert!(agent.raw("GET", "/v1/vnics", "").1.len() > 220_000);
    let words = [
        "GET / HTTP/1.1\r\nX: ",
        "POST /v1/plan HTTP/1.1\r\nContent-Length: 9999\r\n\r\n",
        "GET /v1/vnics HTTP/1.1\r\n\r\n",
    ];
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for n in 0..300 {
            let (lab, words, over) = (&lab, words[n % words.len()], &over);
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    let mut client = UnixStream::connect(lab.path("api.sock")).unwrap();
                    client.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
                    let _ = client.write_all(words.as_bytes());
                    // Reads a byte of a long answer now and then, until disconnected.
                    while !over.load(Ordering::Relaxed) {
                        match client.read(&mut [0]) {
                            Ok(1) => std::thread::sleep(Duration::from_millis(500)),
                            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                            _ => break,
                        }
                    }
                    std::thread::sleep(Duration::from_millis(50));
                }
            });
        }
        std::thread::sleep(Duration::from_secs(1));
        let waits: Vec<Duration> = (0..10)
            .map(|n| {
                let begin = Instant::now();
                // The agent may be too busy at first.
                while agent.get("/v1/host").0 != 200 {}
                while agent.apply(&lab.vnic("v0", 0, &format!("weight = {}", n + 1))).0 != 200 {}
                begin.elapsed()
            })
            .collect();
        over.store(true, Ordering::Relaxed);
        // Served one after the other, each wait exceeded ten seconds.
        assert!(waits.iter().max() < Some(&Duration::from_secs(5)), "{waits:?}");
    });
}

#[test]
fn a_switch_that_hangs_is_reported_and_blocks_no_query() {
    let lab = Lab::new();
    // Accepts connections and never answers.
    let _hung = UnixListener::bind(lab.path("switch.sock")).unwrap();
    lab.write("a.toml", &lab.vnic("a", 1, RATE));
    let agent = lab.agent();
    for _ in 0..10 {
        agent.get("/v1/vnics");
    }
    let reason = until("said", || {
        agent.vnic("a")["reason"].as_str().filter(|r| r.contains("no answer for")).map(str::to_owned)
    });
    assert!(reason.contains("SIGSTOP"), "{reason}");
    let begin = Instant::now();
    let (status, error) = agent.apply(&lab.vnic("b", 2, ""));
    assert_eq!(status, 503, "{error}");
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
    fs::remove_file(lab.path("switch.sock")).unwrap();
    let switch = lab.switch();
    until("in force", || (switch.ports() == ["a"]).then_some(()));
}
