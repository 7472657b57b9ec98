//! The agent and the kernel's netdevs, in a network namespace: limits come into force, are repaired, and
//! go.

#![allow(clippy::disallowed_macros, clippy::disallowed_methods, reason = "these are the program's own rules")]

mod adopt;
mod churn;
#[path = "../common/mod.rs"]
mod common;
mod counters;
mod drift;
#[path = "../../../places/kernel/tests/netns/mod.rs"]
mod netns;
mod queueing;
mod rename;
mod rules;
mod segment;
mod shares;
mod soft;

use common::{Lab, RunningAgent, until};
use std::process::Command;

/// Runs `body` in a process with a new network namespace and a tap `vnet3`.
#[track_caller]
fn in_namespace(name: &str, body: impl FnOnce()) {
    netns::in_namespace(name, || {
        run("ip tuntap add vnet3 mode tap");
        body();
    });
}

#[track_caller]
fn run(line: &str) -> String {
    let (program, words) = line.split_once(' ').unwrap();
    netns::run(program, words)
}

fn contract(name: &str, mac: u8, netdev: &str, more: &str) -> String {
    format!(
        "[vnic.{name}]\nattach = {{ netdev = \"{netdev}\" }}\nmac = \"52:54:00:00:00:{mac:02x}\"\nsegment = 0\n{more}\n"
    )
}

const LIMITS: &str = "tx = { max = \"100mbit\" }\nrx = { max = \"50mbit\" }";

/// A new agent may not know the vNIC yet.
fn in_force(agent: &RunningAgent) -> bool {
    agent.get("/v1/vnics/web").1["state"] == "in force"
}

fn classes() -> String {
    let ifb = Command::new("tc").args(["class", "show", "dev", "tidegate-tx"]).output().unwrap();
    run("tc class show dev vnet3") + &String::from_utf8_lossy(&ifb.stdout)
}

/// Counts the HTB classes: qdiscs that cut super-frames have classes too.
fn htb(classes: &str) -> usize {
    classes.lines().filter(|line| line.starts_with("class htb")).count()
}

/// Returns all qdiscs and handles, without counts.
fn qdiscs() -> String {
    let shown = run("tc qdisc show");
    let uncounted = |line: &str| line.split(" direct_packets_stat").next().unwrap().to_owned() + "\n";
    shown.lines().map(uncounted).collect()
}

/// Whether the reason is empty, or a qdisc that this kernel lacks.
fn nothing_is_wrong(view: &serde_json::Value) -> bool {
    view["reason"].as_str().is_none_or(|reason| reason.starts_with("flows are not kept apart"))
}

fn is_shaped() -> bool {
    let shown = classes();
    shown.contains("rate 50Mbit ceil 50Mbit")
        && shown.contains("rate 100Mbit ceil 100Mbit")
        && run("tc filter show dev vnet3 ingress").contains("Redirect to device tidegate-tx")
}

fn details(agent: &RunningAgent, text: &str) -> (u16, String) {
    let (status, body) = agent.apply(text);
    let details = body["details"].as_array().map(|d| d.iter().filter_map(|v| v.as_str()).collect::<Vec<_>>());
    (status, details.unwrap_or_default().join("\n"))
}

#[test]
fn limits_come_into_force_change_and_go() {
    in_namespace("limits_come_into_force_change_and_go", || {
        let lab = Lab::shared();
        let _switch = lab.switch();
        let agent = lab.agent();
        let (status, body) = agent.apply(&contract("web", 1, "vnet3", LIMITS));
        assert_eq!(status, 200, "{body}");
        assert!(body["notes"].to_string().contains("kept by the kernel"), "{body}");
        assert!(is_shaped(), "{}", classes());
        let view = agent.vnic("web");
        assert_eq!((&view["state"], &view["place"]), (&"in force".into(), &"kernel".into()), "{view}");

        let (status, body) = agent.request("PATCH", "/v1/vnics/web", r#"{"set": {"tx.max": "200mbit"}}"#);
        assert_eq!(status, 200, "{body}");
        assert!(classes().contains("rate 200Mbit ceil 200Mbit"), "{}", classes());

        let (status, body) = agent.request("DELETE", "/v1/vnics/web", "");
        assert_eq!(status, 200, "{body}");
        assert_eq!(classes(), "");
        assert!(!run("ip -br link").contains("tidegate"));
        assert_eq!(run("tc filter show dev vnet3 ingress"), "");
    });
}

#[test]
fn a_contract_that_cannot_be_kept_is_refused_and_changes_nothing() {
    in_namespace("a_contract_that_cannot_be_kept_is_refused_and_changes_nothing", || {
        let lab = Lab::shared();
        let _switch = lab.switch();
        let agent = lab.agent();
        let refused = |text: &str, expected: &str| {
            let (status, why) = details(&agent, text);
            assert_eq!(status, 422, "{why}");
            assert!(why.contains(expected), "{why}");
            assert!(!classes().contains("7464:"), "{}", classes());
        };
        refused(&contract("web", 1, "vnet9", LIMITS), "interface vnet9 does not exist");
        refused(&contract("web", 1, "lo", LIMITS), "is the loopback");
        refused(&contract("web", 1, "vnet3", "tx = { max = \"1bit\" }"), "tx: at 1bit a super-frame");
        refused(
            &contract("web", 1, "vnet3", "rx = { max = \"400gbit\" }"),
            "rx: the kernel would send at 404800000000bit where 400gbit is asked for, more than 1 % off",
        );
        let (status, answer) = agent.apply(&contract("web", 1, "-rf", LIMITS));
        assert_eq!(status, 400, "{answer}");
        assert!(answer.to_string().contains("looks like an option"), "{answer}");
        let segment =
            |n: u32| contract("web", 1, "vnet3", "").replace("segment = 0", &format!("segment = {n}"));
        refused(&segment(5000), "a VLAN of its bridge port, 1 to 4094");
        refused(&segment(7), "interface vnet3 is on no bridge, so no bridge would keep it in segment 7");
        run("ip link add br0 type bridge");
        run("ip link set vnet3 master br0");
        refused(&segment(7), "let it (ip link set br0 type bridge vlan_filtering 1;");
        refused(&contract("web", 1, "vnet3", "weight = 5"), "or leave weight out");
        refused(
            &(contract("web", 1, "vnet3", "tx = { max = \"1mbit\", min = \"1mbit\" }\nto = [\"b\"]")
                + &contract("b", 2, "vnet4", "rx = { max = \"900kbit\" }")),
            "egress b refuses web: 1000000 bit/s are promised",
        );
        run("ip link add v0 type veth peer name v1");
        run("ip link add link v1 name mt0 type macvtap");
        let macvtap = contract("b", 2, "mt0", "rx = { max = \"9mbit\" }");
        let promise = |more: &str| contract("web", 1, "vnet3", &format!("{more}\nto = [\"b\"]"));
        let no_shares = "interface mt0 is a macvtap, into which the device below sends";
        refused(&(promise("weight = 2") + &macvtap), no_shares);
        assert_eq!(agent.apply(&(promise("") + &macvtap)).0, 200);
        let (status, why) = agent.request("PATCH", "/v1/vnics/web", r#"{"set": {"weight": "2"}}"#);
        assert!(status == 422 && why.to_string().contains(no_shares), "{status} {why}");
        for name in ["web", "b"] {
            assert_eq!(agent.request("DELETE", &format!("/v1/vnics/{name}"), "").0, 200);
        }
        run("tc qdisc add dev vnet3 root handle 1: tbf rate 1mbit burst 10kb latency 50ms");
        refused(
            &contract("web", 1, "vnet3", LIMITS),
            "has qdisc tbf 1: at its root, which another program made",
        );
        assert!(run("tc qdisc show dev vnet3").contains("tbf 1: root"));
    });
}

#[test]
fn a_netdev_that_goes_and_comes_is_shaped_again() {
    in_namespace("a_netdev_that_goes_and_comes_is_shaped_again", || {
        let lab = Lab::shared();
        let _switch = lab.switch();
        let agent = lab.agent();
        assert_eq!(agent.apply(&contract("web", 1, "vnet3", LIMITS)).0, 200);
        let repaired = || agent.get("/v1/host").1["drift_repaired"].as_u64();
        let before = repaired();
        run("ip link del vnet3");
        until("it is missed", || {
            agent.vnic("web")["reason"].as_str()?.contains("does not exist").then_some(())
        });
        for rate in ["90mbit", "100mbit"] {
            let body = format!("{{\"set\": {{\"tx.max\": \"{rate}\"}}}}");
            let (status, answer) = agent.request("PATCH", "/v1/vnics/web", &body);
            assert_eq!(status, 200, "{answer}");
        }
        run("ip tuntap add vnet3 mode tap");
        until("it is shaped", || is_shaped().then_some(()));
        let reason = until("it is as it should be", || {
            let view = agent.vnic("web");
            (view["connection"] == "up" && nothing_is_wrong(&view)).then(|| view["state"].clone())
        });
        assert_eq!(reason, "in force");
        assert_eq!(repaired(), before, "a VM that stops and starts is no drift");
    });
}

#[test]
fn an_agent_that_starts_anew_changes_nothing() {
    in_namespace("an_agent_that_starts_anew_changes_nothing", || {
        let lab = Lab::shared();
        let _switch = lab.switch();
        let agent = lab.agent();
        assert_eq!(agent.apply(&contract("web", 1, "vnet3", LIMITS)).0, 200);
        agent.stop();
        assert!(is_shaped(), "limits need no agent");
        let qdiscs = qdiscs();
        let agent = lab.agent();
        until("it is in force", || in_force(&agent).then_some(()));
        // New queues would have other handles.
        assert_eq!(self::qdiscs(), qdiscs);
        agent.stop();
        // Without its record the agent recognises what is in force, and makes nothing again.
        std::fs::remove_file(lab.path("state/kernel.json")).unwrap();
        let agent = lab.agent();
        until("it is in force", || in_force(&agent).then_some(()));
        assert_eq!(self::qdiscs(), qdiscs);
    });
}

#[test]
fn no_promise_holds_across_places() {
    in_namespace("no_promise_holds_across_places", || {
        let lab = Lab::shared();
        let _switch = lab.switch();
        let agent = lab.agent();
        let promise = lab.vnic("a", 1, "tx = { max = \"9mbit\", min = \"1mbit\" }\nto = [\"web\"]");
        let promise = promise.replace("segment = 1", "segment = 0");
        let (status, why) =
            details(&agent, &(promise + &contract("web", 2, "vnet3", "rx = { max = \"50mbit\" }")));
        assert_eq!(status, 422);
        assert!(why.contains("no promise holds from place switch to vNIC web at place kernel"), "{why}");
    });
}
