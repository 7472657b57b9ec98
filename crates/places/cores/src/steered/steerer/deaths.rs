//! Deaths of the agent between record and device: its successor goes on from there, to whatever is wanted by then.

use super::{Nic, Steerer};
use crate::steered::tables::{NicTable, PlacedFlow};
use std::collections::BTreeMap;
use std::process::Command;
use tidegate_contract::{Flow, Tunnel};
use tidegate_cores::stage::Handle;
use tidegate_durable::cut::testing::dies_at;
use tidegate_steering::device::{Found, found, index};
use tidegate_testkit::{Kind, in_namespace, need};

const NETWORK: Kind<'_> = Kind {
    what: "network namespace with a veth",
    unshare: &["--net"],
    probe: &["ip", "link", "add", "type", "veth"],
    user: false,
};

fn run(words: &str) {
    let mut words = words.split(' ');
    let done = Command::new(words.next().unwrap()).args(words).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// One flow of the NIC to a CPU; no NIC at all.
fn wanted(cpu: Option<usize>) -> BTreeMap<String, NicTable> {
    let flow = Flow { protocol: Some(17), to_port: Some(5004), ..Flow::new("near", Tunnel::None) };
    let table = |cpu| {
        let placed = PlacedFlow { flow: flow.clone(), cpu, is_of_contract: false };
        NicTable { flows: [("voice".to_owned(), placed)].into(), ..NicTable::default() }
    };
    cpu.map(|cpu| ("near".to_owned(), table(cpu))).into_iter().collect()
}

/// Checks that all is as wanted: on record, and in the kernel.
fn check(steerer: &Steerer, cpu: Option<usize>) {
    let there = found(index("near").unwrap()).unwrap().1;
    assert_eq!(matches!(there, Found::Ours(..)), cpu.is_some(), "{there:?}");
    let handle = Handle::Flow { device: "near".into(), name: "voice".into() };
    assert_eq!(steerer.flows(), cpu.map(|cpu| (handle, cpu)).into_iter().collect());
    assert_eq!(steerer.is_clean(), cpu.is_none());
    let steering = |nic: &Nic| nic.steering.as_ref().unwrap().counters().unwrap();
    let counters = steerer.nics.get("near").map(steering);
    let to = counters.map(|counters| counters.entries["voice"].cpu);
    assert_eq!(to, cpu);
}

#[test]
fn the_successor_of_an_agent_that_died_goes_on() {
    in_namespace("steered::steerer::deaths::the_successor_of_an_agent_that_died_goes_on", NETWORK, || {
        if !need("two CPUs", std::thread::available_parallelism().unwrap().get() > 1) {
            return;
        }
        for words in [
            "ip link add near type veth peer name far",
            "ethtool -K near rxvlan off",
            "ip link set near up",
            "ip link set far up",
        ] {
            run(words);
        }
        let folder = tempfile::tempdir().unwrap();
        let agent = || {
            let (steerer, damage) = Steerer::new(folder.path()).unwrap();
            assert_eq!(damage, None);
            steerer
        };
        let mut deaths = 0;
        for [before, after, later] in [
            [None, Some(0), Some(0)],
            [None, Some(0), None],
            [Some(0), Some(1), Some(1)],
            [Some(0), None, None],
            [Some(0), None, Some(1)],
        ] {
            for at in 0.. {
                agent().apply(&wanted(before));
                let lived = dies_at(at, || agent().apply(&wanted(after))).is_some();
                let mut successor = agent();
                if matches!(found(index("near").unwrap()).unwrap().1, Found::Ours(..)) {
                    assert!(!successor.is_clean(), "its program is at the NIC, and not on record");
                }
                successor.apply(&wanted(later));
                check(&successor, later);
                if lived {
                    break;
                }
                deaths += 1;
            }
        }
        assert!(deaths >= 10, "{deaths}");
    });
}
