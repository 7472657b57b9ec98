use super::*;
use tidegate_contract::{Envelope, Nanos, Tx};
use tidegate_evidence::WorkerStats;
use tidegate_testkit::contract::{tap, vnic};

fn scene<'a>(ports: &'a [(Vnic, usize)], bound: &[Option<usize>]) -> Scene<'a> {
    let port = |(vnic, worker): &'a (Vnic, usize)| Port { vnic, worker: *worker, suspended: false };
    Scene {
        ports: ports.iter().map(port).collect(),
        uplinks: vec![],
        bound: bound.to_vec(),
        workers_pinned: None,
        ports_pinned: None,
        measured: Measured::default(),
    }
}

fn rates(work: u64, frames: u64, bytes: u64) -> Rates {
    Rates { work, sent: Count { frames, bytes }, received: Count { frames, bytes } }
}

fn find<'a>(stages: &'a [Stage], handle: &Handle) -> &'a Stage {
    stages.iter().find(|stage| stage.handle == *handle).unwrap()
}

fn port(name: &str) -> Handle {
    Handle::Port(name.into())
}

fn ports() -> Vec<(Vnic, usize)> {
    let voice =
        Vnic { deadline: Some(Nanos::new(1_000_000)), to: vec!["b".into(), "far".into()], ..vnic("a", 1) };
    let max = Rate::from_bits(10_000_000_000);
    let web = Vnic { attach: tap("tg0"), queues: 2, tx: Tx { max, ..Tx::default() }, ..vnic("c", 3) };
    vec![(voice, 0), (vnic("b", 2), 1), (web, 2)]
}

/// A vNIC of another host that has a deadline towards `to`, if that is any.
fn remote(name: &str, to: &[&str]) -> Remote {
    Remote {
        name: name.into(),
        mac: vnic(name, 9).mac,
        segment: vnic(name, 9).segment,
        peer: "other".into(),
        addresses: vec![],
        tx: Envelope::default(),
        deadline: (!to.is_empty()).then(|| Nanos::new(1_000_000)),
        to: to.iter().map(|name| (*name).into()).collect(),
    }
}

#[test]
fn workers_and_ports_are_stages() {
    let ports = ports();
    let mut scene = scene(&ports, &[Some(3), None, None]);
    let remotes = [remote("far", &[])];
    scene.uplinks = vec![UplinkPort { name: "up", worker: 2, remotes: &remotes }];
    let stages = scene.stages();
    let handles: BTreeSet<_> = stages.iter().map(|stage| stage.handle.clone()).collect();
    assert_eq!((handles.len(), stages.len()), (7, 7), "unique");
    let realtime = |handle: Handle| find(&stages, &handle).realtime;
    assert!(
        [port("a"), port("b"), port("up")].into_iter().all(realtime),
        "sender, receiver, the way to a remote"
    );
    assert!(!realtime(port("c")));
    assert!((0..3).map(Handle::Worker).all(realtime));
    assert_eq!(find(&stages, &Handle::Worker(2)).vnics, ["c", "up"]);
    assert_eq!(find(&stages, &Handle::Worker(0)).present, [3].into());
    assert_eq!(find(&stages, &port("a")).present, [3].into());
    // 10 Gbit/s are 1.25 GB, and 833,333 frames of 256 bytes more, at 2.5 GB a second.
    let web = find(&stages, &port("c"));
    assert_eq!((web.load, web.measured), (585_333, false));
    assert_eq!(find(&stages, &Handle::Worker(2)).load, 585_333);
    assert!(find(&stages, &port("up")).pinned_by.is_some() && web.pinned_by.is_none());
}

#[test]
fn a_suspended_deadline_needs_no_cpu() {
    let ports = ports();
    let mut scene = scene(&ports, &[None; 3]);
    scene.ports[0].suspended = true;
    assert!(scene.stages().iter().all(|stage| !stage.realtime));
}

#[test]
fn deadlines_of_other_hosts_make_receivers_and_their_uplink_real_time() {
    let ports = [(vnic("a", 1), 0), (vnic("b", 2), 1)];
    let mut scene = scene(&ports, &[None; 4]);
    let (far, other) = ([remote("far", &["a"]), remote("else", &[])], [remote("idle", &[])]);
    scene.uplinks = vec![
        UplinkPort { name: "up", worker: 2, remotes: &far },
        UplinkPort { name: "up2", worker: 3, remotes: &other },
    ];
    let stages = scene.stages();
    let realtime = stages.iter().filter(|stage| stage.realtime).map(|stage| stage.handle.clone());
    let expected = [Handle::Worker(0), Handle::Worker(2), port("a"), port("up")];
    assert_eq!(realtime.collect::<BTreeSet<_>>(), expected.into());
}

/// A switch that an intruder took over may name an uplink's NIC as a tap, and any vNIC as a receiver of deadlines.
#[test]
fn ports_of_which_the_switch_alone_tells_are_left_out() {
    let record = BTreeMap::from([("a", vnic("a", 1))]);
    let told = [("forged", 0), ("a", 1), ("a", 2), ("b", 3)];
    let known = on_record(told.into_iter(), |name| record.get(name));
    assert_eq!(known.collect::<Vec<_>>(), [(1, &record["a"])]);
}

#[test]
fn a_workers_time_is_divided_among_its_ports() {
    let all = [(vnic("a", 1), 0), (vnic("b", 2), 0), (Vnic { attach: tap("t"), ..vnic("c", 3) }, 1)];
    let mut scene = scene(&all, &[None; 2]);
    scene.measured = Measured {
        workers: vec![Some(400_000), Some(WHOLE)],
        vnics: [
            ("a", rates(100, 1000, 100_000)),
            ("b", rates(300, 0, 0)),
            ("c", rates(0, 10_000, 1_000_000)),
        ]
        .map(|(name, rates)| (name.into(), rates))
        .into(),
    };
    let stages = scene.stages();
    let load = |handle: &Handle| (find(&stages, handle).load, find(&stages, handle).measured);
    assert_eq!([load(&port("a")), load(&port("b"))], [(100_000, true), (300_000, true)]);
    assert_eq!((load(&port("c")), load(&Handle::Worker(1))), ((0, true), (1_000_000, true)));
    // A frame of `a` costs 356 bytes; `b` sent none, so its frames count as full ones.
    let traffic = [("a", "b", 356_000), ("b", "a", 17_560), ("a", "a", 9), ("a", "gone", 9), ("b", "c", 0)];
    let links = scene.links(&traffic);
    assert_eq!(links, [Link { from: port("a"), to: port("b"), frames: 1010 }]);
}

#[test]
fn workers_that_do_not_exist_have_no_ports() {
    let all = [(vnic("a", 1), 7), (vnic("b", 2), usize::MAX)];
    let stages = scene(&all, &[None]).stages();
    assert_eq!(stages.len(), 1);
    let mut scene = scene(&all, &[None; 8]);
    scene.measured.workers = vec![Some(u64::from(u32::MAX)); 64];
    scene.measured.vnics.insert("a".into(), rates(u64::from(u32::MAX), u64::MAX, u64::MAX));
    assert!(scene.stages().iter().all(|stage| u64::from(stage.load) <= WHOLE));
    assert!(scene.links(&[("a", "b", u64::MAX), ("a", "b", u64::MAX)]).is_empty(), "b has no worker");
}

#[test]
fn a_worker_is_bound_to_a_cpu_that_is_online() {
    let mut evidence = Evidence::empty("a test");
    let worker = |cpu| WorkerStats { cpu, ..WorkerStats::default() };
    evidence.workers = [Some(1), Some(9), Some(u64::MAX), None].map(worker).into();
    assert_eq!(bound(&evidence, 5, &[0, 1].into()), [Some(1), None, None, None, None]);
    assert_eq!(bound(&evidence, 1, &[0, 1].into()), [Some(1)]);
}
