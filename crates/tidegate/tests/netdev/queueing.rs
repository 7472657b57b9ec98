//! The order of waiting frames: the kernel's qdiscs, live changes, drift.

use super::common::{Lab, RunningAgent, until};
use super::netns::load::{Traffic, under};
use super::netns::{Guest, in_namespace, run};
use super::{LIMITS, contract, nothing_is_wrong};
use std::time::{Duration, Instant};

/// Returns a device's kinds of qdiscs, root first, ingress last.
fn qdiscs(device: &str) -> Vec<String> {
    let shown = run("tc", &format!("qdisc show dev {device}"));
    let kinds = shown.lines().filter_map(|line| line.split(' ').nth(1));
    let mut kinds: Vec<_> = kinds.map(str::to_owned).collect();
    let order = ["htb", "tbf", "fq_codel", "cake", "bfifo", "clsact"];
    kinds.sort_by_key(|kind| order.iter().position(|known| known == kind));
    kinds
}

#[track_caller]
fn set(agent: &RunningAgent, keys: &str) {
    let (status, answer) = agent.request("PATCH", "/v1/vnics/web", &format!(r#"{{"set": {{{keys}}}}}"#));
    assert_eq!(status, 200, "{keys}: {answer}");
}

#[test]
fn queueing_is_what_the_kernel_has_and_changes_under_traffic() {
    in_namespace("queueing::queueing_is_what_the_kernel_has_and_changes_under_traffic", || {
        let has = tidegate_place_kernel::tc::probe_queues().unwrap();
        let flows = if has.fq_codel { "fq_codel" } else { "bfifo" };
        let guest = Guest::new("vnet4", 1);
        let before = qdiscs("vnet4");
        let lab = Lab::shared();
        let _switch = lab.switch();
        let agent = lab.agent();
        let text = contract("web", 1, "vnet4", LIMITS);
        let (status, planned) = agent.request("POST", "/v1/plan?origin=test.toml", &text);
        assert_eq!(status, 200, "{planned}");
        let (status, applied) = agent.apply(&text);
        assert_eq!(status, 200, "{applied}");
        for answer in [planned.to_string(), applied.to_string()] {
            let apart = answer.contains("wait, each flow for itself");
            assert_eq!(
                (apart, answer.contains("flows are not kept apart")),
                (has.fq_codel, !has.fq_codel),
                "{answer}"
            );
        }
        assert_eq!(qdiscs("vnet4"), ["htb", "tbf", flows, "clsact"]);

        let received = || agent.vnic("web")["stats"]["rx"]["wire_bytes"].as_u64().unwrap();
        let drift = || agent.get("/v1/host").1["drift_repaired"].as_u64();
        let repaired = drift();
        under(Traffic::TcpIn, &guest, || {
            let changes: [(&str, &[&str]); 7] = [
                (r#""rx.max": "20mbit""#, &["htb", "tbf", flows, "clsact"]),
                (r#""queueing": "fifo""#, &["htb", "bfifo", "clsact"]),
                (
                    r#""queueing": "flows", "rx.max": "30mbit", "tx.max": "5mbit""#,
                    &["htb", "tbf", flows, "clsact"],
                ),
                (
                    r#""queueing.target": "2ms", "queueing.interval": "20ms""#,
                    &["htb", "tbf", flows, "clsact"],
                ),
                // At this rate no super-frame lasts 1 ms.
                (r#""rx.max": "1gbit""#, &["htb", flows, "clsact"]),
                (r#""queueing": "fifo", "rx.max": "20mbit""#, &["htb", "bfifo", "clsact"]),
                (r#""queueing": "flows""#, &["htb", "tbf", flows, "clsact"]),
            ];
            for (keys, right) in changes {
                set(&agent, keys);
                assert_eq!(qdiscs("vnet4"), right, "{keys}");
                let so_far = received();
                until("traffic goes on", || (received() > so_far + 50_000).then_some(()));
                let view = agent.vnic("web");
                assert!(view["state"] == "in force" && nothing_is_wrong(&view), "{keys}: {view}");
            }
        });
        assert_eq!(drift(), repaired, "a change is none");

        // Without the queue below, the qdisc that cuts super-frames drops everything.
        let begin = Instant::now();
        run("tc", "qdisc del dev vnet4 parent 3001:1");
        until("it is put right", || (qdiscs("vnet4") == ["htb", "tbf", flows, "clsact"]).then_some(()));
        assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
        until("it is counted", || (drift() > repaired).then_some(()));

        let (status, answer) =
            agent.request("PATCH", "/v1/vnics/web", r#"{"set": {"queueing.per-host": "true"}}"#);
        if has.cake {
            assert_eq!(status, 200, "{answer}");
            assert_eq!(qdiscs("vnet4"), ["htb", "cake", "clsact"]);
        } else {
            assert_eq!(status, 422, "{answer}");
            assert!(answer.to_string().contains("queueing.per-host takes qdisc cake"), "{answer}");
            assert_eq!(qdiscs("vnet4"), ["htb", "tbf", flows, "clsact"]);
        }
        let (status, answer) = agent.request("DELETE", "/v1/vnics/web", "");
        assert_eq!(status, 200, "{answer}");
        assert_eq!(qdiscs("vnet4"), before);
    });
}
