//! Text in contracts, file names, domains and the agent's answers never acts on a terminal.

#![allow(clippy::disallowed_macros, clippy::disallowed_methods, reason = "these are the program's own rules")]

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tidegate_visible::is_hidden;

/// Clears the screen, sets a title, turns text around, hides, and forges a line.
const EVIL: &str = "\u{1b}[2J\u{9b}31m\u{1b}]0;owned\u{7}\u{202e}\u{200b}\r\nforged: line\t\u{e0041}";

fn in_json() -> String {
    serde_json::to_string(EVIL).unwrap().trim_matches('"').to_owned()
}

/// An agent, or an impostor, whose answer depends on the path.
struct Agent {
    socket: PathBuf,
    dir: tempfile::TempDir,
}

impl Agent {
    fn new(status: &'static str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("api.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let (mut head, mut byte) = (Vec::new(), [0]);
                while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap() == 1 {
                    head.push(byte[0]);
                }
                let head = String::from_utf8(head).unwrap();
                let body = if status.starts_with('2') { answer(&head) } else { refusal() };
                let _ = write!(
                    stream,
                    "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
                    body.len()
                );
                // Closing with unread data would discard the answer.
                let _ = stream.shutdown(std::net::Shutdown::Write);
                let _ = stream.read_to_end(&mut Vec::new());
            }
        });
        Self { socket, dir }
    }

    fn run(&self, arguments: &[&str], input: &str) -> Output {
        let mut child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .env("TIDEGATE_API", &self.socket)
            .env("RUST_LOG", "trace")
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        child.wait_with_output().unwrap()
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

fn refusal() -> String {
    format!(r#"{{"error":"{0}","details":["{0}",{{"{0}":"{0}"}}]}}"#, in_json())
}

/// Returns a vNIC with the text in every field.
fn vnic() -> String {
    let evil = in_json();
    format!(
        r#"{{"name":"{evil}","owner":"libvirt:{evil}","place":"{evil}","state":"failed","reason":"{evil}",
        "connection":"up","last_error":"{evil}","refused_connections":1,"thrown_out":{{"{evil}":1}},
        "contract":{{"name":"{evil}","attach":{{"vhost-user":{{"path":"/run/{evil}","mode":"server",
            "owner":{{"user":"{evil}","group":null,"mode":null}}}}}},"mac":"52:54:00:00:00:01","segment":7,
            "tx":{{"max":null,"min":null,"burst":null}},"rx":{{"max":null,"burst":null}},"weight":1,"deadline":"1ms",
            "to":["{evil}"],"allowed":{{"macs":[],"prefixes":[],"vlans":[]}},"mtu":1500,"queues":1,
            "guest":"/run/{evil}"}},
        "stats":{{"name":"{evil}","index":0,"tx":{{"frames":1,"wire_frames":1,"wire_bytes":1,"dropped":{{"{evil}":3}}}},
            "rx":{{"frames":1,"wire_frames":1,"wire_bytes":1,"dropped":{{"{evil}":3}}}},"throttled_ns":1,"throttled":true,
            "delay":{{"count":1,"p50":1,"p99":1,"p999":1,"max":1,"buckets":[[1,1]]}},"realtime_delivered":1,
            "realtime_worst_ns":1,"misses":{{"{evil}":18446744073709551615,"queue":1}}}},
        "figures":[{{"name":"{evil}","value":1,"source":"{evil}"}}],"tx_rate_bps":1,"rx_rate_bps":1,
        "limits":{{"tx_bps":1,"tx_burst_bytes":1,"tx_min_bps":1,"rx_bps":1}},"soft":null,"tx_in_force":null,
        "promises":[{}]}}"#,
        promise()
    )
}

/// Returns an uplink with the text in every field.
fn uplink() -> String {
    let evil = in_json();
    let traffic =
        format!(r#"{{"frames":1,"wire_frames":1,"wire_bytes":1,"dropped":{{"{evil}":3,"path_mtu":1}}}}"#);
    format!(
        r#"{{"name":"{evil}","owner":"libvirt:{evil}","place":"{evil}","state":"failed","reason":"{evil}",
        "contract":{{"name":"{evil}","local":"192.0.2.1","device":"{evil}","rate":"1gbit",
            "peers":[{{"name":"{evil}","address":"192.0.2.2"}}]}},
        "remotes":["{evil}"],"worker":1,"stats":{{"sent":{traffic},"received":{traffic},
            "on_wire":{{"frames":1,"bytes":1,"copies":1}}}}}}"#
    )
}

fn promise() -> String {
    let evil = in_json();
    format!(
        r#"{{"vnic":"{evil}","egress":"{evil}","deadline_ns":1,"bound_ns":1,"margin_ns":1,"worst_seen_ns":1,
        "derivation":{{"critical_t_ns":1,"demand_bytes":1,"blocking_bytes":1,"capacity_bps":1,"host_latency_ns":1,
        "text":"{evil}"}},"holds_if":"{evil}","host_latency_violations":1}}"#
    )
}

fn answer(head: &str) -> String {
    let (evil, path) = (in_json(), head.split(' ').nth(1).unwrap());
    let path = path.split('?').next().unwrap();
    let method = head.split(' ').next().unwrap();
    match path {
        "/v1/host" => format!(
            r#"{{"version":"{evil}","problems":["{evil}"],"host":{{"flood":"1gbit"}},"places":[{{"name":"{evil}",
            "reachable":false,"reason":"{evil}","version":"{evil}","pid":1,"started":1,"vnics":1}}],
            "files":[{{"path":"{evil}","vnics":["{evil}"],"error":"{evil}"}}],
            "admission":{{"egresses":[],"bounds":[]}},"workers":[],"denied_calls":0,"reconcile_errors":0,
            "drift_repaired":0}}"#
        ),
        "/v1/vnics" => format!("[{}]", vnic()),
        "/v1/uplinks" => format!("[{}]", uplink()),
        _ if path.starts_with("/v1/uplinks/") => uplink(),
        "/v1/status" => status(),
        "/v1/cores" => cores(),
        "/v1/apply" | "/v1/plan" => format!(
            r#"{{"applied":false,"admissible":false,"refusals":["{evil}"],
            "vnics":[{{"vnic":"{evil}","action":"change","changes":[{{"key":"{evil}","from":"{evil}","to":"{evil}"}}]}}],
            "host":[{{"key":"{evil}","from":"{evil}"}}],"admission":{{"egresses":[{{"egress":"{evil}","capacity_bps":1,
            "realtime_bps":1,"guaranteed_bps":1,"remaining_bps":1,"vnics":["{evil}"]}}],"bounds":[{}]}},
            "notes":["{evil}"]}}"#,
            promise()
        ),
        _ if path.ends_with("/why") => format!(
            r#"{{"vnic":"{evil}","findings":["{evil}"],"misses":{{"{evil}":1}},"latest_misses":[{{"number":1,"at":1,
            "egress":"{evil}","cause":"queue","dropped":"{evil}","behind":"{evil}","delay":9,"deadline":1,"tokens":1,
            "worker":1,"queue":9,"buffers":1}}],"tx_dropped":{{"{evil}":1}},"rx_dropped":{{"{evil}":1}},
            "throttled_ns":1}}"#
        ),
        _ if path.ends_with("/capture") => format!("garbage {EVIL}"),
        _ if method == "GET" => vnic(),
        _ => format!(r#"{{"vnic":"{evil}","action":"change","changes":[{{"key":"{evil}","to":"{evil}"}}]}}"#),
    }
}

/// Work for frames with the text in every field.
fn cores() -> String {
    let evil = in_json();
    format!(
        r#"{{"kept":false,"cpus":[{{"cpu":0,"core":0,"cache":0,"node":0,"isolated":false,"housekeeping":true,"own":false}}],
        "stages":[{{"stage":"{evil}","kind":"{evil}","vnics":["{evil}"],"load":1,"measured":true,"present":[0],"planned":[1],
            "reason":"{evil}","missing":"{evil}"}}],
        "plan":{{"cost_ns":1,"present_cost_ns":2,"lower_bound_ns":1,"exact":false,"took_us":1,
            "impossible":[{{"vnic":"{evil}","reason":"{evil}"}}]}},
        "costs":"{evil}","conflicts":[{{"with":"{evil}","what":"{evil}","remedy":"{evil}"}}],
        "steering":[{{"device":"{evil}","mode":"{evil}","missing":"{evil}","flows":[{{"flow":"{evil}","matches":"{evil}","cpu":0,
            "frames":1,"bytes":1}}],"spread":[],"passed":1,"dropped":1}}]}}"#
    )
}

/// Two kinds of attention; one reason has several lines.
fn status() -> String {
    let evil = in_json();
    let attention = |kind: &str, what: &str| {
        format!(r#"{{"kind":"{kind}","about":["{evil}"],"what":"{what}","next":"{evil}"}}"#)
    };
    format!(
        r#"{{"version":"{evil}","attention":[{},{}],"places":[{{"name":"{evil}","reachable":true,"reason":"{evil}",
        "version":"{evil}","pid":1,"started":1,"vnics":1}}],"files":{{"accepted":1,"refused":1}},
        "vnics":{{"in_force":1,"pending":1,"failed":1,"refused":1}},"deadlines":{{"promised":1,"suspended":1}},
        "host_latency":{{"budget_ns":1,"loops":1,"loops_over_budget":1,"recently_over_budget":1,"longest_loop_ns":1}},
        "drift":{{"since_start":1,"recently":1}},"denied_calls":1,"recent_s":600}}"#,
        attention("failed-vnic", &evil),
        attention("refused-file", &format!("{evil}\\nno contract of this file is in force"))
    )
}

/// Checks that nothing acts or hides, and no line is forged.
#[track_caller]
fn assert_visible(what: &str, output: &Output) {
    for (stream, bytes) in [("standard output", &output.stdout), ("standard error", &output.stderr)] {
        let text = String::from_utf8_lossy(bytes);
        let hidden = text.chars().find(|c| !matches!(c, '\n' | '\t') && is_hidden(*c));
        assert_eq!(hidden, None, "{what}: {stream}: {text:?}");
        assert!(
            !text.lines().any(|line| line.trim_start().starts_with("forged")),
            "{what}: {stream}: {text}"
        );
    }
}

#[test]
fn any_answer_of_the_agent_is_shown_and_has_no_effect() {
    let agent = Agent::new("200 OK");
    let evil = EVIL.replace('\n', " ");
    for arguments in [
        &["vnic", "ls"][..],
        &["vnic", "show", "a"],
        &["vnic", "show", "a", "--statistics"],
        &["vnic", "set", "a", "tx.max=1mbit"],
        &["vnic", "set", &evil, &format!("{evil}={evil}")],
        &["vnic", "rm", "a"],
        &["why", "a"],
        &["uplink"],
        &["uplink", "a"],
        &["status"],
        &["why", &evil],
        &["top", "--once"],
        &["cores", "show"],
        &["cores", "plan"],
        &["cores", "apply"],
        &["plan", "-f", "-"],
        &["apply", "-f", "-"],
        &["capture", "a", "-w", "/dev/null"],
        &["libvirt", "hook", &evil, "start", "begin", "-"],
    ] {
        let output = agent.run(arguments, "[vnic.a]\n");
        let shown = [&output.stdout[..], &output.stderr].concat();
        assert!(!shown.is_empty(), "{arguments:?}");
        let shows = arguments[0] != "capture" && arguments[0] != "libvirt";
        assert!(!shows || shown.windows(7).any(|bytes| bytes == b"\\u{1b}["), "{arguments:?}: {output:?}");
        assert_visible(&format!("{arguments:?}"), &output);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            !shows || !errors.contains("does not understand the agent's answer"),
            "{arguments:?}: {errors}"
        );
        // JSON is exact.
        let output = agent.run(&[&["--json"], arguments].concat(), "[vnic.a]\n");
        assert_visible(&format!("--json {arguments:?}"), &output);
        if shows && arguments != ["top", "--once"] {
            let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            assert!(has(&value, EVIL), "{arguments:?}: {value}");
        }
    }
}

fn has(value: &serde_json::Value, text: &str) -> bool {
    match value {
        serde_json::Value::String(own) => own == text,
        serde_json::Value::Array(all) => all.iter().any(|value| has(value, text)),
        serde_json::Value::Object(all) => all.iter().any(|(key, value)| key == text || has(value, text)),
        _ => false,
    }
}

#[test]
fn quotes_in_a_refusal_are_shown_and_have_no_effect() {
    for status in ["422 Unprocessable Entity", "404 Not Found", "503 Service Unavailable"] {
        let agent = Agent::new(status);
        for arguments in [
            &["vnic", "ls"][..],
            &["vnic", "show", "a"],
            &["vnic", "set", "a", "tx.max=1mbit"],
            &["vnic", "rm", "a"],
            &["why", "a"],
            &["top", "--once"],
            &["cores", "show"],
            &["cores", "apply"],
            &["plan", "-f", "-"],
            &["apply", "-f", "-"],
            &["capture", "a", "-w", "/dev/null"],
        ] {
            let output = agent.run(arguments, "[vnic.a]\n");
            assert!(!output.status.success() && !output.stderr.is_empty(), "{output:?}");
            assert_visible(&format!("{status} {arguments:?}"), &output);
        }
    }
}

#[test]
fn names_of_files_sockets_and_arguments_are_shown_and_have_no_effect() {
    let agent = Agent::new("200 OK");
    let missing = agent.dir.path().join(EVIL);
    let missing = missing.to_str().unwrap();
    let file = agent.file(EVIL, "not a contract, not XML");
    let line = EVIL.replace('\n', " ");
    for arguments in [
        &["apply", "-f", missing][..],
        &["plan", "-f", missing],
        &["--api", missing, "vnic", "ls"],
        &["--api", missing, "apply", "-f", &file],
        &["capture", "a", "-w", agent.dir.path().join("no").join(EVIL).to_str().unwrap()],
        &["libvirt", "import", missing],
        &["libvirt", "import", &file],
        &["libvirt", "install-hook", "--hooks-dir", &file],
        &["libvirt", "remove-hook", "--hooks-dir", missing],
        &["agent", "--state", &file],
        &["agent", "--api-group", EVIL, "--state", missing, "--config", missing],
        &["switch", "--socket", &agent.dir.path().join("no").join(EVIL).display().to_string()],
        &["switch", "--user", EVIL],
        // The command line parser quotes these, each on one line.
        &["switch", "--cpus", &line],
        &["vnic", "set", "a", &line],
        &[&line],
    ] {
        let output = agent.run(arguments, "");
        assert!(!output.stderr.is_empty() || output.status.success(), "{arguments:?}: {output:?}");
        assert_visible(&format!("{arguments:?}"), &output);
    }
}

#[test]
fn a_domain_is_shown_and_has_no_effect() {
    let agent = Agent::new("200 OK");
    // What XML allows.
    let evil = "\u{202e}\u{200b}\u{9b}31m&#10;forged: line&#9;";
    let xml = format!(
        "<domain><name>web{evil}</name><devices><interface type='network'><mac address='52:54:00:00:00:01'/>\
         <source network='{evil}'/><target dev='vnet{evil}'/>\
         <bandwidth><inbound average='1000' peak='{evil}'/><outbound average='1000' floor='{evil}'/></bandwidth>\
         </interface><interface type='hostdev{evil}'><mac address='52:54:00:00:00:02'/>\
         <bandwidth><inbound average='1000'/></bandwidth></interface></devices></domain>"
    );
    let plain = xml.replace(&format!(" peak='{evil}'"), "").replace(&format!(" floor='{evil}'"), "");
    for text in [&xml, &plain, &plain.replace(&format!("vnet{evil}"), "vnet0")] {
        let file = agent.file("domain.xml", text);
        for arguments in [&["libvirt", "import", &file][..], &["libvirt", "import", "--metadata", &file]] {
            assert_visible(&format!("{arguments:?} {text}"), &agent.run(arguments, ""));
            assert_visible(
                &format!("{arguments:?} {text}"),
                &agent.run(&[&["--json"], arguments].concat(), ""),
            );
        }
        let hook = ["libvirt", "hook", "web", "start", "begin", "-"];
        assert_visible(&format!("{hook:?} {text}"), &agent.run(&hook, text));
    }
    assert!(Path::new(&agent.socket).exists());
}
