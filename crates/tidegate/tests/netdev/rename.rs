//! Another program renames a netdev: its limits stay, and the vNIC says so. A new netdev of the name is
//! limited too.

use super::common::{Lab, RunningAgent, until};
use super::{LIMITS, contract, in_namespace, nothing_is_wrong, run};

fn is_shaped(name: &str) -> bool {
    run(&format!("tc class show dev {name}")).contains("rate 50Mbit ceil 50Mbit")
        && run(&format!("tc filter show dev {name} ingress")).contains("Redirect to device tidegate-tx")
}

fn leaves() -> usize {
    run("tc class show dev tidegate-tx").lines().filter(|line| line.contains("rate 100Mbit")).count()
}

fn until_said(agent: &RunningAgent, what: &str) {
    until(what, || {
        let view = agent.vnic("web");
        let said = view["reason"].as_str().unwrap_or_default().contains(what);
        (view["state"] == "in force" && view["connection"] == "up" && said).then_some(())
    });
}

fn look_twice(agent: &RunningAgent) {
    for _ in 0..2 {
        assert_eq!(agent.get("/v1/vnics/web/why").0, 200);
    }
}

#[test]
fn limits_stay_on_a_netdev_that_is_renamed() {
    in_namespace("rename::limits_stay_on_a_netdev_that_is_renamed", || {
        let lab = Lab::shared();
        let _switch = lab.switch();
        let agent = lab.agent();
        assert_eq!(agent.apply(&contract("web", 1, "vnet3", LIMITS)).0, 200);
        let repaired = || agent.get("/v1/host").1["drift_repaired"].as_u64();
        let before = repaired();
        run("ip link set vnet3 name old");
        until_said(&agent, "interface vnet3 is called old now; its limits stay on it");
        look_twice(&agent);
        assert!(is_shaped("old") && leaves() == 1);
        assert_eq!(repaired(), before, "nothing was missing");
        // Repairs and changes reach the renamed netdev.
        run("tc qdisc del dev old root");
        until("it is repaired", || is_shaped("old").then_some(()));
        let (status, answer) = agent.request("PATCH", "/v1/vnics/web", r#"{"set": {"rx.max": "60mbit"}}"#);
        assert_eq!(status, 200, "{answer}");
        assert!(run("tc class show dev old").contains("rate 60Mbit"));
        let (status, answer) = agent.request("PATCH", "/v1/vnics/web", r#"{"set": {"rx.max": "50mbit"}}"#);
        assert_eq!(status, 200, "{answer}");

        // The next agent knows the netdev only from its disk.
        agent.stop();
        assert!(is_shaped("old"));
        let agent = lab.agent();
        until_said(&agent, "interface vnet3 is called old now");
        look_twice(&agent);
        assert!(is_shaped("old") && leaves() == 1);

        // A new device of the name is the contract's; the renamed one keeps its limits.
        run("ip tuntap add vnet3 mode tap");
        until_said(&agent, "interface old, which was vnet3 before it was renamed, keeps the limits");
        assert!(is_shaped("vnet3") && is_shaped("old") && leaves() == 2);
        run("ip link del vnet3");
        until_said(&agent, "interface vnet3 is called old now");
        run("ip link set old name vnet3");
        until("all is as it was", || {
            let view = agent.vnic("web");
            (view["state"] == "in force" && nothing_is_wrong(&view)).then_some(())
        });
        until("one of them is left", || (is_shaped("vnet3") && leaves() == 1).then_some(()));

        // The limits go with the contract, under whatever name.
        run("ip link set vnet3 name old");
        let (status, answer) = agent.request("DELETE", "/v1/vnics/web", "");
        assert_eq!(status, 200, "{answer}");
        until("they are gone", || {
            let gone =
                !run("tc class show dev old").contains("htb") && !run("ip -br link").contains("tidegate-tx");
            gone.then_some(())
        });
        assert_eq!(run("tc filter show dev old ingress"), "");
    });
}

#[test]
fn a_netdev_with_the_name_of_another_contract_belongs_to_that_contract() {
    in_namespace("rename::a_netdev_with_the_name_of_another_contract_belongs_to_that_contract", || {
        let lab = Lab::shared();
        let _switch = lab.switch();
        let agent = lab.agent();
        run("ip tuntap add vnet4 mode tap");
        let other = "tx = { max = \"100mbit\" }\nrx = { max = \"70mbit\" }";
        let text = contract("web", 1, "vnet3", LIMITS) + &contract("db", 2, "vnet4", other);
        assert_eq!(agent.apply(&text).0, 200);
        // web's netdev gets the name of db's, whose VM has ended.
        run("ip link del vnet4");
        run("ip link set vnet3 name vnet4");
        until("it is db's", || run("tc class show dev vnet4").contains("rate 70Mbit").then_some(()));
        until("web has none", || {
            agent.vnic("web")["reason"].as_str()?.contains("interface vnet3 does not exist").then_some(())
        });
        // As when libvirt gives a tap's name to the next VM.
        run("ip link del vnet4");
        run("ip tuntap add vnet3 mode tap");
        run("ip tuntap add vnet4 mode tap");
        until("each has its own", || {
            (is_shaped("vnet3") && run("tc class show dev vnet4").contains("rate 70Mbit")).then_some(())
        });
    });
}
