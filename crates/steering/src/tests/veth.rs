//! A table at a veth between two network namespaces, with the kernel's own tunnels.

use super::host::{Far, NETWORK, Near, ip, pinned};
use crate::device::{Found, found, index};
use crate::key::Pattern;
use crate::probe::Probe;
use crate::steering::{AttachError, Options, Steering, detach_left};
use crate::table::{Entry, Table, VXLAN_PORT};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tidegate_contract::cores::{Flow, Tunnel};
use tidegate_cores::cpus::Cpus;
use tidegate_testkit::{in_namespace, need};

/// Frames for a port within the tunnel.
pub fn to_port(name: &str, port: u16, cpu: usize) -> Entry {
    let flow = Flow {
        id: Some(42),
        to: Some([10, 0, 0, 1].into()),
        protocol: Some(17),
        to_port: Some(port),
        cpu: Some(cpu),
        ..Flow::new("near", Tunnel::Vxlan)
    };
    Entry { name: name.into(), pattern: Pattern::from(&flow), cpu }
}

/// Returns a table for tests, which is possible.
pub fn table(entries: Vec<Entry>, spread: impl IntoIterator<Item = usize>) -> Table {
    Table::new(entries, spread.into_iter().collect(), VXLAN_PORT).unwrap()
}

/// Returns two CPUs, or `None` and a note.
fn two_cpus() -> Option<[usize; 2]> {
    let online: Vec<usize> = crate::cpus::online("/".as_ref()).unwrap().into_iter().collect();
    need("two CPUs", online.len() > 1).then(|| [online[0], online[1]])
}

#[test]
fn a_flow_runs_on_its_cpu_and_others_are_spread() {
    in_namespace("tests::veth::a_flow_runs_on_its_cpu_and_others_are_spread", NETWORK, || {
        let Some([first, second]) = two_cpus() else { return };
        let near = Near::new();
        let far = Far::new(&near);
        // The sender runs the device's softirq on its own CPU.
        far.run(move || pinned(first));
        let mut steering =
            Steering::attach("near", &Options::default(), &table(vec![to_port("voice", 5001, second)], []))
                .unwrap();
        let received = near.receive(5001, &far, 300);
        assert_eq!(received.lost, 0);
        assert!(received.cpus.iter().all(|cpu| *cpu == second as u32), "{:?}", received.cpus);
        let counters = steering.counters().unwrap();
        assert_eq!(counters.entries["voice"].total().frames, 300, "{counters:?}");
        assert_eq!(counters.sent[&second].frames, 300, "{counters:?}");

        steering.update(&table(vec![to_port("voice", 5001, first)], [first, second])).unwrap();
        let received = near.receive(5001, &far, 300);
        assert_eq!(received.lost, 0);
        assert!(received.cpus.iter().all(|cpu| *cpu == first as u32), "{:?}", received.cpus);

        let before = steering.counters().unwrap().sent;
        for port in 6000..6032 {
            assert_eq!(near.receive(port, &far, 5).lost, 0);
        }
        let counters = steering.counters().unwrap();
        let spread: u64 = counters.outcomes.spread.values().map(|count| count.frames).sum();
        assert!(spread >= 160, "{counters:?}");
        // Frames of the entry went to both CPUs meanwhile.
        assert_eq!(
            counters.spread_to.values().map(|count| count.frames).sum::<u64>(),
            spread,
            "{counters:?}"
        );
        for cpu in [first, second] {
            let frames = counters.sent[&cpu].frames - before.get(&cpu).map_or(0, |count| count.frames);
            assert!(frames >= 20, "CPU {cpu}: {frames}, {counters:?}");
        }
        assert_eq!(counters.dropped.map(|dropped| dropped.values().sum::<u64>()).unwrap_or_default(), 0);
        steering.detach().unwrap();
        assert_eq!(found(index("near").unwrap()).unwrap(), ("near".into(), Found::Nothing));
        assert_eq!(near.receive(5001, &far, 50).lost, 0);
    });
}

#[test]
fn an_entry_of_peers_is_for_no_other_sender() {
    in_namespace("tests::veth::an_entry_of_peers_is_for_no_other_sender", NETWORK, || {
        let Some([_, second]) = two_cpus() else { return };
        let near = Near::new();
        let far = Far::new(&near);
        let voice = |from: u8| {
            let Entry { name, pattern, cpu } = to_port("voice", 5001, second);
            let of_peers = table(vec![Entry { name, pattern: pattern.of_peers(), cpu }], []);
            of_peers.with_peers(&[([192, 0, 2, from].into(), [192, 0, 2, 1].into())].into())
        };
        let mut steering = Steering::attach("near", &Options::default(), &voice(3)).unwrap();
        let mut matched = |from: u8| {
            steering.update(&voice(from)).unwrap();
            assert_eq!(near.receive(5001, &far, 20).lost, 0);
            steering.counters().unwrap().entries["voice"].total().frames
        };
        assert_eq!([matched(3), matched(2), matched(3)], [0, 20, 20]);
        // As the next process does.
        drop(steering);
        let steering = Steering::attach("near", &Options::default(), &voice(2)).unwrap();
        assert_eq!(near.receive(5001, &far, 20).lost, 0);
        assert_eq!(steering.counters().unwrap().entries["voice"].total().frames, 40);
        steering.detach().unwrap();
    });
}

#[test]
fn no_frame_is_lost_while_the_table_changes() {
    in_namespace("tests::veth::no_frame_is_lost_while_the_table_changes", NETWORK, || {
        let Some([first, second]) = two_cpus() else { return };
        let near = Near::new();
        let far = Far::new(&near);
        let tables = [
            table(vec![to_port("a", 5001, second)], [first]),
            table(vec![], [first, second]),
            table(vec![to_port("a", 5001, first), to_port("b", 5002, second)], []),
            table((0..50).map(|n| to_port(&format!("n{n}"), 5001 + n, second)).collect(), [second]),
            table(vec![], []),
        ];
        let mut steering = Steering::attach("near", &Options::default(), &tables[0]).unwrap();
        let (done, begin) = (AtomicBool::new(false), std::time::Instant::now());
        let (updates, received) = std::thread::scope(|scope| {
            let churn = scope.spawn(|| {
                let mut updates = 0;
                while !done.load(Ordering::Relaxed) {
                    steering.update(&tables[updates % tables.len()]).unwrap();
                    updates += 1;
                }
                updates
            });
            let mut received = 0;
            while begin.elapsed() < Duration::from_secs(3) || received < 2000 {
                let result = near.receive(5001, &far, 500);
                assert_eq!(result.lost, 0, "after {received}");
                received += 500;
            }
            done.store(true, Ordering::Relaxed);
            (churn.join().unwrap(), received)
        });
        assert!(updates > 10, "{updates} updates, {received} frames");
        eprintln!("{updates} updates, {received} frames, none lost");
        steering.detach().unwrap();
    });
}

#[test]
fn the_next_process_takes_over_and_a_foreign_program_stays() {
    in_namespace("tests::veth::the_next_process_takes_over_and_a_foreign_program_stays", NETWORK, || {
        let Some([_, second]) = two_cpus() else { return };
        let near = Near::new();
        let far = Far::new(&near);
        let device = index("near").unwrap();
        let (voice, options) = (|| table(vec![to_port("voice", 5001, second)], []), Options::default());
        let steering = Steering::attach("near", &options, &voice()).unwrap();
        let there = found(device).unwrap();
        let thread = steering.thread_name(second);
        let mut names = std::fs::read_dir("/proc")
            .unwrap()
            .flatten()
            .filter_map(|process| std::fs::read_to_string(process.path().join("comm")).ok());
        assert!(names.any(|name| name.trim_end() == thread), "{thread}");
        drop(steering);
        assert_eq!(near.receive(5001, &far, 20).lost, 0);
        let steering = Steering::attach("near", &options, &voice()).unwrap();
        assert_eq!(found(device).unwrap(), there, "the same program");
        assert_eq!(steering.counters().unwrap().entries["voice"].total().frames, 20);
        // More room: another program takes its place.
        let larger = Options { entries: 2 * options.entries, ..options.clone() };
        let other = Steering::attach("near", &larger, &voice()).unwrap();
        assert_ne!(found(device).unwrap(), there);
        assert!(!steering.is_there().unwrap() && other.is_there().unwrap());
        // The one that was replaced is not there to be removed.
        steering.detach().unwrap();
        assert!(other.is_there().unwrap());
        drop(other);
        assert!(detach_left("near").unwrap());
        assert!(!detach_left("near").unwrap() && !detach_left("none").unwrap());

        let foreign = Probe::load(16, 1).unwrap();
        let program = foreign.object.progs().find(|program| program.name() == "only_parse").unwrap();
        crate::device::attach(device, program.as_fd(), None).unwrap();
        let error = Steering::attach("near", &options, &voice()).unwrap_err();
        assert!(matches!(&error, AttachError::Foreign { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("only_parse (number ") && text.contains("bpftool prog show id "), "{text}");
        let Found::Foreign(program) = found(device).unwrap().1 else { panic!("it stays") };
        assert_eq!(program.name.as_deref(), Some("only_parse"));
        assert!(!detach_left("near").unwrap());
    });
}

#[test]
fn a_dispatcher_that_libxdp_did_not_load_stays() {
    // Of the package libxdp1, which DPDK needs.
    let object = format!("/usr/lib/{}-linux-gnu/bpf/xdp-dispatcher.o", std::env::consts::ARCH);
    if !need("libxdp's dispatcher: install libxdp1", std::path::Path::new(&object).exists()) {
        return;
    }
    in_namespace("tests::veth::a_dispatcher_that_libxdp_did_not_load_stays", NETWORK, || {
        let _near = Near::new();
        ip(&format!("link set dev near xdpdrv obj {object} sec xdp"));
        let error =
            Steering::attach("near", &Options::default(), &table(vec![], [])).unwrap_err().to_string();
        assert!(error.contains("near has the XDP program xdp_dispatcher (number "), "{error}");
        assert!(error.contains("cannot join it: the kernel tells of no program in it"), "{error}");
        assert!(matches!(found(index("near").unwrap()).unwrap().1, Found::Dispatcher(_)));
    });
}

#[test]
fn devices_that_cannot_are_refused_with_the_reason() {
    in_namespace("tests::veth::devices_that_cannot_are_refused_with_the_reason", NETWORK, || {
        let _near = Near::new();
        let refused = |device: &str| {
            Steering::attach(device, &Options::default(), &table(vec![], [])).expect_err(device).to_string()
        };
        assert!(refused("none").contains("there is no network device none"));
        let text = refused("tunnel");
        assert!(
            text.contains("tunnel: the driver cannot run an XDP program: the kernel refused: "),
            "{text}"
        );
        ip("link add tagged type veth peer name other");
        assert!(refused("tagged").contains("ethtool -K tagged rxvlan off"));
    });
}

#[test]
fn frames_for_a_cpu_that_is_off_stay_until_it_is_back() {
    in_namespace("tests::veth::frames_for_a_cpu_that_is_off_stay_until_it_is_back", NETWORK, || {
        let Some([first, second]) = two_cpus() else { return };
        let near = Near::new();
        let far = Far::new(&near);
        far.run(move || pinned(first));
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("sys/devices/system/cpu");
        std::fs::create_dir_all(&folder).unwrap();
        let online = |cpus: &Cpus| {
            let list = cpus.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
            std::fs::write(folder.join("online"), list).unwrap();
        };
        let voice = table(vec![to_port("voice", 5001, second)], [second]);
        let options = Options { root: root.path().into(), ..Options::default() };
        online(&Cpus::from([first]));
        let mut steering = Steering::attach("near", &options, &voice).unwrap();
        let stayed = near.receive(5001, &far, 50);
        assert_eq!(stayed.lost, 0);
        let counters = steering.counters().unwrap();
        assert_eq!(
            counters.outcomes.no_target.values().map(|count| count.frames).sum::<u64>(),
            50,
            "{counters:?}"
        );
        online(&Cpus::from([first, second]));
        steering.update(&voice).unwrap();
        let received = near.receive(5001, &far, 50);
        assert!(
            received.lost == 0 && received.cpus.iter().all(|cpu| *cpu == second as u32),
            "{:?}",
            received.cpus
        );
        steering.detach().unwrap();
    });
}
