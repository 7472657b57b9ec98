//! What the agent shows of refused files, deadlines without a promise, and rates.

#![allow(clippy::disallowed_macros, clippy::disallowed_methods, reason = "these are the program's own rules")]

mod common;

use common::{Lab, RunningAgent, until};
use serde_json::{Value, json};
use tidegate_evidence::Quarantine;

const REALTIME: &str = "tx = { max = \"50mbit\", burst = \"2kB\" }\ndeadline = \"10ms\"\nto = [\"sink\"]";
const SINK: &str = "rx = { max = \"1gbit\" }";

fn status(agent: &RunningAgent) -> Value {
    agent.get("/v1/status").1
}

fn kinds(agent: &RunningAgent) -> Vec<String> {
    let status = status(agent);
    let all = status["attention"].as_array().unwrap().iter();
    all.map(|a| a["kind"].as_str().unwrap().to_owned()).collect()
}

fn metric(agent: &RunningAgent, line: &str) -> bool {
    String::from_utf8(agent.raw("GET", "/metrics", "").1).unwrap().lines().any(|l| l == line)
}

#[test]
fn a_rate_follows_the_counters_of_its_own_place() {
    let lab = Lab::new();
    let switch = lab.switch();
    let agent = lab.agent();
    assert_eq!(agent.apply(&lab.vnic("a", 1, "")).0, 200);
    let send = |bytes| {
        let state = switch.state();
        let slot = &state.region.as_ref().unwrap().layout().vnics[state.ports["a"].index];
        slot.tx.wire_bytes.add(bytes);
        slot.rx.wire_bytes.add(bytes / 2);
    };
    let rates = until("there is a rate", || {
        send(100_000);
        let view = agent.vnic("a");
        Some((view["tx_rate_bps"].as_u64()?, view["rx_rate_bps"].as_u64()?)).filter(|(tx, _)| *tx > 0)
    });
    assert!(rates.0 / 3 < rates.1 && rates.1 < rates.0, "{rates:?}");
    // 0 differs from no rate.
    until("nothing is sent", || (agent.vnic("a")["tx_rate_bps"] == 0).then_some(()));
}

#[test]
fn uncounted_frames_have_no_rate() {
    let lab = Lab::new();
    let mut switch = lab.switch();
    let agent = lab.agent();
    assert_eq!(agent.apply(&lab.vnic("a", 1, "")).0, 200);
    until("there is a rate", || agent.vnic("a")["tx_rate_bps"].as_u64());
    switch.kill();
    until("pending", || (agent.vnic("a")["state"] == "pending").then_some(()));
    let view = agent.vnic("a");
    assert!(view["tx_rate_bps"].is_null() && view["stats"].is_null(), "{view}");
}

#[test]
fn a_deadline_that_is_suspended_is_promised_nowhere() {
    let lab = Lab::new();
    let switch = lab.switch();
    let agent = lab.agent();
    let text = lab.vnic("plc", 1, REALTIME) + &lab.vnic("sink", 2, SINK);
    assert_eq!(agent.apply(&text).0, 200);
    let bound = "tidegate_vnic_delay_bound_seconds{vnic=\"plc\",egress=\"sink\"}";
    let has_bound = || String::from_utf8(agent.raw("GET", "/metrics", "").1).unwrap().contains(bound);
    assert!(agent.vnic("plc")["deadline_suspended"].is_null() && has_bound());
    assert!(metric(&agent, "tidegate_vnic_deadline_suspended{vnic=\"plc\"} 0.0"));
    assert_eq!(kinds(&agent), [""; 0]);

    let why = "guest memory is not preallocated";
    switch.state().ports.get_mut("plc").unwrap().deadline_suspended = Some(why.into());
    let view =
        until("it is suspended", || Some(agent.vnic("plc")).filter(|v| v["deadline_suspended"] == why));
    assert_eq!(
        (&view["state"], &view["promises"][0]["suspended"]),
        (&json!("in force"), &json!(why)),
        "{view}"
    );
    assert!(view["reason"].is_null(), "{view}");
    assert_eq!(agent.get("/v1/host").1["admission"]["bounds"][0]["suspended"], why);
    let findings = agent.get("/v1/vnics/plc/why").1["findings"].to_string();
    assert!(findings.contains(&format!("its deadline of 10ms is not promised: {why}")), "{findings}");
    assert!(!has_bound(), "a bound that is not promised is no bound");
    assert!(metric(&agent, "tidegate_vnic_deadline_suspended{vnic=\"plc\"} 1.0"));
    let (_, plan) = agent.request("POST", "/v1/plan", &text);
    assert_eq!(plan["admission"]["bounds"][0]["suspended"], why, "{plan}");
    let seen = status(&agent);
    assert_eq!(seen["deadlines"], json!({"promised": 0, "suspended": 1}));
    assert_eq!(seen["attention"][0]["next"], "tidegate why plc", "{seen}");
    assert_eq!(kinds(&agent), ["suspended-deadline"]);
    assert!(metric(&agent, "tidegate_agent_attention{kind=\"suspended-deadline\"} 1.0"));
}

#[test]
fn a_deadline_is_not_promised_while_its_place_is_away() {
    let lab = Lab::new();
    let mut switch = lab.switch();
    let agent = lab.agent();
    let text = lab.vnic("plc", 1, REALTIME) + &lab.vnic("sink", 2, SINK);
    assert_eq!(agent.apply(&text).0, 200);
    switch.kill();
    until("the switch is missed", || (kinds(&agent) == ["place-away"]).then_some(()));
    let seen = status(&agent);
    assert_eq!(seen["attention"][0]["next"], "systemctl status tidegate-switch", "{seen}");
    assert_eq!((&seen["vnics"]["pending"], &seen["deadlines"]["promised"]), (&json!(2), &json!(0)), "{seen}");
    let why = agent.vnic("plc")["deadline_suspended"].as_str().unwrap().to_owned();
    assert!(why.starts_with("its contract is not in force: ") && why.contains("tidegate switch"), "{why}");
    switch.restart();
    until("all is well", || kinds(&agent).is_empty().then_some(()));
}

#[test]
fn an_apply_answers_with_what_is_promised_after_it() {
    let lab = Lab::new();
    let _switch = lab.switch();
    let agent = lab.agent();
    let text = lab.vnic("plc", 1, REALTIME) + &lab.vnic("sink", 2, SINK);
    let (code, done) = agent.apply(&text);
    assert_eq!((code, &done["applied"]), (200, &json!(true)), "{done}");
    let bound = &done["admission"]["bounds"][0];
    assert_eq!(bound["vnic"], "plc", "{done}");
    assert!(bound["suspended"].is_null(), "its contract is in force: {done}");
}

#[test]
fn an_apply_that_changes_nothing_says_what_is_not_in_force() {
    let lab = Lab::new();
    let mut switch = lab.switch();
    let agent = lab.agent();
    let text = lab.vnic("a", 1, "");
    let (_, done) = agent.apply(&text);
    assert!(done["vnics"][0]["not_in_force"].is_null(), "{done}");
    switch.kill();
    until("the switch is missed", || (kinds(&agent) == ["place-away"]).then_some(()));
    let planned = agent.request("POST", "/v1/plan", &text);
    let set = agent.request("PATCH", "/v1/vnics/a", r#"{"set": {"weight": "1"}}"#);
    for (code, said) in [agent.apply(&text), planned] {
        let vnic = &said["vnics"][0];
        assert_eq!((code, &vnic["action"]), (200, &json!("none")), "{said}");
        is_away(&vnic["not_in_force"]);
    }
    assert_eq!((set.0, &set.1["action"]), (200, &json!("none")), "{}", set.1);
    is_away(&set.1["not_in_force"]);
    assert_eq!(agent.apply(&lab.vnic("a", 1, "tx = { max = \"1mbit\" }")).0, 503);
}

fn is_away(why: &Value) {
    assert_eq!((&why["state"], &why["place_away"]), (&json!("pending"), &json!(true)), "{why}");
    assert!(why["reason"].as_str().unwrap().starts_with("no switch at "), "{why}");
}

#[test]
fn a_vnic_in_quarantine_needs_a_person() {
    let lab = Lab::new();
    let switch = lab.switch();
    let agent = lab.agent();
    assert_eq!(agent.apply(&lab.vnic("a", 1, "")).0, 200);
    assert_eq!(kinds(&agent), [""; 0]);
    let quarantine = Quarantine { reason: "its objects held up a thread".into(), seconds: 60, remaining: 52 };
    switch.state().ports.get_mut("a").unwrap().held.quarantine = Some(quarantine);
    until("it is told", || (kinds(&agent) == ["quarantine"]).then_some(()));
    let attention = &status(&agent)["attention"][0];
    assert_eq!(
        (&attention["about"], &attention["next"]),
        (&json!(["a"]), &json!("tidegate why a")),
        "{attention}"
    );
    assert_eq!(attention["what"], "its objects held up a thread");
    let findings = agent.get("/v1/vnics/a/why").1["findings"].to_string();
    assert!(findings.contains("the switch accepts no front end for another 52 s: its objects"), "{findings}");
    assert!(metric(&agent, "tidegate_agent_attention{kind=\"quarantine\"} 1.0"));
}

#[test]
fn a_refused_file_shows_with_its_line_and_its_vnics() {
    let lab = Lab::new();
    let _switch = lab.switch();
    let good = lab.vnic("a", 1, "tx = { max = \"100mbit\" }");
    lab.write("a.toml", &good);
    let agent = lab.agent();
    let path = lab.path("etc/a.toml").display().to_string();
    assert_eq!(status(&agent)["files"], json!({"accepted": 1, "refused": 0}));

    // Both contracts are faulty; the comment moves them down by a line.
    let bad = "# new\n".to_owned() + &good.replace("100mbit", "5") + &lab.vnic("b", 2, "tx = 7");
    lab.write("a.toml", &bad);
    let seen = until("refused", || Some(status(&agent)).filter(|s| s["files"]["refused"] == 1));
    assert_eq!(kinds(&agent), ["refused-file"]);
    let refused = &seen["attention"][0];
    assert_eq!(refused["about"], json!([format!("{path}:6")]), "{refused}");
    assert!(refused["what"].as_str().unwrap().contains("has no unit"), "{refused}");
    assert!(
        refused["what"].as_str().unwrap().ends_with("its earlier contracts are in force, for a"),
        "{refused}"
    );
    assert_eq!(refused["next"], format!("tidegate plan -f {path}"));
    let a = agent.vnic("a");
    assert_eq!((&a["state"], &a["limits"]["tx_bps"]), (&json!("in force"), &json!(100_000_000)), "{a}");
    assert_eq!((&a["refused"]["file"], &a["refused"]["line"]), (&json!(path), &json!(2)), "{a}");
    let findings = agent.get("/v1/vnics/a/why").1["findings"].to_string();
    assert!(findings.contains(&format!("{path}:2 is refused, at line 6:")), "{findings}");
    let b = agent.vnic("b");
    assert_eq!((&b["state"], &b["refused"]["line"]), (&json!("refused"), &json!(7)), "{b}");
    assert!(b["contract"].is_null() && b["connection"].is_null() && b["stats"].is_null(), "{b}");
    let listed = agent.get("/v1/vnics").1;
    assert_eq!(listed.as_array().unwrap().len(), 2, "{listed}");
    assert_eq!(agent.get("/v1/vnics/b/why").0, 200);
    let (code, error) = agent.request("DELETE", "/v1/vnics/b", "");
    assert!(
        code == 409 && error["error"].as_str().unwrap().contains(&format!("belongs to {path}")),
        "{error}"
    );
    assert!(metric(&agent, "tidegate_vnic_in_force{vnic=\"b\"} 0.0"));
    let file = &agent.get("/v1/host").1["files"][0];
    assert_eq!((&file["line"], &file["refused"]), (&json!(6), &json!(["a", "b"])), "{file}");

    // Readable but inadmissible: the contract is shown.
    let unfit = good.clone() + &lab.vnic("b", 2, REALTIME);
    lab.write("a.toml", &unfit);
    let b = until("read", || Some(agent.vnic("b")).filter(|b| !b["contract"].is_null()));
    assert_eq!((&b["state"], &b["contract"]["deadline"]), (&json!("refused"), &json!("10ms")), "{b}");
    assert_eq!(b["deadline_suspended"], "its contract is refused");
    assert_eq!(b["refused"]["line"], 6, "{b}");

    // `plan` with the file's path treats its contracts as that file's.
    let (code, plan) = agent.request("POST", &format!("/v1/plan?origin={path}"), &unfit);
    assert_eq!((code, &plan["admissible"]), (200, &json!(false)), "{plan}");
    assert!(plan["refusals"].to_string().contains("sink"), "{plan}");
    let (_, plan) = agent.request("POST", &format!("/v1/plan?origin={path}"), &good.replace("100", "90"));
    assert_eq!(
        (&plan["admissible"], &plan["vnics"][0]["action"]),
        (&json!(true), &json!("change")),
        "{plan}"
    );

    lab.write("a.toml", &good);
    until("well again", || kinds(&agent).is_empty().then_some(()));
    assert_eq!(agent.get("/v1/vnics/b").0, 404);
    assert!(agent.vnic("a")["refused"].is_null());
}

#[test]
fn a_removal_that_is_refused_names_what_stays() {
    let lab = Lab::new();
    let _switch = lab.switch();
    lab.write("plc.toml", &lab.vnic("plc", 1, REALTIME));
    lab.write("sink.toml", &lab.vnic("sink", 2, SINK));
    let agent = lab.agent();
    assert_eq!(agent.vnic("plc")["state"], "in force");
    std::fs::remove_file(lab.path("etc/sink.toml")).unwrap();
    let sink = until("refused", || Some(agent.vnic("sink")).filter(|v| !v["refused"].is_null()));
    assert_eq!((&sink["state"], &sink["refused"]["line"]), (&json!("in force"), &Value::Null), "{sink}");
    assert!(agent.vnic("plc")["refused"].is_null());
    assert_eq!(kinds(&agent), ["refused-file"]);
}
