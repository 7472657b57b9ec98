//! The plan on a real kernel: what is made, told apart, put right and taken away.

mod netns;

use netns::*;
use tidegate_place_kernel::tc::class::HtbClass;
use tidegate_place_kernel::tc::network::Rule;
use tidegate_place_kernel::tc::owner;
use tidegate_place_kernel::tc::{Kernel, Limit, Shaping, Ways};

fn leaves(network: &tidegate_place_kernel::tc::Network) -> usize {
    network.by_name(owner::IFB).map_or(0, |(_, ifb)| ifb.classes.len())
}

#[test]
fn removed_limits_leave_no_objects() {
    in_namespace("removed_limits_leave_no_objects", || {
        ip("tuntap add vnet3 mode tap");
        ip("link add veth0 type veth peer name veth1");
        ip("link add link veth1 name mt0 type macvtap mode bridge");
        for device in ["vnet3", "veth0", "veth1", "mt0"] {
            ip(&format!("link set {device} up"));
        }
        let before = observe();
        let names = ["vnet3", "veth0", "mt0"];
        let network = settle(&names.map(|name| shaping(name, "100mbit", "5gbit")));
        assert_eq!(leaves(&network), 3);
        for (name, egress, ingress) in
            [("vnet3", "5gbit", "100mbit"), ("veth0", "5gbit", "100mbit"), ("mt0", "100mbit", "5gbit")]
        {
            let (_, link) = network.by_name(name).unwrap();
            let class = link.class(owner::ROOT_CLASS).unwrap().htb;
            assert_eq!(class, Some(limit(egress).into()), "{name}");
            let rule =
                &link.filters_at(tidegate_place_kernel::tc::handle::Handle::INGRESS).next().unwrap().rule;
            let (ifb, on) = network.by_name(owner::IFB).unwrap();
            assert!(matches!(rule, Rule::Redirect { to, .. } if *to == ifb), "{rule:?}");
            let leaf =
                on.classes.iter().filter(|c| c.htb == Some(HtbClass::sender(limit(ingress), false))).count();
            assert!(leaf > 0, "{name}");
        }
        assert_eq!(settle(&[]), before);
    });
}

#[test]
fn rates_change_in_place_and_wide_ones_read_back() {
    in_namespace("rates_change_in_place_and_wide_ones_read_back", || {
        ip("tuntap add vnet3 mode tap");
        for rate in ["9kbit", "8mbit", "1gbit", "34gbit", "35gbit", "100gbit"] {
            settle(&[shaping("vnet3", rate, rate)]);
        }
        let mut kernel = Kernel::open().unwrap();
        let plan = kernel.settle(&[shaping("vnet3", "8mbit", "100gbit")]).unwrap();
        let steps: Vec<_> = plan.steps.iter().map(ToString::to_string).collect();
        assert_eq!(
            steps,
            [
                "set class 7464:1 of tidegate-tx to 1000000 bytes/s",
                "set qdisc bfifo at 7464:1 of tidegate-tx"
            ]
        );
    });
}

#[test]
fn foreign_objects_cause_a_refusal_and_stay() {
    in_namespace("foreign_objects_cause_a_refusal_and_stay", || {
        ip("tuntap add vnet3 mode tap");
        ip("tuntap add vnet4 mode tap");
        tc("qdisc add dev vnet3 root handle 1: htb default 1");
        tc("class add dev vnet3 parent 1: classid 1:1 htb rate 10mbit");
        tc("qdisc add dev vnet4 ingress");
        tc("filter add dev vnet4 parent ffff: protocol all u32 match u32 0 0 classid :1");
        let before = observe();
        let wanted = ["vnet3", "vnet4"].map(|name| shaping(name, "1mbit", "1mbit"));
        let made = Kernel::open().unwrap().settle(&wanted).unwrap();
        assert_eq!(made.steps, []);
        let reasons: Vec<_> = made.refusals.iter().map(|r| r.reason.as_str()).collect();
        assert!(reasons[0].contains("vnet3 has qdisc htb 1: at its root"), "{reasons:?}");
        assert!(
            reasons[1].contains("vnet4 has a u32 filter of preference 49152 at its ingress"),
            "{reasons:?}"
        );
        assert_eq!(observe(), before);
    });
}

#[test]
fn drift_is_repaired() {
    in_namespace("drift_is_repaired", || {
        ip("tuntap add vnet3 mode tap");
        let mut wanted = [shaping("vnet3", "100mbit", "50mbit")];
        let right = settle(&wanted);
        wanted[0].owned = Ways::BOTH;
        let damages: &[&[&str]] = &[
            &["tc qdisc del dev vnet3 root"],
            &["tc qdisc replace dev vnet3 root handle 1: htb default 1"],
            &["tc qdisc replace dev vnet3 root handle 1: tbf rate 1mbit burst 10kb latency 50ms"],
            &["tc class change dev vnet3 classid 7464:1 htb rate 1mbit"],
            &["tc qdisc del dev vnet3 parent 7464:1"],
            &["tc qdisc del dev vnet3 clsact"],
            &["tc filter del dev vnet3 ingress"],
            // As libvirt sets its own.
            &[
                "tc qdisc del dev vnet3 root",
                "tc qdisc del dev vnet3 clsact",
                "tc qdisc add dev vnet3 root handle 1: htb default 1",
                "tc qdisc add dev vnet3 ingress",
                "tc filter add dev vnet3 parent ffff: protocol all u32 match u32 0 0 classid :1",
            ],
            &["tc filter add dev vnet3 ingress pref 1 protocol all u32 match u32 0 0 classid :1"],
            &["ip link del tidegate-tx"],
            &["ip link set tidegate-tx down"],
            &["tc qdisc del dev tidegate-tx root"],
            &["tc filter del dev tidegate-tx pref 2"],
            &["tc filter add dev tidegate-tx pref 7 protocol all u32 match u32 0 0 classid 7464:1"],
            &["tc class add dev tidegate-tx parent 7464: classid 7464:9 htb rate 1mbit"],
        ];
        let class = |network: &tidegate_place_kernel::tc::Network| {
            let (_, link) = network.by_name("vnet3").unwrap();
            (link.class(owner::ROOT_CLASS).unwrap().htb, leaves(network))
        };
        for damage in damages {
            for line in *damage {
                let (program, words) = line.split_once(' ').unwrap();
                run(program, words);
            }
            let made = Kernel::open().unwrap().settle(&wanted).unwrap();
            assert_ne!(made.steps, [], "{damage:?} is seen");
            assert_eq!(class(&settle(&wanted)), class(&right), "{damage:?}");
        }
        let gone = settle(&[]);
        assert_eq!(gone.netdevs.len(), 2, "lo and the tap");
    });
}

#[test]
fn a_tap_that_vanishes_during_a_change_is_an_error_and_leaves_no_objects() {
    in_namespace("a_tap_that_vanishes_during_a_change_is_an_error_and_leaves_no_objects", || {
        ip("tuntap add vnet3 mode tap");
        ip("tuntap add vnet4 mode tap");
        let wanted = [shaping("vnet3", "1mbit", "1mbit"), shaping("vnet4", "1mbit", "1mbit")];
        let mut kernel = Kernel::open().unwrap();
        let network = kernel.observe().unwrap();
        let steps = tidegate_place_kernel::tc::plan(&wanted, &network).steps;
        ip("link del vnet3");
        // Another one takes its name.
        ip("tuntap add vnet3 mode tap");
        let failed = steps.iter().find_map(|step| kernel.apply(step).err()).expect("a step fails");
        assert!(failed.to_string().contains("vnet3"), "{failed}");
        settle(&wanted);
        ip("link del vnet3");
        let made = kernel.settle(&wanted).unwrap();
        assert!(made.refusals[0].reason.contains("interface vnet3 does not exist"), "{made:?}");
        assert_eq!(leaves(&observe()), 1, "its leaf went with it");
    });
}

#[test]
fn two_hundred_taps_come_and_go_and_leave_no_objects() {
    in_namespace("two_hundred_taps_come_and_go_and_leave_no_objects", || {
        let before = observe();
        let batch = |from: usize, to: usize, words: &dyn Fn(usize) -> String| {
            let path = std::env::temp_dir().join(format!("tidegate-churn-{}", std::process::id()));
            let lines: Vec<_> = (from..to).map(words).collect();
            std::fs::write(&path, lines.join("\n")).unwrap();
            ip(&format!("-batch {}", path.display()));
            std::fs::remove_file(path).unwrap();
        };
        let wanted = |from: usize, to: usize, rate: &str| -> Vec<Shaping> {
            (from..to).map(|i| shaping(&format!("vnet{i}"), rate, rate)).collect()
        };
        batch(0, 200, &|i| format!("link add vnet{i} type veth peer name peer{i}"));
        assert_eq!(leaves(&settle(&wanted(0, 200, "10mbit"))), 200);
        // A quarter goes by itself, a quarter by contract, and the rest gets other rates.
        batch(0, 50, &|i| format!("link del vnet{i}"));
        assert_eq!(leaves(&settle(&wanted(100, 200, "20mbit"))), 100);
        let filters = run("tc", "filter show dev tidegate-tx");
        // A preference, and what is in it.
        assert_eq!(filters.lines().filter(|l| l.contains("pref")).count(), 2, "{filters}");
        assert_eq!(observe().ifb().unwrap().1.classified().count(), 100);
        batch(0, 50, &|i| format!("link add vnet{i} type veth peer name peer{i}"));
        assert_eq!(leaves(&settle(&wanted(0, 200, "30mbit"))), 200);
        batch(0, 200, &|i| format!("link del vnet{i}"));
        assert_eq!(settle(&[]), before);
    });
}

#[test]
fn without_rights_no_object_is_made_and_the_missing_right_is_named() {
    in_namespace("without_rights_no_object_is_made_and_the_missing_right_is_named", || {
        ip("tuntap add vnet3 mode tap");
        let before = observe();
        let tried = std::thread::spawn(|| {
            use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
            let mut sets = capabilities(None).unwrap();
            sets.effective.remove(CapabilitySet::NET_ADMIN);
            set_capabilities(None, sets).unwrap();
            Kernel::open().unwrap().settle(&[shaping("vnet3", "1mbit", "1mbit")])
        });
        let error = tried.join().unwrap().expect_err("it has no rights").to_string();
        assert!(error.contains("needs CAP_NET_ADMIN"), "{error}");
        assert_eq!(observe(), before);
    });
}

#[test]
fn probing_this_kernel_leaves_no_objects() {
    in_namespace("probing_this_kernel_leaves_no_objects", || {
        let before = observe();
        let missing = tidegate_place_kernel::tc::probe().unwrap();
        assert_eq!(missing, tidegate_place_kernel::tc::Missing::default(), "this kernel lacks something");
        assert_eq!(observe(), before);
    });
}

#[test]
fn a_limit_equals_the_limit_that_the_kernel_shows() {
    in_namespace("a_limit_equals_the_limit_that_the_kernel_shows", || {
        ip("tuntap add vnet3 mode tap");
        let limit: Limit = small();
        settle(&[Shaping { netdev: "vnet3".into(), rx: Some(limit), ..Shaping::default() }]);
        let shown = run("tc", "class show dev vnet3");
        assert!(shown.contains("rate 10Mbit ceil 10Mbit burst 64Kb cburst 64Kb"), "{shown}");
    });
}
