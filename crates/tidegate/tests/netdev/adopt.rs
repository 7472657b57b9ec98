//! With permission the agent takes over another program's rules, remembers them, and restores them when the
//! contract goes.

use super::common::{Lab, RunningAgent, until};
use super::{LIMITS, contract, in_namespace, is_shaped, run};
use serde_json::Value;

/// libvirt's rules for `<bandwidth>`, with this kernel's modules.
const OTHERS: [&str; 6] = [
    "tc qdisc add dev vnet3 root handle 1: htb default 2",
    "tc class add dev vnet3 parent 1: classid 1:1 htb rate 8mbit ceil 9mbit burst 20k",
    "tc class add dev vnet3 parent 1:1 classid 1:2 htb rate 3mbit quantum 3000",
    "tc filter add dev vnet3 parent 1: protocol ip pref 7 u32 match ip dport 80 0xffff flowid 1:2",
    "tc qdisc add dev vnet3 ingress",
    "tc filter add dev vnet3 parent ffff: protocol all pref 9 u32 match u32 0 0 classid :1",
];

/// Returns tc's output for `vnet3`, without the kernel's numbers of u32 tables.
fn tc_objects() -> String {
    let shown = ["qdisc show dev", "class show dev", "filter show dev", "filter show ingress dev"];
    let shown = shown.map(|words| run(&format!("tc {words} vnet3"))).concat();
    // At an ingress the kernel shows the last added filter's parent for all filters (`block->classid`).
    let shown = shown.replace("filter parent ffff: ", "filter ");
    shown.split_whitespace().filter(|word| !word.starts_with("80")).collect::<Vec<_>>().join(" ")
}

fn make_foreign_objects() -> String {
    for line in OTHERS {
        run(line);
    }
    tc_objects()
}

fn adopt(agent: &RunningAgent, text: &str) -> Value {
    let (status, answer) = agent.request("POST", "/v1/apply?adopt=true", text);
    assert_eq!(status, 200, "{answer}");
    answer
}

fn remove(agent: &RunningAgent, name: &str) {
    let (status, answer) = agent.request("DELETE", &format!("/v1/vnics/{name}"), "");
    assert_eq!(status, 200, "{answer}");
}

fn set(agent: &RunningAgent, key: &str, value: &str) -> (u16, Value) {
    agent.request("PATCH", "/v1/vnics/web", &format!("{{\"set\": {{\"{key}\": \"{value}\"}}}}"))
}

#[test]
fn foreign_objects_are_named_then_taken_over_then_restored() {
    in_namespace("adopt::foreign_objects_are_named_then_taken_over_then_restored", || {
        let lab = Lab::shared();
        let _switch = lab.switch();
        let agent = lab.agent();
        let before = make_foreign_objects();
        let text = contract("web", 1, "vnet3", LIMITS);
        let (status, answer) = agent.apply(&text);
        let why = answer["details"][0].as_str().unwrap();
        assert_eq!(status, 422);
        assert!(
            why.contains("qdisc htb 1: at its root and a u32 filter of preference 9 at its ingress"),
            "{why}"
        );
        assert!(why.contains("apply with --adopt: then Tidegate takes it over, and restores"), "{why}");
        assert_eq!(tc_objects(), before);

        let (_, plan) = agent.request("POST", "/v1/plan?adopt=true", &text);
        assert_eq!(
            (&plan["admissible"], plan["refusals"].as_array().map(Vec::len)),
            (&true.into(), Some(0)),
            "{plan}"
        );
        assert_eq!(tc_objects(), before);
        let done = adopt(&agent, &text);
        let notes = done["notes"].to_string();
        assert!(
            notes.contains("at its ingress is taken over, and restored when the contract ends"),
            "{notes}"
        );
        assert!(is_shaped());

        // The next agent knows the rules only from its disk.
        agent.stop();
        let agent = lab.agent();
        until("it is in force", || super::in_force(&agent).then_some(()));
        // Repair forgets nothing.
        run("tc qdisc del dev vnet3 root");
        until("it is repaired", || is_shaped().then_some(()));
        remove(&agent, "web");
        assert_eq!(tc_objects(), before);
        assert!(!run("ip -br link").contains("tidegate"));
        until("nothing is on record", || {
            let record = std::fs::read_to_string(lab.path("state/kernel.json")).unwrap();
            (!record.contains("vnet3")).then_some(())
        });
    });
}

#[test]
fn each_direction_is_taken_over_and_restored_by_itself() {
    in_namespace("adopt::each_direction_is_taken_over_and_restored_by_itself", || {
        let lab = Lab::shared();
        let _switch = lab.switch();
        let agent = lab.agent();
        let before = make_foreign_objects();
        adopt(&agent, &contract("web", 1, "vnet3", "tx = { max = \"100mbit\" }"));
        assert!(tc_objects().contains("htb 1: root"), "{}", tc_objects());
        // A limit in one direction adopts nothing in the other.
        let (status, answer) = set(&agent, "rx.max", "50mbit");
        assert_eq!(status, 422, "{answer}");
        assert!(
            answer.to_string().contains("has qdisc htb 1: at its root, which another program made"),
            "{answer}"
        );
        adopt(&agent, &contract("web", 1, "vnet3", LIMITS));
        assert!(is_shaped());

        let (status, answer) = set(&agent, "tx.max", "none");
        assert_eq!(status, 200, "{answer}");
        assert!(tc_objects().contains("pref 9 u32"), "{}", tc_objects());
        assert!(tc_objects().contains("htb 7464: root"), "{}", tc_objects());
        // The netdev moves to another contract, which then goes.
        let (status, answer) = agent.request(
            "POST",
            "/v1/apply?prune=true",
            &contract("db", 2, "vnet3", "rx = { max = \"60mbit\" }"),
        );
        assert_eq!(status, 200, "{answer}");
        assert!(tc_objects().contains("rate 60Mbit"), "{}", tc_objects());
        remove(&agent, "db");
        assert_eq!(tc_objects(), before);
    });
}

#[test]
fn objects_that_are_not_taken_over_in_the_end_are_unchanged() {
    in_namespace("adopt::objects_that_are_not_taken_over_in_the_end_are_unchanged", || {
        let lab = Lab::shared();
        let _switch = lab.switch();
        let agent = lab.agent();
        let before = make_foreign_objects();
        // The change fails: a folder blocks the file's earlier copy.
        let earlier = lab.path("state/contracts.json.previous");
        std::fs::create_dir_all(earlier.join("in the way")).unwrap();
        // Only an existing file gets an earlier copy.
        let text = contract("web", 1, "vnet3", LIMITS);
        std::fs::write(lab.path("state/contracts.json"), "").unwrap();
        let (status, answer) = agent.request("POST", "/v1/apply?adopt=true", &text);
        assert_eq!(status, 500, "{answer}");
        assert!(answer["error"].as_str().unwrap().contains("was taken back"), "{answer}");
        assert_eq!(tc_objects(), before);
        std::fs::remove_dir_all(earlier).unwrap();

        // What the agent cannot restore is not adopted.
        run("ip tuntap add vnet4 mode tap");
        run(
            "tc filter add dev vnet3 parent ffff: protocol all pref 4 u32 match u32 0 0 action mirred egress redirect dev vnet4",
        );
        let with_mirror = tc_objects();
        let (status, answer) =
            agent.request("POST", "/v1/apply?adopt=true", &contract("web", 1, "vnet3", LIMITS));
        assert_eq!(status, 422, "{answer}");
        assert!(
            answer
                .to_string()
                .contains("--adopt cannot take it over: cannot make the u32 filter of preference 4"),
            "{answer}"
        );
        assert_eq!(tc_objects(), with_mirror);
    });
}

#[test]
fn objects_of_a_deleted_netdev_are_not_restored() {
    in_namespace("adopt::objects_of_a_deleted_netdev_are_not_restored", || {
        let lab = Lab::shared();
        let _switch = lab.switch();
        let agent = lab.agent();
        make_foreign_objects();
        adopt(&agent, &contract("web", 1, "vnet3", LIMITS));
        run("ip link del vnet3");
        run("ip tuntap add vnet3 mode tap");
        let bare = tc_objects();
        until("it is shaped", || is_shaped().then_some(()));
        remove(&agent, "web");
        assert_eq!(tc_objects(), bare);
    });
}

#[test]
fn objects_that_cannot_be_restored_are_named_and_taken_over_only_on_request() {
    in_namespace("adopt::objects_that_cannot_be_restored_are_named_and_taken_over_only_on_request", || {
        let lab = Lab::shared();
        let _switch = lab.switch();
        let agent = lab.agent();
        // A size table cannot be read back; the ingress is restored.
        run("tc qdisc add dev vnet3 root handle 1: stab overhead 20 tbf rate 1mbit burst 10kb latency 50ms");
        for line in &OTHERS[4..] {
            run(line);
        }
        let before = run("tc filter show ingress dev vnet3");
        let text = contract("web", 1, "vnet3", LIMITS);
        let why = "qdisc tbf 1: at root: a size table cannot be restored later";
        for adopt in ["false", "true"] {
            let (status, answer) = agent.request("POST", &format!("/v1/apply?adopt={adopt}"), &text);
            assert_eq!(status, 422, "{answer}");
            assert!(answer.to_string().contains(&format!("--adopt cannot take it over: {why}")), "{answer}");
        }
        let (status, answer) = agent.request("POST", "/v1/apply?adopt=anyway", &text);
        assert_eq!(status, 200, "{answer}");
        let note = format!("is taken over, and not restored when the contract ends: {why}");
        assert!(answer["notes"].to_string().contains(&note), "{answer}");
        assert!(is_shaped());
        let lost = format!(
            "the objects that another program made on its interface are not restored when the contract ends: {why}"
        );
        let said = |agent: &RunningAgent| {
            let view = agent.vnic("web");
            assert_eq!(view["state"], "in force", "{view}");
            view["reason"].as_str().unwrap_or_default().contains(&lost).then_some(())
        };
        until("the vNIC says it", || said(&agent));
        agent.stop();
        let agent = lab.agent();
        until("it is in force", || super::in_force(&agent).then_some(()));
        until("the vNIC says it", || said(&agent));

        remove(&agent, "web");
        assert_eq!(run("tc filter show ingress dev vnet3"), before);
        assert!(!run("tc qdisc show dev vnet3").contains("tbf"));
    });
}

#[test]
fn tidegates_own_filters_are_not_taken_for_foreign_ones() {
    in_namespace("adopt::tidegates_own_filters_are_not_taken_for_foreign_ones", || {
        let lab = Lab::shared();
        let _switch = lab.switch();
        let agent = lab.agent();
        for line in &OTHERS[4..] {
            run(line);
        }
        let before = tc_objects();
        // At an ingress without a limit, both programs' filters coexist.
        assert_eq!(agent.apply(&contract("web", 1, "vnet3", "rx = { max = \"50mbit\" }")).0, 200);
        adopt(&agent, &contract("web", 1, "vnet3", LIMITS));
        assert!(is_shaped());
        remove(&agent, "web");
        assert_eq!(tc_objects(), before);
    });
}
