//! VMs come and go while limits change: the final state is right, and nothing remains.

use super::common::{Lab, RunningAgent};
use super::netns::ip;
use super::{LIMITS, contract, htb, in_namespace, is_shaped, run};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

const VMS: usize = 200;

fn contracts(rate: impl Fn(usize) -> usize) -> String {
    let mut text = String::new();
    for n in 0..VMS {
        let (tx, rx) = (rate(n), rate(n) + 1);
        let limits = format!("tx = {{ max = \"{tx}mbit\" }}\nrx = {{ max = \"{rx}mbit\" }}");
        let mac = format!("52:54:00:00:{:02x}:{:02x}", n >> 8, n & 0xff);
        text +=
            &contract(&format!("vm{n}"), 0, &format!("tg{n}"), &limits).replace("52:54:00:00:00:00", &mac);
    }
    text
}

/// Sets the flag when dropped, even after a failure.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Runs lines of `ip` in one process; some may fail because of another's change.
fn batch(lines: impl Iterator<Item = String>) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), lines.fold(String::new(), |all, line| all + &line + "\n")).unwrap();
    let done = std::process::Command::new("ip").args(["-force", "-batch"]).arg(file.path()).output().unwrap();
    drop(done);
}

/// Even VMs have a tap, odd ones a veth.
fn start(n: usize) -> String {
    if n.is_multiple_of(2) {
        format!("tuntap add tg{n} mode tap")
    } else {
        format!("link add tg{n} type veth peer name peer{n}")
    }
}

/// Lists interfaces with all qdiscs, classes and filters.
fn everything() -> Vec<String> {
    let links = run("ip -br link");
    let names = links.lines().filter_map(|line| line.split([' ', '@']).next());
    let without_counters = |line: &str| line.split(" direct_packets_stat").next().map(str::to_owned);
    let mut lines: Vec<String> = run("tc qdisc show").lines().filter_map(without_counters).collect();
    for device in names {
        lines.push(device.to_owned());
        for words in ["class show dev", "filter show dev", "filter show ingress dev"] {
            lines.extend(run(&format!("tc {words} {device}")).lines().map(|line| format!("{device} {line}")));
        }
    }
    lines.sort();
    lines
}

/// Checks each VM's rates and leaf, and the one filter to all leaves.
fn all_shaped(rate: impl Fn(usize) -> usize) -> Result<(), String> {
    let leaves = run("tc class show dev tidegate-tx");
    let filters = run("tc filter show dev tidegate-tx");
    // Two lines: the filter's preference, and the filter.
    let counts = (htb(&leaves), filters.lines().filter(|l| l.contains("pref")).count());
    let wrong = (0..VMS).find(|n| {
        let (tx, rx) = (rate(*n), rate(*n) + 1);
        !leaves.contains(&format!("rate {tx}Mbit ceil {tx}Mbit"))
            || !run(&format!("tc class show dev tg{n}")).contains(&format!("rate {rx}Mbit ceil {rx}Mbit"))
            || !run(&format!("tc filter show dev tg{n} ingress")).contains("Redirect to device tidegate-tx")
    });
    match wrong {
        Some(n) => Err(format!("tg{n} is not as it should be")),
        None if counts != (VMS, 2) => Err(format!("leaves, and lines of their filter: {counts:?}")),
        None => Ok(()),
    }
}

#[track_caller]
fn apply(agent: &RunningAgent, text: &str) {
    let (status, answer) = agent.apply(text);
    assert_eq!(status, 200, "{answer}");
}

#[test]
fn two_hundred_vms_come_and_go_while_limits_change() {
    in_namespace("churn::two_hundred_vms_come_and_go_while_limits_change", || {
        run("ip link del vnet3");
        let lab = Lab::shared();
        let _switch = lab.switch();
        let agent = lab.agent();
        let before = everything();
        batch((0..VMS).map(start));
        apply(&agent, &contracts(|n| 10 + n));
        assert_eq!(all_shaped(|n| 10 + n), Ok(()));

        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in (0..).take_while(|_| !over.load(Relaxed)) {
                    let some = || (0..VMS).filter(move |n| (n * 7 + round) % 10 < 3);
                    batch(some().map(|n| format!("link del tg{n}")));
                    batch(some().map(start));
                    std::thread::sleep(Duration::from_millis(50));
                }
            });
            let _ends = Ends(&over);
            let begin = Instant::now();
            let mut changes = 0;
            // At least 20 changes, even on a busy machine.
            while begin.elapsed() < Duration::from_secs(8)
                || (changes < 20 && begin.elapsed() < Duration::from_secs(40))
            {
                let body = format!("{{\"set\": {{\"tx.max\": \"{}mbit\"}}}}", changes + 1);
                let path = format!("/v1/vnics/vm{}", changes * 13 % VMS);
                let (status, answer) = agent.request("PATCH", &path, &body);
                // If the state changes faster than the agent reads it, the agent changes nothing and says
                // so.
                let slow = status == 503 && answer.to_string().contains("faster than it can be read");
                assert!(status == 200 || slow, "{status} {answer}");
                changes += usize::from(status == 200);
            }
            assert!(changes > 0, "some changes came through");
        });
        apply(&agent, &contracts(|n| 300 + n));
        let begin = Instant::now();
        while let Err(why) = all_shaped(|n| 300 + n) {
            let shown = || agent.get("/v1/vnics").1.to_string();
            assert!(begin.elapsed() < Duration::from_secs(60), "never: {why}\n{}", shown());
        }

        // A quarter of the VMs ends, then all contracts, then the other VMs.
        batch((0..VMS / 4).map(|n| format!("link del tg{n}")));
        let (status, answer) = agent.request("POST", "/v1/apply?prune=true", "# none");
        assert_eq!(status, 200, "{answer}");
        let remains = everything().join("\n");
        assert!(
            !remains.contains("tidegate") && !remains.contains("7464:") && !remains.contains("clsact"),
            "{remains}"
        );
        batch((VMS / 4..VMS).map(|n| format!("link del tg{n}")));
        assert_eq!(everything(), before);
    });
}

#[test]
fn a_netdev_that_goes_while_its_contract_comes_is_refused_and_leaves_nothing() {
    in_namespace("churn::a_netdev_that_goes_while_its_contract_comes_is_refused_and_leaves_nothing", || {
        let lab = Lab::shared();
        let _switch = lab.switch();
        let agent = lab.agent();
        ip("tuntap add vnet4 mode tap");
        apply(&agent, &contract("other", 2, "vnet4", LIMITS.replace("100", "70").as_str()));
        let before = everything();
        let over = AtomicBool::new(false);
        let mut outcomes = std::collections::BTreeMap::<u16, u32>::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Relaxed) {
                    batch(["link del vnet3".to_owned()].into_iter());
                    batch(["tuntap add vnet3 mode tap".to_owned()].into_iter());
                }
            });
            let _ends = Ends(&over);
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_secs(6) {
                let (status, answer) = agent.apply(&contract("web", 1, "vnet3", LIMITS));
                *outcomes.entry(status).or_default() += 1;
                let answer = answer.to_string();
                match status {
                    200 => {
                        let (status, answer) = agent.request("DELETE", "/v1/vnics/web", "");
                        assert_eq!(status, 200, "{answer}");
                    }
                    422 => assert!(answer.contains("interface vnet3 does not exist"), "{answer}"),
                    _ => {
                        assert_eq!(status, 409, "{answer}");
                        assert!(answer.contains("interface vnet3 went away while"), "{answer}");
                    }
                }
                assert_eq!(agent.get("/v1/vnics/web").0, 404);
                let leaves = run("tc class show dev tidegate-tx");
                assert_eq!(htb(&leaves), 1, "{outcomes:?}: {leaves}");
            }
        });
        batch(["link del vnet3".to_owned()].into_iter());
        batch(["tuntap add vnet3 mode tap".to_owned()].into_iter());
        assert_eq!(everything(), before, "{outcomes:?}");
        apply(&agent, &contract("web", 1, "vnet3", LIMITS));
        assert!(is_shaped());
    });
}
