//! The program as a script sees it, against a fake agent.

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};

/// Gives every request the same answer, and records it.
struct FakeAgent {
    socket: PathBuf,
    requests: Arc<Mutex<Vec<String>>>,
    _dir: tempfile::TempDir,
}

impl FakeAgent {
    fn answering(status: &'static str, body: &'static str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("api.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let notes = Arc::clone(&requests);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                notes.lock().unwrap().push(request(&mut stream));
                let answer = format!(
                    "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
                    body.len()
                );
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        Self { socket, requests, _dir: dir }
    }

    fn run(&self, arguments: &[&str]) -> Output {
        tidegate(&self.socket, arguments, "")
    }
}

fn request(stream: &mut impl Read) -> String {
    let mut text = Vec::new();
    let mut byte = [0];
    while !text.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap() == 1 {
        text.push(byte[0]);
    }
    let head = String::from_utf8(text).unwrap();
    let length =
        head.lines().find_map(|l| l.to_lowercase().strip_prefix("content-length:")?.trim().parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body).unwrap();
    head + &String::from_utf8(body).unwrap()
}

fn tidegate(socket: &Path, arguments: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .env("TIDEGATE_API", socket)
        .env_remove("RUST_LOG")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

fn errors(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

const EMPTY_PLAN: &str = r#"{"applied":true,"admissible":true,"refusals":[],"vnics":[],"host":[],
    "admission":{"egresses":[],"bounds":[]},"notes":[]}"#;

#[test]
fn success_is_0_and_the_request_says_where_the_text_came_from() {
    let agent = FakeAgent::answering("200 OK", EMPTY_PLAN);
    let output = tidegate(&agent.socket, &["apply", "--prune", "-f", "-"], "[vnic.a]\n");
    assert_eq!(code(&output), 0, "{}", errors(&output));
    assert_eq!(output.stdout, b"Nothing to change: all contracts are in force.\n");
    let requests = agent.requests.lock().unwrap();
    assert!(requests[0].starts_with("POST /v1/apply?origin=stdin&prune=true HTTP/1.1\r\n"), "{requests:?}");
    assert!(requests[0].ends_with("\r\n\r\n[vnic.a]\n"), "{requests:?}");
}

#[test]
fn an_unchanged_contract_whose_place_is_away_is_4() {
    const AWAY: &str = r#"{"vnic":"logger","action":"none","changes":[],
        "not_in_force":{"state":"pending","reason":"no switch at /run/s","place_away":true}}"#;
    const PLAN: &str = r#"{"applied":true,"admissible":true,"refusals":[],"host":[],"notes":[],
        "admission":{"egresses":[],"bounds":[]},"vnics":[{"vnic":"logger","action":"none","changes":[],
        "not_in_force":{"state":"pending","reason":"no switch at /run/s","place_away":true}}]}"#;
    let set = &["vnic", "set", "logger", "weight=1"][..];
    for (body, arguments) in [(PLAN, &["apply", "-f", "-"][..]), (AWAY, set)] {
        let agent = FakeAgent::answering("200 OK", body);
        let output = agent.run(arguments);
        let said = String::from_utf8(output.stdout.clone()).unwrap();
        assert_eq!(said, "Nothing to change, but logger is pending: no switch at /run/s\n");
        assert_eq!((code(&output), errors(&output)), (4, String::new()));
        let output = agent.run(&[arguments, &["--json"]].concat());
        let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((code(&output), value), (4, serde_json::from_str(body).unwrap()));
    }
    // `plan` shows the same and succeeds: the contracts are admissible.
    let output = FakeAgent::answering("200 OK", PLAN).run(&["plan", "-f", "-"]);
    assert_eq!(code(&output), 0);
    assert!(String::from_utf8(output.stdout).unwrap().contains("but logger is pending"));
}

#[test]
fn a_plan_of_cpus_without_a_cpu_for_a_deadline_is_3() {
    const PLAN: &str = r#"{"kept":false,"cpus":[],"stages":[],"costs":"priors","conflicts":[],"steering":[],"plan":{"cost_ns":1,
        "present_cost_ns":2,"lower_bound_ns":1,"exact":true,"took_us":1,"impossible":[{"vnic":"cam","reason":"no CPU"}]}}"#;
    const SINGLE: &str = r#"{"kept":false,"cpus":[],"stages":[],"costs":"","conflicts":[],"steering":[],
        "impossible":"the machine has one CPU"}"#;
    const NONE: &str = r#"{"kept":false,"cpus":[],"stages":[],"costs":"","conflicts":[],"steering":[]}"#;
    for (body, wanted) in [(PLAN, 3), (SINGLE, 3), (NONE, 1)] {
        let agent = FakeAgent::answering("200 OK", body);
        assert_eq!(code(&agent.run(&["cores", "plan"])), wanted, "{body}");
        let output = agent.run(&["cores", "plan", "--json"]);
        let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((code(&output), value), (wanted, serde_json::from_str(body).unwrap()));
        assert_eq!(code(&agent.run(&["cores", "show"])), 0, "{body}");
    }
    let away = FakeAgent::answering(
        "503 Service Unavailable",
        r#"{"error":"no place reports the CPUs","details":[]}"#,
    );
    assert_eq!(code(&away.run(&["cores", "show"])), 4);
    assert_eq!(code(&away.run(&["cores", "apply", "--off", "--adopt"])), 2);
}

#[test]
fn json_is_what_the_agent_said() {
    let agent = FakeAgent::answering("200 OK", r#"[{"name":"new","of":"a later release"}]"#);
    let output = agent.run(&["vnic", "ls", "--json"]);
    assert_eq!(code(&output), 0);
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(value, serde_json::json!([{"name": "new", "of": "a later release"}]));
}

#[test]
fn a_missing_vnic_is_1() {
    let agent = FakeAgent::answering("404 Not Found", r#"{"error":"there is no vNIC \"x\"","details":[]}"#);
    let output = agent.run(&["vnic", "show", "x"]);
    assert_eq!(code(&output), 1);
    assert_eq!(errors(&output), "tidegate: there is no vNIC \"x\"\n");
}

#[test]
fn a_file_that_cannot_be_read_is_1() {
    let agent = FakeAgent::answering("200 OK", EMPTY_PLAN);
    let output = agent.run(&["apply", "-f", "/nonexistent.toml"]);
    assert_eq!(code(&output), 1);
    assert!(errors(&output).contains("/nonexistent.toml"), "{}", errors(&output));
    assert!(agent.requests.lock().unwrap().is_empty());
}

#[test]
fn wrong_usage_is_2() {
    let agent = FakeAgent::answering("200 OK", "null");
    for arguments in [&["apply"][..], &["vnic", "set", "a", "tx.max"], &["vnic", "set", "a", "b=1", "b=2"]] {
        assert_eq!(code(&agent.run(arguments)), 2, "{arguments:?}");
    }
}

#[test]
fn a_refusal_is_3_with_every_reason() {
    let agent = FakeAgent::answering(
        "422 Unprocessable Entity",
        r#"{"error":"nothing was changed","details":["egress sink refuses a","egress sink refuses b"]}"#,
    );
    let output = agent.run(&["vnic", "set", "a", "deadline=1us"]);
    assert_eq!(code(&output), 3);
    let expected = "tidegate: nothing was changed\n  egress sink refuses a\n  egress sink refuses b\n";
    assert_eq!(errors(&output), expected);
    assert!(agent.requests.lock().unwrap()[0].ends_with(r#"{"set":{"deadline":"1us"}}"#));
}

#[test]
fn a_plan_that_is_not_admissible_is_3_also_as_json() {
    let agent = FakeAgent::answering(
        "200 OK",
        r#"{"applied":false,"admissible":false,"refusals":["too much"],"vnics":[],"host":[],
        "admission":{"egresses":[],"bounds":[]},"notes":[]}"#,
    );
    for arguments in [&["plan", "-f", "-"][..], &["--json", "plan", "-f", "-"]] {
        let output = agent.run(arguments);
        assert_eq!(code(&output), 3, "{arguments:?}");
        assert!(errors(&output).contains("too much"), "{}", errors(&output));
        assert!(!output.stdout.is_empty());
    }
}

#[test]
fn a_missing_agent_is_4_with_advice() {
    let output = tidegate(Path::new("/nonexistent/api.sock"), &["vnic", "ls"], "");
    assert_eq!(code(&output), 4);
    assert!(errors(&output).contains("tidegate-agent"), "{}", errors(&output));
    let agent = FakeAgent::answering("503 Service Unavailable", r#"{"error":"no switch","details":[]}"#);
    assert_eq!(code(&agent.run(&["vnic", "rm", "a"])), 4);
}

#[test]
fn a_capture_of_nothing_leaves_no_file() {
    let agent = FakeAgent::answering("404 Not Found", r#"{"error":"there is no vNIC \"x\"","details":[]}"#);
    let file = agent.socket.with_extension("pcapng");
    let output = agent.run(&["capture", "x", "-w", file.to_str().unwrap()]);
    assert_eq!(code(&output), 1);
    assert!(!file.exists());
    assert!(agent.requests.lock().unwrap()[0].starts_with("GET /v1/vnics/x/capture?snaplen=65535 "));
}

#[test]
fn top_without_a_terminal_prints_one_table() {
    let agent = FakeAgent::answering("200 OK", "[]");
    let output = agent.run(&["top"]);
    assert_eq!(code(&output), 0);
    assert!(output.stdout.starts_with(b"vnic"), "{}", String::from_utf8_lossy(&output.stdout));
    assert_eq!(agent.requests.lock().unwrap().len(), 2);
}

/// An answer of `/v1/status` with this attention list.
macro_rules! status {
    ($attention:literal) => {
        concat!(
            r#"{"version":"0.1.0","attention":["#,
            $attention,
            r#"],"places":[],"files":{"accepted":0,"refused":0},
            "vnics":{"in_force":0,"pending":0,"failed":0,"refused":0},"deadlines":{"promised":0,"suspended":0},
            "host_latency":{"budget_ns":250000,"loops":0,"loops_over_budget":0,"recently_over_budget":0,
            "longest_loop_ns":0},"drift":{"since_start":0,"recently":0},"denied_calls":0,"recent_s":600}"#
        )
    };
}

#[test]
fn a_status_is_0_where_all_is_well_and_1_where_something_needs_a_person() {
    let well = FakeAgent::answering("200 OK", status!(""));
    let output = well.run(&["status"]);
    assert_eq!((code(&output), errors(&output).as_str()), (0, ""));
    assert!(output.stdout.starts_with(b"All is well"), "{}", String::from_utf8_lossy(&output.stdout));
    assert_eq!(code(&well.run(&["status", "--json"])), 0);

    let ill = FakeAgent::answering(
        "200 OK",
        status!(r#"{"kind":"drift","about":[],"what":"again","next":"journalctl"}"#),
    );
    let output = ill.run(&["status"]);
    assert_eq!((code(&output), errors(&output).as_str()), (1, ""), "all is said on standard output");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("1 thing needs a person.\n\ndrift\n  again\n  run: journalctl\n"), "{text}");
    let output = ill.run(&["--json", "status"]);
    assert_eq!(code(&output), 1);
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(value["attention"][0]["next"], "journalctl");
}

#[test]
fn a_status_without_an_agent_is_4_and_says_what_goes_on() {
    let nowhere = Path::new("/nonexistent/api.sock");
    let output = tidegate(nowhere, &["status"], "");
    assert_eq!(code(&output), 4);
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(text.starts_with("1 thing needs a person.\n\naway: agent\n"), "{text}");
    assert!(
        text.contains("Contracts in force stay in force") && text.contains("run: systemctl status"),
        "{text}"
    );
    assert_eq!(errors(&output), "tidegate: cannot reach the agent at /nonexistent/api.sock\n");
    let output = tidegate(nowhere, &["status", "--json"], "");
    assert_eq!(code(&output), 4);
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&value["attention"][0]["kind"], &value["attention"][0]["about"][0]),
        (&"place-away".into(), &"agent".into())
    );
    // 1 means that a person is needed; an agent that does not know the question counts as unreachable.
    for (answer, body) in [("200 OK", "5"), ("404 Not Found", r#"{"error":"nothing here","details":[]}"#)] {
        let strange = FakeAgent::answering(answer, body);
        assert_eq!(code(&strange.run(&["status"])), 4);
        assert_eq!(code(&strange.run(&["status", "--once"])), 2);
    }
}
