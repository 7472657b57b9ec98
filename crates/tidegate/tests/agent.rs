//! The agent against a fake switch.

#![allow(clippy::disallowed_macros, clippy::disallowed_methods, reason = "these are the program's own rules")]

mod common;

use common::{Lab, RunningAgent, identity, until};
use serde_json::json;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;
use tidegate_agent::views;

const RATE: &str = "tx = { max = \"100mbit\" }";

#[test]
fn an_applied_contract_is_in_force_and_its_socket_listens() {
    let (lab, mut agent) = (Lab::new(), None);
    let switch = lab.switch();
    let agent = agent.insert(lab.agent());
    let (status, plan) = agent.apply(&lab.vnic("a", 1, RATE));
    assert_eq!(
        (status, &plan["applied"], &plan["vnics"][0]["action"]),
        (200, &json!(true), &json!("create")),
        "{plan}"
    );
    let view: views::VnicView = serde_json::from_value(agent.vnic("a")).unwrap();
    assert_eq!(
        (view.state, view.owner.as_str(), view.limits.tx_bps),
        (views::State::InForce, "api", Some(100_000_000))
    );
    assert_eq!(switch.log(), ["host", "set a Listener"]);
    UnixStream::connect(lab.path("a.sock")).unwrap();

    assert_eq!(agent.request("DELETE", "/v1/vnics/a", "").0, 200);
    assert_eq!(switch.log(), ["remove a"]);
    assert!(!lab.path("a.sock").exists());
    assert_eq!(agent.get("/v1/vnics/a").0, 404);
}

#[test]
fn a_limit_changes_live() {
    let lab = Lab::new();
    let switch = lab.switch();
    let agent = lab.agent();
    agent.apply(&lab.vnic("a", 1, RATE));
    let socket = identity(&lab.path("a.sock"));
    switch.log();
    let (status, change) = agent.request("PATCH", "/v1/vnics/a", r#"{"set": {"tx.max": "500mbit"}}"#);
    assert_eq!(status, 200, "{change}");
    assert_eq!(change["changes"], json!([{"key": "tx.max", "from": "100mbit", "to": "500mbit"}]));
    assert_eq!(switch.log(), ["set a Unchanged"]);
    assert_eq!(identity(&lab.path("a.sock")), socket);
    assert_eq!(agent.vnic("a")["limits"]["tx_bps"], 500_000_000);
    let (status, error) = agent.request("PATCH", "/v1/vnics/a", r#"{"set": {"tx.mox": "1mbit"}}"#);
    assert_eq!(status, 400);
    assert!(error["details"][0].as_str().unwrap().contains("tx.mox"), "{error}");
    assert_eq!(agent.request("PATCH", "/v1/vnics/b", r#"{"set": {"tx.max": "1mbit"}}"#).0, 404);
    assert_eq!(switch.log(), [""; 0]);
}

#[test]
fn a_restarted_agent_takes_over_without_touching_a_port() {
    let lab = Lab::new();
    let switch = lab.switch();
    let agent = lab.agent();
    agent.apply(&(lab.vnic("a", 1, RATE) + &lab.vnic("b", 2, "")));
    agent.stop();
    assert_eq!(switch.ports(), ["a", "b"]);
    let socket = identity(&lab.path("a.sock"));
    switch.log();
    let agent = lab.agent();
    assert_eq!(agent.vnic("a")["state"], "in force");
    assert_eq!(switch.log(), ["host"]);
    assert_eq!(identity(&lab.path("a.sock")), socket);
    assert_eq!(agent.request("DELETE", "/v1/vnics/a", "").0, 200);
    assert!(!lab.path("a.sock").exists());
}

#[test]
fn a_restarted_switch_gets_everything_again() {
    let lab = Lab::new();
    let mut switch = lab.switch();
    let agent = lab.agent();
    agent.apply(&(lab.vnic("a", 1, RATE) + &lab.vnic("b", 2, "")));
    let socket = identity(&lab.path("a.sock"));
    switch.kill();
    until("pending", || (agent.vnic("a")["state"] == "pending").then_some(()));
    let (status, error) = agent.apply(&lab.vnic("c", 3, ""));
    assert_eq!(status, 503, "{error}");
    assert!(error["error"].as_str().unwrap().contains("is `tidegate switch` running?"), "{error}");
    switch.log();
    switch.restart();
    until("in force", || (agent.vnic("b")["state"] == "in force").then_some(()));
    assert_eq!(switch.log(), ["host", "set a Listener", "set b Listener"]);
    // The agent kept the descriptor of the socket that a guest's configuration names.
    assert_eq!(identity(&lab.path("a.sock")), socket);
    UnixStream::connect(lab.path("a.sock")).unwrap();
}

#[test]
fn both_restarted_replace_their_own_stale_socket() {
    let lab = Lab::new();
    let mut switch = lab.switch();
    let agent = lab.agent();
    agent.apply(&lab.vnic("a", 1, RATE));
    agent.stop();
    switch.restart();
    assert!(UnixStream::connect(lab.path("a.sock")).is_err());
    let agent = lab.agent();
    assert_eq!(agent.vnic("a")["state"], "in force", "{}", agent.vnic("a"));
    UnixStream::connect(lab.path("a.sock")).unwrap();
}

#[test]
fn a_failing_action_takes_the_others_back() {
    let lab = Lab::new();
    let switch = lab.switch();
    let agent = lab.agent();
    agent.apply(&lab.vnic("a", 1, RATE));
    switch.state().refuse.insert("c".into());
    switch.log();
    let text = lab.vnic("a", 1, "weight = 7") + &lab.vnic("b", 2, "") + &lab.vnic("c", 3, "");
    let (status, error) = agent.apply(&text);
    assert_eq!(status, 409);
    assert!(error["details"][0].as_str().unwrap().contains("refuses this port"), "{error}");
    assert_eq!(switch.log(), ["set a Unchanged", "set b Listener", "remove b", "set a Unchanged"]);
    assert_eq!((switch.ports(), switch.state().ports["a"].vnic.weight), (vec!["a".to_owned()], 1));
    assert!(!lab.path("b.sock").exists() && !lab.path("c.sock").exists());
    assert_eq!(agent.get("/v1/vnics").1.as_array().unwrap().len(), 1);
    agent.stop();
    let agent = lab.agent();
    assert_eq!(agent.vnic("a")["contract"]["weight"], 1, "what failed was saved");
}

#[test]
fn a_path_that_is_taken_changes_nothing() {
    let lab = Lab::new();
    let switch = lab.switch();
    let agent = lab.agent();
    std::fs::write(lab.path("b.sock"), "precious").unwrap();
    let (status, error) = agent.apply(&(lab.vnic("a", 1, "") + &lab.vnic("b", 2, "")));
    assert_eq!(status, 422);
    assert!(error["details"][0].as_str().unwrap().contains("a regular file"), "{error}");
    let plan = agent.request("POST", "/v1/plan", &lab.vnic("b", 2, "")).1;
    assert!(plan["refusals"][0].as_str().unwrap().contains("exists already"), "{plan}");
    assert_eq!(std::fs::read_to_string(lab.path("b.sock")).unwrap(), "precious");
    assert!(switch.ports().is_empty() && !lab.path("a.sock").exists());
    let missing = lab.vnic("a", 1, "").replace("a.sock", "no/a.sock");
    assert!(agent.apply(&missing).1["details"][0].as_str().unwrap().contains("does not exist"));
}

#[test]
fn a_contract_that_cannot_be_kept_is_refused_with_the_reason() {
    let lab = Lab::new();
    let switch = lab.switch();
    let agent = lab.agent();
    let vf = "[vnic.n]\nattach = { vf = \"eth0/1\" }\nmac = \"52:54:00:00:00:09\"\nsegment = 1\n";
    let (status, error) = agent.apply(&(lab.vnic("a", 1, "") + vf));
    assert_eq!(status, 422);
    let why = error["details"][0].as_str().unwrap();
    assert!(why.starts_with("vNIC n: eth0 is no NIC with virtual functions"), "{why}");

    let realtime = "tx = { max = \"50mbit\", burst = \"2kB\" }\ndeadline = \"1us\"\nto = [\"b\"]";
    let b = lab.vnic("b", 2, "rx = { max = \"40mbit\" }");
    let (status, error) = agent.apply(&(lab.vnic("a", 1, &realtime.replace("1us", "10ms")) + &b));
    assert_eq!(status, 422, "{error}");
    assert!(error["details"][0].as_str().unwrap().contains("egress b refuses a"), "{error}");

    let (status, error) = agent.apply("[vnic.a]\nmac = \"x\"\n");
    assert_eq!(status, 400);
    assert!(error["details"][0].as_str().unwrap().starts_with("test.toml:"), "{error}");
    let (status, error) = agent.apply(&(lab.vnic("a", 1, "") + &lab.vnic("b", 1, "")));
    assert_eq!(status, 400, "{error}");
    assert!(switch.ports().is_empty());
}

#[test]
fn a_promise_towards_the_uplink_needs_an_uplink() {
    let lab = Lab::new();
    let _switch = lab.switch();
    let agent = lab.agent();
    let (status, error) = agent.apply(&lab.vnic("a", 1, "tx = { max = \"2mbit\", min = \"1mbit\" }"));
    assert_eq!((status, error["details"].as_array().unwrap().len()), (422, 1), "{error}");
    let why = error["details"][0].as_str().unwrap();
    assert!(
        why.starts_with("egress uplink refuses a: no uplink takes their frames to another host"),
        "{why}"
    );
}

#[test]
fn an_uplink_keeps_minima_and_with_a_key_deadlines() {
    const NET: &str = "[uplink.net0]\nlocal = \"192.0.2.1\"\nrate = \"1gbit\"\nlatency = \"100us\"\n\
        peer.host2.address = \"192.0.2.2\"\n\
        [remote.plc9]\nmac = \"52:54:00:00:00:99\"\nsegment = 1\npeer = \"host2\"\n";
    if !tidegate_testkit::own_network_or_skip() {
        return;
    }
    for words in ["link set lo up", "address add 192.0.2.1/32 dev lo"] {
        assert!(Command::new("ip").args(words.split(' ')).status().unwrap().success(), "ip {words}");
    }
    let lab = Lab::shared();
    let switch = lab.switch();
    let agent = lab.agent();
    let (status, plan) = agent.apply(NET);
    assert_eq!(status, 200, "{plan}");
    let tables: Vec<_> = plan["tables"].as_array().unwrap().iter().map(|t| t["table"].clone()).collect();
    assert_eq!(tables, ["remote.plc9", "uplink.net0"]);

    let (status, error) = agent.apply(&lab.vnic("a", 1, ""));
    assert_eq!(status, 400, "{error}");
    assert!(
        error["details"][0].as_str().unwrap().contains("vnic.a.mtu: 1500 does not fit uplink net0"),
        "{error}"
    );
    let details = |error: &serde_json::Value| -> Vec<String> {
        let details = error["details"].as_array().unwrap().iter();
        details.map(|why| why.as_str().unwrap().to_owned()).collect()
    };
    let late = "mtu = 1418\ntx = { max = \"2mbit\", burst = \"2kB\" }\ndeadline = \"5ms\"\nto = [\"plc9\"]";
    let (status, error) = agent.apply(&lab.vnic("a", 1, late));
    let why = details(&error);
    assert_eq!((status, why.len()), (422, 1), "{error}");
    assert!(
        why[0].contains("its deadline towards plc9, a vNIC of another host needs stamps: add"),
        "{why:?}"
    );
    let sends = "tx = { max = \"1mbit\", burst = \"2kB\" }\ndeadline = \"2ms\"\nto = [\"sink\"]\n";
    let sink = lab.vnic("sink", 2, "mtu = 1450\nrx = { max = \"9mbit\" }");
    let (status, error) = agent.apply(&(NET.to_owned() + sends + &sink));
    let why = details(&error);
    assert_eq!((status, why.len()), (422, 1), "{error}");
    assert!(why[0].starts_with("remote plc9 (test.toml:"), "{why:?}");
    assert!(why[0].contains("its deadline needs stamps: add [segment.1]"), "{why:?}");
    let key = format!("[segment.1]\nkey-file = \"{}\"\n", lab.path("key").display());
    let (status, error) = agent.apply(&key);
    assert_eq!(status, 422, "{error}");
    assert!(details(&error)[0].contains("does not exist; write the segment's key there"), "{error}");
    std::fs::write(lab.path("key"), "00112233445566778899aabbccddeeff\n").unwrap();
    std::fs::set_permissions(lab.path("key"), Permissions::from_mode(0o600)).unwrap();
    let (status, plan) = agent.apply(&(key + &lab.vnic("a", 1, late)));
    assert_eq!(status, 200, "{plan}");
    assert!(!plan.to_string().contains("00112233"), "no answer has a key: {plan}");
    let min = "mtu = 1450\ntx = { max = \"2mbit\", min = \"1mbit\" }";
    let (status, plan) = agent.apply(&lab.vnic("a", 1, min));
    assert_eq!(status, 200, "{plan}");
    assert_eq!(switch.ports().len(), 1);

    drop(agent);
    let agent = lab.agent();
    let (_, host) = agent.get("/v1/host");
    assert_eq!((&host["uplinks"][0]["name"], &host["remotes"][0]["name"]), (&json!("net0"), &json!("plc9")));
    lab.write("net.toml", &NET.replace("1gbit", "2gbit"));
    until("the file's uplink", || (agent.get("/v1/host").1["uplinks"][0]["rate"] == "2gbit").then_some(()));
}

#[test]
fn a_vnic_is_removed_after_the_vnics_that_name_it() {
    let lab = Lab::new();
    let _switch = lab.switch();
    let agent = lab.agent();
    let min = "tx = { min = \"1mbit\" }\nto = [\"sink\"]";
    assert_eq!(
        agent.apply(&(lab.vnic("a", 1, min) + &lab.vnic("sink", 2, "rx = { max = \"9mbit\" }"))).0,
        200
    );
    let (status, error) = agent.request("DELETE", "/v1/vnics/sink", "");
    assert_eq!(status, 400);
    assert_eq!(error["error"], "a names sink in its \"to\": remove a first, or take sink out of its \"to\"");
    lab.write("b.toml", &lab.vnic("b", 3, min));
    until("b", || (agent.get("/v1/vnics/b").0 == 200).then_some(()));
    let (_, error) = agent.request("DELETE", "/v1/vnics/sink", "");
    let file = lab.path("etc/b.toml");
    assert_eq!(
        error["error"],
        format!(
            "a, b ({}:1) name sink in their \"to\": remove these vNICs first, or take sink out of their \"to\"",
            file.display()
        )
    );
    assert_eq!(agent.vnic("sink")["state"], "in force");
}

#[test]
fn a_real_time_vnic_shows_its_bound() {
    let lab = Lab::new();
    let _switch = lab.switch();
    let agent = lab.agent();
    let realtime = "tx = { max = \"50mbit\", burst = \"2kB\" }\ndeadline = \"10ms\"\nto = [\"b\"]";
    let text = lab.vnic("a", 1, realtime) + &lab.vnic("b", 2, "rx = { max = \"1gbit\" }");
    let (status, plan) = agent.apply(&text);
    assert_eq!(status, 200, "{plan}");
    let view: views::VnicView = serde_json::from_value(agent.vnic("a")).unwrap();
    let [promise] = &view.promises[..] else { panic!("one egress: {view:?}") };
    assert_eq!(
        (promise.egress.as_str(), promise.deadline_ns, promise.worst_seen_ns),
        ("b", 10_000_000, None)
    );
    assert!(promise.bound_ns > promise.derivation.host_latency_ns && promise.bound_ns < promise.deadline_ns);
    assert_eq!(promise.margin_ns, promise.deadline_ns - promise.bound_ns);
    assert_eq!(promise.holds_if, "host latency 250us held (violated 0 times) and the receiver had buffers");
    // Without its receiver the promise has no effect.
    assert_eq!(agent.request("DELETE", "/v1/vnics/b", "").0, 400);
}

#[test]
fn planning_changes_nothing() {
    let lab = Lab::new();
    let switch = lab.switch();
    let agent = lab.agent();
    agent.apply(&lab.vnic("a", 1, RATE));
    switch.log();
    let state = std::fs::read(lab.path("state/contracts.json")).unwrap();
    let text = lab.vnic("a", 1, "weight = 2") + &lab.vnic("b", 2, "");
    let (status, body) = agent.request("POST", "/v1/plan?prune=true", &text);
    let plan: views::PlanView = serde_json::from_value(body).unwrap();
    assert_eq!((status, plan.applied, plan.admissible), (200, false, true));
    let actions: Vec<_> = plan.vnics.iter().map(|v| (v.vnic.as_str(), v.action)).collect();
    assert_eq!(actions, [("a", views::ChangeAction::Change), ("b", views::ChangeAction::Create)]);
    assert!(plan.notes.iter().any(|n| n.contains("back-pressure")), "{:?}", plan.notes);
    let vf = "[vnic.n]\nattach = { vf = \"eth0/1\" }\nmac = \"52:54:00:00:00:09\"\nsegment = 1\n";
    let (status, body) = agent.request("POST", "/v1/plan?prune=true", vf);
    let plan: views::PlanView = serde_json::from_value(body).unwrap();
    assert_eq!((status, plan.admissible, plan.vnics[0].action), (200, false, views::ChangeAction::Remove));
    assert!(plan.refusals[0].contains("no NIC with virtual functions"));

    assert_eq!(switch.log(), [""; 0]);
    assert_eq!(std::fs::read(lab.path("state/contracts.json")).unwrap(), state);
    assert!(!lab.path("b.sock").exists());
    assert_eq!(agent.vnic("a")["contract"]["weight"], 1);
}

#[test]
fn a_file_owns_its_vnics() {
    let lab = Lab::new();
    let switch = lab.switch();
    lab.write("web.toml", &lab.vnic("a", 1, RATE));
    let agent = lab.agent();
    assert_eq!(switch.log(), ["host", "set a Listener"]);
    assert_eq!(agent.vnic("a")["owner"], format!("file:{}", lab.path("etc/web.toml").display()));
    assert_eq!(agent.vnic("a")["state"], "in force");
    for (status, error) in [
        agent.request("DELETE", "/v1/vnics/a", ""),
        agent.request("PATCH", "/v1/vnics/a", r#"{"set": {"weight": "2"}}"#),
        agent.apply(&lab.vnic("a", 1, "weight = 2")),
    ] {
        assert_eq!(status, 409);
        assert!(error["error"].as_str().unwrap().contains("web.toml"), "{error}");
    }
    // A file takes over the API's vNIC that it names.
    agent.apply(&lab.vnic("b", 2, ""));
    switch.log();
    lab.write("web.toml", &(lab.vnic("a", 1, RATE) + &lab.vnic("b", 2, "weight = 3")));
    until("the file wins", || (agent.vnic("b")["contract"]["weight"] == 3).then_some(()));
    assert!(agent.vnic("b")["owner"].as_str().unwrap().starts_with("file:"));
    assert_eq!(switch.log(), ["set b Unchanged"]);
    std::fs::remove_file(lab.path("etc/web.toml")).unwrap();
    until("gone with the file", || switch.ports().is_empty().then_some(()));
}

#[test]
fn a_program_owns_its_vnics() {
    let lab = Lab::new();
    let switch = lab.switch();
    let agent = lab.agent();
    let say = |owner: &str, text: &str| {
        agent.request("POST", &format!("/v1/apply?owner={owner}&prune=true&origin=test"), text)
    };
    let both = lab.vnic("a", 1, "") + &lab.vnic("b", 2, "");
    assert_eq!(say("libvirt%3Aweb", &both).0, 200);
    assert_eq!(agent.vnic("a")["owner"], "libvirt:web");
    for (status, error) in [
        agent.request("DELETE", "/v1/vnics/a", ""),
        agent.request("PATCH", "/v1/vnics/a", r#"{"set": {"weight": "2"}}"#),
        agent.apply(&lab.vnic("a", 1, "weight = 2")),
        say("libvirt%3Adb", &lab.vnic("a", 1, "weight = 2")),
    ] {
        assert_eq!(status, 409, "{error}");
        assert!(error["error"].as_str().unwrap().contains("libvirt domain \"web\""), "{error}");
    }
    assert_eq!(say("nobody", &both).0, 400);
    // Others' vNICs are not pruned, and ownership outlasts a restart.
    assert_eq!(agent.request("POST", "/v1/apply?prune=true", &lab.vnic("c", 3, "")).0, 200);
    drop(agent);
    let agent = lab.agent();
    let say = |text: &str| agent.request("POST", "/v1/apply?owner=libvirt%3Aweb&prune=true", text);
    switch.log();
    assert_eq!(say(&lab.vnic("b", 2, "")).0, 200);
    assert_eq!(say("# Gone\n").0, 200);
    assert_eq!(switch.log(), ["remove a", "remove b"]);
    assert_eq!(agent.vnic("c")["owner"], "api");
}

#[test]
fn a_bad_file_keeps_its_last_good_contents_in_force() {
    let lab = Lab::new();
    let switch = lab.switch();
    lab.write("a.toml", &lab.vnic("a", 1, RATE));
    let agent = lab.agent();
    switch.log();
    let bad = lab.vnic("a", 1, "tx = { max = \"5\" }");
    lab.write("a.toml", &bad);
    let error =
        until("reported", || agent.get("/v1/host").1["files"][0]["error"].as_str().map(str::to_owned));
    assert!(error.contains("a.toml:5") && error.contains("has no unit"), "{error}");
    assert_eq!((agent.vnic("a")["limits"]["tx_bps"].as_u64(), switch.log()), (Some(100_000_000), vec![]));
    // Also after a restart, when the file is bad from the start.
    agent.stop();
    let agent = lab.agent();
    assert_eq!(agent.vnic("a")["limits"]["tx_bps"], 100_000_000);
    assert!(agent.get("/v1/host").1["files"][0]["error"].is_string());
    // The first file does not block the second; nor does the third, which conflicts.
    lab.write("b.toml", &lab.vnic("b", 2, ""));
    lab.write("c.toml", &lab.vnic("c", 2, ""));
    until("b", || (agent.get("/v1/vnics/b").0 == 200).then_some(()));
    let files = until("c is refused", || {
        let files = agent.get("/v1/host").1["files"].clone();
        files[2]["error"].is_string().then_some(files)
    });
    assert!(files[2]["error"].as_str().unwrap().contains("already taken"), "{files}");
    lab.write("a.toml", &lab.vnic("a", 1, "tx = { max = \"7mbit\" }"));
    until("good again", || (agent.vnic("a")["limits"]["tx_bps"] == 7_000_000).then_some(()));
    assert!(agent.get("/v1/host").1["files"][0]["error"].is_null());
}

#[test]
fn damaged_state_is_kept_aside_and_the_copy_before_used() {
    let lab = Lab::new();
    let _switch = lab.switch();
    let agent = lab.agent();
    agent.apply(&lab.vnic("a", 1, RATE));
    agent.apply(&lab.vnic("b", 2, ""));
    agent.stop();
    let text = std::fs::read_to_string(lab.path("state/contracts.json")).unwrap();
    std::fs::write(lab.path("state/contracts.json"), &text[..text.len() / 2]).unwrap();
    let agent = lab.agent();
    let problems = agent.get("/v1/host").1["problems"][0].as_str().unwrap().to_owned();
    assert!(problems.contains("is damaged") && problems.contains("the copy saved before it"), "{problems}");
    assert_eq!((agent.get("/v1/vnics/a").0, agent.get("/v1/vnics/b").0), (200, 404));
}

#[test]
fn a_second_agent_names_the_first_one() {
    let lab = Lab::new();
    let _agent = lab.agent();
    let mut options = lab.options();
    options.api = lab.path("other.sock");
    let error = RunningAgent::start(options, lab.places()).err().unwrap().to_string();
    assert!(error.contains(&format!("pid {}", std::process::id())), "{error}");
}

#[test]
fn a_second_agent_in_the_network_namespace_names_the_first_one() {
    if !common::may_administer() {
        return;
    }
    let (lab, other) = (Lab::new(), Lab::shared());
    let agent = lab.agent();
    let error = RunningAgent::start(other.options(), other.places()).err().unwrap().to_string();
    assert!(error.contains(&format!("pid {}", std::process::id())), "{error}");
    assert!(error.contains("network namespace"), "{error}");
    agent.stop();
    // The first agent leaves nothing that blocks another.
    RunningAgent::start(other.options(), other.places()).unwrap();
}

#[test]
fn the_switch_may_come_later() {
    let lab = Lab::new();
    lab.write("a.toml", &lab.vnic("a", 1, RATE));
    let agent = lab.agent();
    assert_eq!(agent.vnic("a")["state"], "pending");
    assert!(agent.vnic("a")["reason"].as_str().unwrap().contains("no switch at"));
    assert_eq!(agent.get("/v1/host").1["places"][0]["reachable"], false);
    assert_eq!(agent.apply(&lab.vnic("b", 2, "")).0, 503);
    let switch = lab.switch();
    until("in force", || (agent.vnic("a")["state"] == "in force").then_some(()));
    assert_eq!(switch.ports(), ["a"]);
}

#[test]
fn drift_is_repaired_and_counted_and_foreign_ports_are_left_alone() {
    let lab = Lab::new();
    let switch = lab.switch();
    let agent = lab.agent();
    agent.apply(&lab.vnic("a", 1, RATE));
    switch.log();
    {
        let mut state = switch.state();
        let mut foreign = state.ports["a"].clone();
        foreign.vnic.name = "foreign".into();
        foreign.vnic.mac.0[5] = 99;
        foreign.vnic.attach = tidegate_contract::Attach::Tap { name: "foreign0".into(), netns: None };
        state.ports.insert("foreign".into(), foreign);
        state.ports.get_mut("a").unwrap().vnic.weight = 9;
    }
    until("repaired", || (switch.state().ports["a"].vnic.weight == 1).then_some(()));
    until("counted", || (agent.get("/v1/host").1["drift_repaired"] == 1).then_some(()));
    assert_eq!(
        (switch.log(), switch.ports()),
        (vec!["set a Unchanged".to_owned()], vec!["a".into(), "foreign".into()])
    );
    let (status, error) = agent.apply(&lab.vnic("x", 99, ""));
    assert_eq!(status, 422);
    assert!(error["details"][0].as_str().unwrap().contains("belongs to vNIC foreign"), "{error}");
}

#[test]
fn a_deleted_socket_is_made_again() {
    let lab = Lab::new();
    let switch = lab.switch();
    let agent = lab.agent();
    agent.apply(&lab.vnic("a", 1, RATE));
    switch.log();
    std::fs::remove_file(lab.path("a.sock")).unwrap();
    until("it listens again", || UnixStream::connect(lab.path("a.sock")).ok());
    assert_eq!(switch.log(), ["set a Listener"]);
    assert_eq!(agent.vnic("a")["state"], "in force");
}

#[test]
fn a_front_end_that_listens_is_dialled_and_redialled() {
    use tidegate_evidence::Connection;
    let lab = Lab::new();
    let switch = lab.switch();
    let agent = lab.agent();
    let text = lab.vnic("a", 1, "").replace(" }", ", mode = \"client\" }");
    let (status, answer) = agent.apply(&text);
    assert_eq!(status, 200, "{answer}");
    assert_eq!(switch.log(), ["host", "set a Stream"]);
    assert_eq!(agent.vnic("a")["connection"], "disconnected");
    assert!(agent.vnic("a")["reason"].as_str().unwrap().contains("waiting for the front end"));
    let front_end = UnixListener::bind(lab.path("a.sock")).unwrap();
    for _ in 0..2 {
        until("dialled", || switch.log().contains(&"set a Stream".to_owned()).then_some(()));
        front_end.accept().unwrap();
        switch.state().ports.get_mut("a").unwrap().connection = Connection::Disconnected;
    }
    drop(front_end);
    agent.request("DELETE", "/v1/vnics/a", "");
    assert!(lab.path("a.sock").exists(), "the front end's socket is not ours to remove");
}

#[test]
fn captures_stream_and_metrics_count() {
    let lab = Lab::new();
    let switch = lab.switch();
    let agent = lab.agent();
    agent.apply(&lab.vnic("a", 1, "tx = { max = \"100mbit\" }"));
    let (status, body) = agent.raw("GET", "/v1/vnics/a/capture?snaplen=128", "");
    assert_eq!((status, String::from_utf8(body).unwrap().as_str()), (200, "frames of a, 128 bytes each"));
    assert_eq!(agent.get("/v1/vnics/b/capture").0, 404);
    switch.state().refuse.insert("a".into());
    let (status, error) = agent.get("/v1/vnics/a/capture");
    assert_eq!(status, 409, "{error}");
    switch.state().refuse.clear();

    {
        let state = switch.state();
        let slot = &state.region.as_ref().unwrap().layout().vnics[state.ports["a"].index];
        slot.tx.wire_bytes.add(1_000_000);
        slot.tx.dropped[0].add(3);
        slot.throttled.add(2_500_000_000);
        slot.delay.record(150_000);
        slot.delay.record(30_000_000_000);
        slot.misses[1].add(4);
    }
    let text = until("counted", || {
        let text = String::from_utf8(agent.raw("GET", "/metrics", "").1).unwrap();
        text.contains("tidegate_vnic_wire_bytes_total{vnic=\"a\",direction=\"tx\"} 1000000").then_some(text)
    });
    for line in [
        "tidegate_vnic_dropped_frames_total{vnic=\"a\",direction=\"tx\",reason=\"malformed\"} 3",
        "tidegate_vnic_throttled_seconds_total{vnic=\"a\"} 2.5",
        "tidegate_vnic_deadline_misses_total{vnic=\"a\",cause=\"queue\"} 4",
        "tidegate_vnic_delay_seconds_bucket{le=\"0.0001\",vnic=\"a\"} 0",
        "tidegate_vnic_delay_seconds_bucket{le=\"0.0002\",vnic=\"a\"} 1",
        "tidegate_vnic_delay_seconds_bucket{le=\"10.0\",vnic=\"a\"} 1",
        "tidegate_vnic_delay_seconds_bucket{le=\"+Inf\",vnic=\"a\"} 2",
        "tidegate_vnic_delay_seconds_count{vnic=\"a\"} 2",
        "tidegate_vnic_contract_bits_per_second{vnic=\"a\",direction=\"tx\",kind=\"max\"} 100000000",
        "tidegate_vnic_in_force{vnic=\"a\"} 1",
        "tidegate_place_reachable{place=\"switch\"} 1",
        "tidegate_agent_reconcile_errors_total 0",
        "# EOF",
    ] {
        assert!(text.contains(line), "no {line} in\n{text}");
    }
    let why = agent.get("/v1/vnics/a/why").1;
    assert_eq!(why["misses"], json!({"queue": 4}));
    let findings = why["findings"].to_string();
    assert!(
        findings.contains("4 deadline misses: they waited behind") && findings.contains("2500 ms"),
        "{findings}"
    );
}
