//! The agent repairs, logs and counts within a second what another program changed.

use super::common::{Lab, until};
use super::{LIMITS, contract, in_namespace, is_shaped, run};
use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The promised second, and one more for a busy machine.
const WITHIN: Duration = Duration::from_secs(2);

/// The agent's log. This process runs one test.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn start() -> Self {
        let log = Self::default();
        let writer = log.clone();
        tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).init();
        log
    }

    fn lines(&self, with: &str) -> Vec<String> {
        let log = self.0.lock().unwrap();
        let text = String::from_utf8_lossy(&log);
        text.lines().filter(|line| line.contains(with)).map(str::to_owned).collect()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn drift_is_repaired_within_a_second_logged_and_counted() {
    in_namespace("drift::drift_is_repaired_within_a_second_logged_and_counted", || {
        let log = Log::start();
        let lab = Lab::shared();
        let _switch = lab.switch();
        let agent = lab.agent();
        assert_eq!(agent.apply(&contract("web", 1, "vnet3", LIMITS)).0, 200);
        let repaired = || agent.get("/v1/host").1["drift_repaired"].as_u64().unwrap();
        let damages = [
            ("tc qdisc del dev vnet3 root", "set qdisc htb at root of vnet3"),
            ("tc qdisc replace dev vnet3 root handle 1: htb", "set qdisc htb at root of vnet3"),
            ("tc qdisc del dev vnet3 clsact", "set qdisc clsact at clsact of vnet3"),
            ("tc class change dev vnet3 classid 7464:1 htb rate 1mbit", "set class 7464:1 of vnet3"),
            ("ip link del tidegate-tx", "make interface tidegate-tx"),
            // Real-time marks and, without fq_codel and cake, the congestion marks.
            ("tc filter del dev vnet3 ingress pref 1", "in what vnet3 receives"),
        ];
        for (number, (damage, what)) in (1..).zip(damages) {
            let before = repaired();
            run(damage);
            let begin = Instant::now();
            until(damage, || is_shaped().then_some(()));
            let took = begin.elapsed();
            assert!(took < WITHIN, "{damage}: repaired after {took:?}");
            until("it is counted", || (repaired() > before).then_some(()));
            let lines = log.lines("drift: ");
            assert_eq!(lines.len(), number, "one line each: {lines:#?}");
            let line = lines.last().unwrap();
            assert!(line.contains("WARN") && line.contains("vnic=\"web\""), "{line}");
            assert!(line.contains(what), "{damage}: {line}");
        }
    });
}

#[test]
fn what_an_earlier_agent_left_is_named_so_and_removed() {
    in_namespace("drift::what_an_earlier_agent_left_is_named_so_and_removed", || {
        let log = Log::start();
        let lab = Lab::shared();
        let _switch = lab.switch();
        let agent = lab.agent();
        assert_eq!(agent.apply(&contract("web", 1, "vnet3", LIMITS)).0, 200);
        agent.stop();
        // As of a vNIC whose contract ended while the agent died.
        run("tc class add dev tidegate-tx parent 7464: classid 7464:99 htb rate 1mbit");
        let is_there = || run("tc class show dev tidegate-tx").contains("7464:99");
        assert!(is_there());
        let agent = lab.agent();
        until("it is removed", || (!is_there()).then_some(()));
        assert_eq!(log.lines("objects that an earlier agent left in the kernel are removed").len(), 1);
        assert_eq!(log.lines("drift: "), [""; 0]);
        assert_eq!(agent.get("/v1/host").1["drift_repaired"], 0);
        // From now on it is drift.
        run("tc class add dev tidegate-tx parent 7464: classid 7464:99 htb rate 1mbit");
        until("it is removed", || (!is_there()).then_some(()));
        until("it is logged", || (log.lines("drift: ").len() == 1).then_some(()));
    });
}

#[test]
fn a_filter_in_another_chain_is_not_in_the_way() {
    in_namespace("drift::a_filter_in_another_chain_is_not_in_the_way", || {
        let lab = Lab::shared();
        let _switch = lab.switch();
        let agent = lab.agent();
        run("ip tuntap add vnet4 mode tap");
        run("tc qdisc add dev vnet3 clsact");
        // No filter leads to this chain, so it refuses no contract.
        run("tc filter add dev vnet3 ingress chain 4 protocol all pref 2 u32 match u32 0 0 classid :1");
        let text = contract("web", 1, "vnet3", LIMITS) + &contract("db", 2, "vnet4", LIMITS);
        let (status, answer) = agent.apply(&text);
        assert_eq!(status, 200, "{answer}");
        // With the preferences of the agent's filters, on a netdev and on the shared IFB.
        for line in [
            "tc filter add dev vnet3 ingress chain 5 protocol all pref 2 u32 match u32 0 0 classid :1",
            "tc filter add dev vnet3 ingress chain 5 protocol all pref 1 u32 match u32 0 0 classid :1",
            "tc filter add dev tidegate-tx parent 7464: chain 5 protocol all pref 2 u32 match u32 0 0 classid :1",
            "tc filter del dev vnet3 ingress chain 0 pref 2",
            "tc filter del dev vnet4 ingress chain 0 pref 2",
        ] {
            run(line);
        }
        let shaped = |netdev: &str| {
            let filters = run(&format!("tc filter show dev {netdev} ingress chain 0"));
            filters.contains("Redirect to device tidegate-tx").then_some(())
        };
        until("vnet4 is repaired", || shaped("vnet4"));
        until("vnet3 is repaired", || shaped("vnet3"));
        for name in ["web", "db"] {
            until("it is as it should be", || {
                let view = agent.vnic(name);
                let wrong = view["reason"].as_str().unwrap_or_default().contains("differs from its contract");
                (view["state"] == "in force" && !wrong).then_some(())
            });
        }
        // The whole IFB is the agent's; on netdevs, filters that conflict with no contract stay.
        assert!(!run("tc filter show dev tidegate-tx parent 7464:").contains("chain 5"));
        let foreign_filters = || run("tc filter show dev vnet3 ingress");
        let before = foreign_filters();
        assert!(before.contains("pref 2 u32 chain 4") && before.contains("pref 1 u32 chain 5"), "{before}");
        assert_eq!(agent.request("DELETE", "/v1/vnics/web", "").0, 200);
        let after = foreign_filters();
        assert!(after.contains("pref 2 u32 chain 4") && after.contains("pref 1 u32 chain 5"), "{after}");
        assert!(!after.contains("chain 0"), "\n{after}");
    });
}
