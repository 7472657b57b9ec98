//! How frames wait for a limit, on a real kernel: with each qdisc that it has.

mod netns;

use netns::load::{Traffic, under};
use netns::*;
use std::time::Duration;
use tidegate_place_kernel::tc::handle::Handle;
use tidegate_place_kernel::tc::network::Rule;
use tidegate_place_kernel::tc::owner;
use tidegate_place_kernel::tc::queueing::Waiting;
use tidegate_place_kernel::tc::{Flows, Kernel, Network, Qdiscs, Shaping, Ways, probe_queues};

/// What the running kernel has, alone and together.
fn kernels() -> Vec<Qdiscs> {
    let has = probe_queues().unwrap();
    println!("this kernel: {has:?}");
    assert!(has.tbf, "CONFIG_NET_SCH_TBF");
    if std::env::var_os("TIDEGATE_TEST_STOCK_KERNEL").is_some() {
        assert!(has.fq_codel && has.cake, "{has:?}");
    }
    let each = [
        (false, false, false),
        (true, false, false),
        (true, true, false),
        (false, true, false),
        (true, false, true),
    ];
    let kernels = each.map(|(tbf, fq_codel, cake)| Qdiscs { tbf, fq_codel, cake, congestion: false });
    let marks = Qdiscs { tbf: true, congestion: has.congestion, ..Qdiscs::default() };
    let kernels = kernels.into_iter().chain(has.congestion.then_some(marks));
    kernels.filter(|k| k.fq_codel <= has.fq_codel && k.cake <= has.cake).collect()
}

fn flows(kernel: Qdiscs) -> Flows {
    Flows { target: 5_000_000, interval: 100_000_000, per_host: kernel.cake, frame: 1518, kernel }
}

fn with_flows(shaping: Shaping, kernel: Qdiscs) -> Shaping {
    Shaping { flows: Some(flows(kernel)), ..shaping }
}

const LEAF: Handle = Handle::new(owner::MAJOR, owner::FIRST_LEAF);

/// What is below a class of a device, and what marks before it.
fn below(network: &Network, device: &str, class: Handle) -> Waiting {
    let (_, link) = network.by_name(device).unwrap();
    let leaf = link.leaf(class).unwrap();
    let (_, tap) = network.by_name("vnet3").unwrap();
    let parent = if device == owner::IFB { Handle::INGRESS } else { owner::ROOT_QDISC };
    let congestion = tap.filters_at(parent).find_map(|f| match f.rule {
        Rule::MarkCongestion { queue, .. } => Some(queue),
        _ => None,
    });
    if leaf.handle != owner::cutter(class) {
        return Waiting { cut: None, queue: leaf.setting.clone(), congestion };
    }
    let queue = link.leaf(owner::below(leaf.handle)).unwrap();
    Waiting { cut: Some(leaf.setting.clone()), queue: queue.setting.clone(), congestion }
}

#[test]
fn every_qdisc_keeps_its_settings_and_is_removed() {
    in_namespace("every_qdisc_keeps_its_settings_and_is_removed", || {
        ip("tuntap add vnet3 mode tap");
        ip("link set vnet3 up");
        let before = observe();
        let fifo = shaping("vnet3", "20mbit", "50mbit");
        for kernel in kernels() {
            // From one to the other, at the same rate and at another, and back; a second plan is empty each time.
            for rate in ["20mbit", "5mbit", "1gbit"] {
                let wanted = with_flows(shaping("vnet3", rate, rate), kernel);
                let network = settle(&[wanted]);
                let limit = limit(rate);
                use tidegate_place_kernel::tc::queueing::Host::{Destination, Source};
                for (device, class, host) in
                    [(owner::IFB, LEAF, Source), ("vnet3", owner::ROOT_CLASS, Destination)]
                {
                    let right = Waiting::new(limit, Some(flows(kernel)), host, 1500);
                    assert_eq!(below(&network, device, class), right, "{kernel:?}, {rate}");
                }
            }
            let network = settle(std::slice::from_ref(&fifo));
            assert_eq!(below(&network, owner::IFB, LEAF), Waiting::fifo(limit("20mbit")));
        }
        assert_eq!(settle(&[]), before);
    });
}

#[test]
fn foreign_changes_of_a_queue_are_repaired() {
    in_namespace("foreign_changes_of_a_queue_are_repaired", || {
        ip("tuntap add vnet3 mode tap");
        for kernel in kernels().into_iter().filter(|kernel| *kernel != Qdiscs::default()) {
            let owned =
                Shaping { owned: Ways::BOTH, ..with_flows(shaping("vnet3", "20mbit", "20mbit"), kernel) };
            let wanted = [owned];
            let right = settle(&wanted);
            let cuts = below(&right, "vnet3", owner::ROOT_CLASS).cut.is_some();
            let damages: &[(&str, bool)] = &[
                ("qdisc del dev vnet3 parent 7464:1", true),
                ("qdisc replace dev vnet3 parent 7464:1 handle 77: pfifo limit 5", true),
                ("qdisc del dev tidegate-tx parent 7464:1", true),
                ("qdisc replace dev vnet3 parent 3001:1 pfifo limit 5", cuts),
                ("qdisc del dev vnet3 parent 3001:1", cuts),
                (
                    "qdisc change dev vnet3 parent 7464:1 handle 3001: tbf rate 1mbit burst 2kb limit 2kb",
                    cuts,
                ),
                // Of another kind, by the name of ours.
                (
                    "qdisc del dev vnet3 parent 7464:1; qdisc add dev vnet3 parent 7464:1 handle 3001: pfifo limit 5",
                    cuts,
                ),
                ("filter del dev vnet3 parent 7464: pref 1", kernel.congestion),
                ("filter del dev vnet3 ingress pref 1", kernel.congestion),
                (
                    "filter add dev vnet3 parent 7464: pref 7 protocol all u32 match u32 0 0 classid :1",
                    kernel.congestion,
                ),
                ("qdisc change dev vnet3 parent 3001:1 fq_codel target 50ms", cuts && kernel.fq_codel),
                ("qdisc change dev vnet3 parent 3001:1 fq_codel noecn", cuts && kernel.fq_codel),
                ("qdisc change dev vnet3 parent 7464:1 cake bandwidth 1mbit", kernel.cake),
            ];
            for (damage, _) in damages.iter().filter(|(_, fits)| *fits) {
                damage.split("; ").for_each(tc);
                let mut kernel = Kernel::open().unwrap();
                assert_ne!(kernel.settle(&wanted).unwrap().steps, [], "{damage}");
                assert_eq!(kernel.settle(&wanted).unwrap().steps, [], "{damage}");
                let now = kernel.observe().unwrap();
                for (device, class) in [("vnet3", owner::ROOT_CLASS), (owner::IFB, LEAF)] {
                    assert_eq!(below(&now, device, class), below(&right, device, class), "{damage}");
                }
            }
            settle(&[]);
        }
    });
}

/// Round trips of a ping from the guest beside traffic, ms, in order; how many were lost.
fn pings(guest: &Guest, traffic: Traffic) -> (Vec<f64>, usize) {
    const PINGS: usize = 60;
    let host = guest.address(1);
    let said = under(traffic, guest, || {
        std::thread::sleep(Duration::from_millis(1000));
        guest.within(|_| run("ping", &format!("-i 0.01 -c {PINGS} -W 5 {host}")))
    });
    let times = said.lines().filter_map(|line| line.split_once("time=")?.1.split_once(' ')?.0.parse().ok());
    let mut times: Vec<f64> = times.collect();
    times.sort_by(f64::total_cmp);
    let lost = PINGS - times.len();
    (times, lost)
}

/// Half of the pings beside a TCP connection that sends as fast as it may wait less than half as long as in one queue for all
/// which takes super-frames whole, both ways.
#[test]
fn a_ping_beside_a_bulk_transfer_returns_soon() {
    in_namespace("a_ping_beside_a_bulk_transfer_returns_soon", || {
        let guest = Guest::new("vnet3", 1);
        for traffic in [Traffic::TcpOut, Traffic::TcpIn] {
            let mut in_one_queue = None;
            for kernel in kernels().into_iter().filter(|k| k.tbf || *k == Qdiscs::default()) {
                settle(&[with_flows(shaping("vnet3", "10mbit", "10mbit"), kernel)]);
                let (times, lost) = pings(&guest, traffic);
                let half = times[times.len() / 2];
                println!("{traffic:?}, {kernel:?}: p50 {half} ms, worst {:?}, {lost} lost", times.last());
                match in_one_queue {
                    None => in_one_queue = Some(half),
                    Some(before) => assert!(half < before / 2.0, "{kernel:?}: {half} ms, {before} before"),
                }
                settle(&[]);
            }
        }
    });
}
