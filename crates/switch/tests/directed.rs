//! Ports move to the workers that the agent directs.

mod harness;

use harness::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tidegate_contract::{Host, Nanos};
use tidegate_cores::directions::Directions;
use tidegate_switch::control::Client;
use tidegate_switch::control::message::NotFollowed;
use tidegate_switch::server::placement::Placer;

#[test]
fn directed_ports_move_under_load_and_every_frame_arrives_in_order() {
    let host = TestSwitch::new(2);
    host.switch.directed.choose_workers();
    let mut client = Client::connect(&host.control()).unwrap();
    let mut a = host.guest_with(&vnic("a", 1, ""), ring(1024));
    let mut b = host.guest_with(&vnic("b", 2, ""), ring(1024));
    a.drain();
    b.drain();
    let mut streams = [Stream::new(&a, &b), Stream::new(&b, &a)];
    let before = ["a", "b"].map(|name| host.stats(name));
    let over = AtomicBool::new(false);
    let directions = |at: &[(&str, usize)]| Directions {
        vnics: at.iter().map(|(name, worker)| ((*name).into(), *worker)).collect(),
        ..Directions::default()
    };
    let mut carried = 0;
    std::thread::scope(|scope| {
        let director = scope.spawn(|| {
            let (mut placer, mut looked, mut rounds) = (Placer::default(), 0, 0);
            for at in [[0, 0], [1, 1], [0, 1], [1, 0], [1, 1], [0, 0]] {
                let wanted = directions(&[("a", at[0]), ("b", at[1]), ("later", 1)]);
                client.direct(&wanted).unwrap();
                let end = Instant::now() + PATIENCE;
                while ["a", "b"].map(|name| host.port(name).worker) != at {
                    assert!(Instant::now() < end, "{:?}", client.work().unwrap());
                    std::thread::sleep(Duration::from_millis(5));
                    host.switch.place(&mut placer, &mut looked);
                }
                let work = client.work().unwrap();
                assert_eq!((work.directions, work.not_followed), (wanted, NotFollowed::default()));
                // Traffic joins them, and they stay where they are directed.
                for _ in 0..20 {
                    std::thread::sleep(Duration::from_millis(5));
                    host.switch.place(&mut placer, &mut looked);
                }
                assert_eq!(["a", "b"].map(|name| host.port(name).worker), at);
                rounds += client.work().unwrap().traffic.len();
            }
            over.store(true, Ordering::Relaxed);
            rounds
        });
        let mut last = Instant::now();
        loop {
            let done = director.is_finished();
            if !done {
                last = Instant::now();
                streams[0].send(&mut a);
                streams[1].send(&mut b);
            }
            b.each(|frame| streams[0].check(frame));
            a.each(|frame| streams[1].check(frame));
            if done && streams.iter().all(Stream::is_complete) {
                break;
            }
            assert!(last.elapsed() < Duration::from_secs(60), "frames did not arrive");
        }
        carried += director.join().unwrap();
    });
    assert!(carried > 0, "traffic between the two is told");
    assert!(streams.iter().all(|stream| stream.received > 100));
    for (name, before) in ["a", "b"].into_iter().zip(before) {
        let now = host.stats(name);
        assert_eq!((now.tx.dropped, now.rx.dropped), (before.tx.dropped, before.rx.dropped), "{name}");
    }
    // A new port begins at its worker.
    drop(host.guest_with(&vnic("later", 3, ""), ring(256)));
    let later = host.port("later").worker;
    client.direct(&directions(&[])).unwrap();
    assert_eq!((later, client.work().unwrap().directions), (1, Directions::default()));
    let error = client.direct(&directions(&[("a", 2)])).unwrap_err().to_string();
    assert!(error.contains("there is no worker 2"), "{error}");
}

#[test]
fn a_direction_that_a_deadline_forbids_is_reported_and_tried_again() {
    let host = TestSwitch::new(2);
    let deadline = "tx = { max = \"100mbit\", burst = \"4kB\" }\ndeadline = \"5ms\"\nto = [\"b\"]";
    let _b = host.guest_with(&vnic("b", 2, ""), ring(256));
    let _a = host.guest_with(&vnic("a", 1, deadline), ring(256));
    let latency = |us: u64| Host { host_latency: Nanos::new(us * 1000), ..Host::default() };
    host.switch.set_host(latency(0)).unwrap();
    let to = 1 - host.port("a").worker;
    let directions = Directions { vnics: [("a".to_owned(), to)].into(), ..Directions::default() };
    host.switch.direct(directions.clone()).unwrap();
    let reasons = || host.switch.work_status().not_followed.vnics;
    assert!(reasons()["a"].contains("--placement fixed"));
    host.switch.directed.choose_workers();
    assert!(reasons().is_empty(), "not tried yet");
    let (mut placer, mut looked) = (Placer::default(), 0);
    host.switch.place(&mut placer, &mut looked);
    assert!(reasons()["a"].contains("host-latency"), "{:?}", reasons());
    host.switch.set_host(latency(1_000_000)).unwrap();
    host.until(|| {
        host.switch.place(&mut placer, &mut looked);
        host.port("a").worker == to
    });
    assert!(reasons().is_empty());
}
