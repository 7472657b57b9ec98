//! What others made on a netdev is remembered, tried, taken over, and as it was afterwards: as tc shows it.
//!
//! Where the kernel has no sfq, fw filters and policers (the kernel of test machines), tests/kernel/test_stock_kernel.py runs
//! `stock_kernel` in a guest whose kernel has them.

mod netns;

use netns::*;
use std::process::Command;
use tidegate_place_kernel::foreign::{TakenOver, rehearse};
use tidegate_place_kernel::tc::{Ends, Kernel, Shaping, Ways};

/// All that tc shows of a device, but counters, the numbers that the kernel gives u32's tables, and their order.
fn shown(device: &str) -> Vec<String> {
    let mut text = String::new();
    for words in ["qdisc", "class", "filter"] {
        text += &run("tc", &format!("-d {words} show dev {device}"));
    }
    text += &run("tc", &format!("-d filter show dev {device} ingress"));
    let lasting = |line: &str| {
        line.split_whitespace().filter(|word| !word.starts_with("80")).collect::<Vec<_>>().join(" ")
    };
    let mut lines: Vec<_> = text.lines().map(lasting).collect();
    lines.sort();
    lines
}

#[track_caller]
fn theirs(device: &str) -> Result<TakenOver, String> {
    let mut kernel = Kernel::open().unwrap();
    let (index, _) = kernel.observe().unwrap().by_name(device).map(|(i, l)| (i, l.clone())).unwrap();
    kernel.foreign(index, Ends::BOTH)
}

fn owned(device: &str) -> [Shaping; 1] {
    [Shaping { owned: Ways::BOTH, ..shaping(device, "100mbit", "50mbit") }]
}

/// Takes over what these lines make, lets go of it, and compares.
#[track_caller]
fn comes_back(lines: &[&str]) {
    ip("tuntap add vnet3 mode tap");
    for line in lines {
        tc(line);
    }
    let before = shown("vnet3");
    let theirs = theirs("vnet3").unwrap();
    rehearse(&theirs, "vnet3").unwrap();
    assert_eq!(shown("vnet3"), before, "nothing is touched so far");

    let network = settle(&owned("vnet3"));
    assert!(network.by_name("vnet3").unwrap().1.root_is_ours());
    assert_ne!(shown("vnet3"), before);

    settle(&[]);
    let mut kernel = Kernel::open().unwrap();
    // The part of it that an earlier, interrupted run may have done.
    for _ in 0..2 {
        let network = kernel.observe().unwrap();
        for step in theirs.restore(network.by_name("vnet3").unwrap().1, Ends::BOTH) {
            kernel.apply(&step).unwrap();
        }
    }
    assert_eq!(shown("vnet3"), before);
    ip("link del vnet3");
}

#[test]
fn foreign_objects_are_restored_exactly() {
    in_namespace("foreign_objects_are_restored_exactly", || {
        comes_back(&["qdisc add dev vnet3 root handle 1: tbf rate 1mbit burst 10kb latency 50ms"]);
        comes_back(&[
            "qdisc add dev vnet3 root handle 1: htb default 2 r2q 20",
            "class add dev vnet3 parent 1: classid 1:1 htb rate 8mbit ceil 9mbit burst 20k prio 3",
            "class add dev vnet3 parent 1:1 classid 1:2 htb rate 3mbit ceil 5gbit quantum 3000",
            "class add dev vnet3 parent 1:1 classid 1:3 htb rate 40gbit",
            "qdisc add dev vnet3 parent 1:2 handle 2: pfifo limit 77",
            "qdisc add dev vnet3 parent 1:3 handle 3: tbf rate 1mbit burst 10kb limit 9000",
            "filter add dev vnet3 parent 1: protocol ip pref 7 u32 match ip dport 80 0xffff flowid 1:3",
            "filter add dev vnet3 parent 1: protocol all pref 2 u32 match u32 0 0 flowid 1:2",
        ]);
        comes_back(&[
            "qdisc add dev vnet3 ingress",
            "filter add dev vnet3 parent ffff: protocol all pref 9 u32 match u32 0 0 classid :1",
            "filter add dev vnet3 parent ffff: protocol ip pref 3 u32 match ip src 10.0.0.0/8 classid :2",
        ]);
        comes_back(&[
            "qdisc add dev vnet3 clsact",
            "filter add dev vnet3 ingress protocol ip pref 3 handle 1: u32 divisor 4",
            "filter add dev vnet3 ingress protocol ip pref 3 u32 ht 1:2: match ip src 10.0.0.0/8 classid :2",
            "filter add dev vnet3 ingress protocol ip pref 3 u32 match u32 0 0 link 1:",
            "filter add dev vnet3 egress protocol all pref 9 u32 match u32 0 0 classid :1",
        ]);
    });
}

/// Whether the kernel has what libvirt makes of `<bandwidth>`. Says so, since only the guest does without it.
fn is_stock_kernel() -> bool {
    let made = |words: &str| Command::new("tc").args(words.split(' ')).output().unwrap().status.success();
    let has = made("qdisc add dev lo root handle 1: sfq") && made("qdisc del dev lo root");
    if !has {
        assert!(std::env::var_os("TIDEGATE_TEST_STOCK_KERNEL").is_none(), "this kernel has no qdisc sfq");
        println!("in a guest only: this kernel has no qdisc sfq");
    }
    has
}

#[test]
fn stock_kernel_bandwidth_limits_of_libvirt_are_restored() {
    in_namespace("stock_kernel_bandwidth_limits_of_libvirt_are_restored", || {
        if !is_stock_kernel() {
            return;
        }
        // libvirt 6.0 to 11.3 (virNetDevBandwidthSet, src/util/virnetdevbandwidth.c).
        let inbound = [
            "qdisc add dev vnet3 root handle 1: htb default 1",
            "class add dev vnet3 parent 1: classid 1:1 htb rate 1000kbps ceil 5000kbps burst 128kb quantum 85",
            "qdisc add dev vnet3 parent 1:1 handle 2: sfq perturb 10",
            "filter add dev vnet3 parent 1:0 protocol all prio 1 handle 1 fw flowid 1",
        ];
        let outbound = [
            "qdisc add dev vnet3 ingress",
            "filter add dev vnet3 parent ffff: protocol all u32 match u32 0 0 police rate 500kbps burst 500kb mtu 64kb drop \
             flowid :1",
        ];
        comes_back(&inbound);
        comes_back(&outbound);
        comes_back(&[&inbound[..], &outbound].concat());
        // 1.0 to 5.x: IPv4 only.
        comes_back(&[
            "qdisc add dev vnet3 root handle 1: htb default 1",
            "class add dev vnet3 parent 1: classid 1:1 htb rate 1000kbps",
            "qdisc add dev vnet3 parent 1:1 handle 2: sfq perturb 10",
            "filter add dev vnet3 parent 1:0 protocol ip handle 1 fw flowid 1",
            "qdisc add dev vnet3 ingress",
            "filter add dev vnet3 parent ffff: protocol ip u32 match ip src 0.0.0.0/0 police rate 500kbps burst 500kb mtu \
             64kb drop flowid :1",
        ]);
        // A network's bridge with a floor, as on a device of its own.
        comes_back(&[
            "qdisc add dev vnet3 root handle 1: htb default 2",
            "class add dev vnet3 parent 1: classid 1:1 htb rate 1000kbps ceil 5000kbps quantum 85",
            "class add dev vnet3 parent 1:1 classid 1:2 htb rate 1000kbps ceil 5000kbps quantum 85",
            "class add dev vnet3 parent 1:1 classid 1:3 htb rate 100kbps ceil 5000kbps quantum 8",
            "qdisc add dev vnet3 parent 1:2 handle 2: sfq perturb 10",
            "qdisc add dev vnet3 parent 1:3 handle 3: sfq perturb 10",
            "filter add dev vnet3 parent 1:0 protocol all prio 1 handle 1 fw flowid 1",
            "filter add dev vnet3 protocol ip prio 2 handle 800::3 u32 match u16 0x0800 0xffff at -2 match u32 0x00000b01 \
             0xffffffff at -12 match u16 0x5254 0xffff at -14 flowid 1:3",
        ]);
    });
}

#[test]
fn stock_kernel_other_policers_and_queues_are_restored() {
    in_namespace("stock_kernel_other_policers_and_queues_are_restored", || {
        if !is_stock_kernel() {
            return;
        }
        let ingress = |filter: &str| {
            comes_back(&[
                "qdisc add dev vnet3 clsact",
                &format!("filter add dev vnet3 ingress protocol all pref 9 {filter}"),
            ]);
        };
        let police = "police rate 4mbit burst 64k mtu 64kb drop";
        ingress(&format!("u32 match u32 0 0 action {police}"));
        ingress(&format!("matchall action {police}"));
        ingress(&format!("u32 match u32 0 0 {police} flowid :1"));
        ingress(&format!("basic {police} flowid :1"));
        ingress(&format!("flower action {police}"));
        ingress(
            "u32 match u32 0 0 police rate 4mbit burst 64k peakrate 8mbit mtu 2000 conform-exceed pipe/drop",
        );
        ingress("u32 match u32 0 0 police rate 40gbit burst 64k overhead 4 linklayer atm");
        ingress("matchall action police pkts_rate 1000 pkts_burst 100");
        let root = |qdisc: &str| comes_back(&[&format!("qdisc add dev vnet3 root handle 1: {qdisc}")]);
        root("sfq");
        root("sfq limit 60 perturb 10");
        root("sfq limit 3000 flows 512 divisor 512 depth 60 headdrop quantum 3000");
        root("sfq limit 3000 redflowlimit 100000 min 8000 max 60000 probability 0.20 ecn");
        root("fq_codel");
        root("fq_codel target 3ms interval 70ms limit 500 flows 64 quantum 300 noecn ce_threshold 1ms");
        root("codel");
        root("codel target 7ms interval 123ms limit 50 ecn");
        root("fq");
        root("pfifo limit 12");
        root("prio bands 4");
    });
}

#[test]
fn an_object_that_cannot_be_restored_is_named() {
    in_namespace("an_object_that_cannot_be_restored_is_named", || {
        ip("tuntap add vnet3 mode tap");
        ip("tuntap add vnet4 mode tap");
        tc("qdisc add dev vnet3 ingress");
        tc(
            "filter add dev vnet3 parent ffff: protocol all pref 9 u32 match u32 0 0 action mirred egress redirect dev vnet4",
        );
        let before = observe();
        let refused = rehearse(&theirs("vnet3").unwrap(), "vnet3").expect_err("no such device there");
        assert!(refused.contains("the u32 filter of preference 9 at ffff: of vnet3"), "{refused}");
        tc("qdisc add dev vnet4 root handle 1: stab overhead 20 tbf rate 1mbit burst 10kb latency 50ms");
        let refused = theirs("vnet4").expect_err("a size table");
        assert!(refused.contains("qdisc tbf 1: at root: a size table cannot be restored later"), "{refused}");
        tc("qdisc del dev vnet4 root");
        assert_eq!(observe(), before);
    });
}

#[test]
fn our_own_objects_are_not_foreign() {
    in_namespace("our_own_objects_are_not_foreign", || {
        ip("tuntap add vnet3 mode tap");
        assert!(theirs("vnet3").unwrap().is_empty(), "what the kernel made by itself belongs to no program");
        settle(&owned("vnet3"));
        assert!(theirs("vnet3").unwrap().is_empty());
    });
}
