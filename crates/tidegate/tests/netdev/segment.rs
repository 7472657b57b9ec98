//! A segment of bridge ports: frames pass only between its ports, whatever others change; afterwards the
//! ports are as before.
//!
//! Without VLAN filtering (CONFIG_BRIDGE_VLAN_FILTERING), tests/kernel/test_segments.py runs this in a
//! guest that has it.

use super::common::{Lab, RunningAgent, until};
use super::netns::Guest;
use super::{contract, run};
use std::process::Command;

/// Whether this kernel's bridges filter VLANs; prints if not.
fn bridges_filter() -> bool {
    let made =
        Command::new("ip").args("link add br0 type bridge vlan_filtering 1".split(' ')).output().unwrap();
    let why = String::from_utf8_lossy(&made.stderr);
    if !made.status.success() {
        assert!(why.contains("not supported"), "{why}");
        assert!(std::env::var_os("TIDEGATE_TEST_VLANS").is_none(), "this kernel's bridges filter no VLANs");
        println!("in a guest only: this kernel's bridges filter no VLANs");
    }
    made.status.success()
}

/// Makes a guest behind a port of `br0`: 10.8.0.NUMBER.
fn guest(number: u8) -> Guest {
    let port = format!("vnet{number}");
    let guest = Guest::new(&port, number);
    run(&format!("ip addr flush dev {port}"));
    run(&format!("ip link set {port} master br0"));
    guest.within(|_| run(&format!("ip addr add 10.8.0.{number}/24 dev eth0")));
    guest
}

fn reaches(guest: &Guest, number: u8) -> bool {
    guest.within(|_| {
        let words = format!("-c 1 -W 1 10.8.0.{number}");
        Command::new("ping").args(words.split(' ')).output().unwrap().status.success()
    })
}

/// Returns a port's VLANs, such as `42 PVID Egress Untagged`.
fn vlans(port: &str) -> String {
    let shown = run(&format!("bridge vlan show dev {port}"));
    let lines = shown.lines().skip(1).map(|line| line.trim_start_matches(port).trim());
    lines.filter(|line| !line.is_empty()).collect::<Vec<_>>().join(", ")
}

fn is_in(port: &str, vlan: u16) -> bool {
    vlans(port) == format!("{vlan} PVID Egress Untagged")
}

fn segment(name: &str, number: u8, segment: u16, more: &str) -> String {
    contract(name, number, &format!("vnet{number}"), more)
        .replace("segment = 0", &format!("segment = {segment}"))
}

/// A slow agent may not know its contracts yet.
fn in_force(agent: &RunningAgent, name: &str) -> Option<()> {
    (agent.get(&format!("/v1/vnics/{name}")).1["state"] == "in force").then_some(())
}

fn set(agent: &RunningAgent, key: &str, value: &str) {
    let body = format!("{{\"set\": {{\"{key}\": \"{value}\"}}}}");
    let (status, answer) = agent.request("PATCH", "/v1/vnics/web", &body);
    assert_eq!(status, 200, "{answer}");
}

fn remove(agent: &RunningAgent, name: &str) {
    let (status, answer) = agent.request("DELETE", &format!("/v1/vnics/{name}"), "");
    assert_eq!(status, 200, "{answer}");
}

#[test]
fn frames_pass_within_a_segment_only() {
    super::netns::in_namespace("segment::frames_pass_within_a_segment_only", || {
        if !bridges_filter() {
            return;
        }
        run("ip link set br0 up");
        let lab = Lab::shared();
        let _switch = lab.switch();
        let agent = lab.agent();
        let [web, db, other] = [1, 2, 3].map(guest);
        until("they reach each other", || (reaches(&web, 2) && reaches(&web, 3)).then_some(()));

        // Another program's VLANs of a port: named, then taken over.
        run("bridge vlan add dev vnet2 vid 7 pvid untagged");
        run("bridge vlan add dev vnet2 vid 10-12");
        let before = vlans("vnet2");
        let text = segment("web", 1, 42, "tx = { max = \"100mbit\" }")
            + &segment("db", 2, 42, "")
            + &segment("other", 3, 43, "");
        let (status, answer) = agent.apply(&text);
        assert_eq!(status, 422, "{answer}");
        assert!(
            answer.to_string().contains("has VLAN 7 (PVID, untagged), 10-12 on its bridge port"),
            "{answer}"
        );
        assert!(vlans("vnet2") == before && is_in("vnet1", 1));
        let (status, answer) = agent.request("POST", "/v1/apply?adopt=true", &text);
        assert_eq!(status, 200, "{answer}");
        assert!(
            is_in("vnet1", 42) && is_in("vnet2", 42) && is_in("vnet3", 43),
            "{}",
            run("bridge vlan show")
        );
        assert!(reaches(&web, 2) && reaches(&db, 1));
        assert!(!reaches(&web, 3) && !reaches(&other, 2));

        // A port that joins a bridge starts with its defaults.
        run("ip link add br1 type bridge vlan_filtering 1");
        for (damage, port, vlan) in [
            ("bridge vlan del dev vnet1 vid 42", "vnet1", 42),
            ("bridge vlan add dev vnet2 vid 43", "vnet2", 42),
            ("bridge vlan add dev vnet1 vid 1 pvid untagged", "vnet1", 42),
            ("ip link set vnet3 master br1", "vnet3", 43),
        ] {
            run(damage);
            until(damage, || is_in(port, vlan).then_some(()));
        }
        assert!(reaches(&web, 2));
        run("ip link set br1 type bridge vlan_filtering 0");
        until("it is broken", || {
            let view = agent.vnic("other");
            let why = view["reason"].as_str()?.contains("on bridge br1, which does not filter VLANs");
            (why && view["state"] != "in force").then_some(())
        });
        run("ip link set vnet3 master br0");
        until("it is in force again", || in_force(&agent, "other").filter(|()| is_in("vnet3", 43)));

        // The next agent knows the segment only from its disk, and starts sooner without a limit.
        set(&agent, "tx.max", "none");
        agent.stop();
        let shown = run("bridge vlan show");
        let agent = lab.agent();
        until("they are in force", || in_force(&agent, "web").and(in_force(&agent, "db")));
        assert_eq!(run("bridge vlan show"), shown);

        set(&agent, "segment", "0");
        assert!(is_in("vnet1", 1), "{}", vlans("vnet1"));
        remove(&agent, "db");
        assert_eq!(vlans("vnet2"), before);
        remove(&agent, "other");
        assert!(is_in("vnet3", 1), "{}", vlans("vnet3"));
        assert!(reaches(&web, 3), "both are where every port begins");
    });
}
