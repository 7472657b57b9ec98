//! A second switch continues with the front ends of one that is killed, or replaced while it runs; they
//! never reconnect.

mod harness;

use harness::dirty::{Log, changed, migrating, snapshot};
use harness::handover::*;
use harness::*;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;
use tidegate_evidence::Connection;
use tidegate_switch::control::Client;
use tidegate_switch::server::ports::Connect;
use tidegate_switch::server::{Switch, replace};
use tidegate_switch::stats::Reader;
use tidegate_switch::vhost_user::listener::Restored;
use tidegate_switch::vhost_user::saved::{Descriptors, SavedConnection};

#[test]
fn the_messages_of_a_front_end_are_sent_to_subscribers() {
    let host = TestSwitch::new(1);
    let early = host.guest(&vnic("a", 1, ""));
    let mut notes = Client::connect(&control(&host)).unwrap().subscribe().unwrap();
    let mut known = Known::default();
    known.wait(&mut notes, |known| known.connections.contains_key("a"));
    let mut late = host.guest(&vnic("b", 2, ""));
    for (name, front) in [("a", &early.front), ("b", &late.front)] {
        let current = |known: &Known| {
            known.connections.get(name).map(|(_, messages)| *messages) == host.stats.messages(name)
        };
        known.wait(&mut notes, current);
        let (saved, messages) = &known.connections[name];
        assert_eq!(saved.features, Some(front.features()));
        assert!(saved.vrings.iter().all(|vring| vring.running && vring.enabled), "{saved:?}");
        assert!(saved.numbers().all(|number| known.descriptors.contains_key(&number)));
        assert_eq!(host.stats.messages(name), Some(*messages));
    }
    // After an answer to the front end, the message count shows that earlier notes are outdated.
    for enabled in [false, true] {
        let before = known.connections["b"].1;
        late.front.enable_queue(1, enabled).unwrap();
        assert!(host.stats.messages("b").unwrap() > before);
        let current = |known: &Known| Some(known.connections["b"].1) == host.stats.messages("b");
        known.wait(&mut notes, current);
        assert_eq!(known.connections["b"].0.vrings[1].enabled, enabled);
    }
    drop(late);
    known.wait(&mut notes, |known| !known.connections.contains_key("b"));
    assert_eq!(known.gone, 1);
}

#[test]
fn a_connection_goes_on_in_another_switch() {
    for replaced in [false, true] {
        let host = TestSwitch::new(1);
        let path = control(&host);
        let (contract_a, contract_b) = (vnic("a", 1, "tx = { max = \"80mbit\" }"), vnic("b", 2, ""));
        let mut a = host.guest_with(&contract_a, ring(256));
        let mut b = host.guest_with(&contract_b, ring(1024));
        let mut stream = Stream::new(&a, &b);
        stream.send(&mut a);
        until(|| host.stats("b").rx.frames > 20);

        let next = Switch::start(1, &[], None).unwrap();
        let stats = Reader::open(next.region.file()).unwrap();
        if replaced {
            upgrade(&next, &path);
        } else {
            restore(&next, &path, &[contract_a.clone(), contract_b.clone()]);
        }
        let state = |name: &str| next.ports().into_iter().find(|port| port.vnic.name == name).unwrap();
        until(|| ["a", "b"].iter().all(|name| state(name).connection == Connection::Up));
        let before = host.stats("b");
        assert!(stats.vnic("b").unwrap().rx.frames >= before.rx.frames, "counters go on");

        for _ in 0..3 {
            stream.send(&mut a);
            let want = stream.received + 100;
            until(|| {
                b.each(|frame| stream.check(frame));
                stream.received >= want
            });
        }
        until(|| {
            b.each(|frame| stream.check(frame));
            stream.is_complete()
        });
        assert_eq!(host.stats("b"), before, "the old one carried something");
        assert_eq!(a.front.in_flight(0), 0);
        let base = a.front.stop_queue(1).unwrap();
        assert_eq!(base, a.front.ring(1).base());
        let base = b.front.stop_queue(0).unwrap();
        assert_eq!(base, b.front.ring(0).base());
        assert_eq!(state("a").queue_pairs, 0);
    }
}

/// The guest may migrate meanwhile.
#[test]
fn writes_of_the_next_switch_are_in_the_dirty_log() {
    for replaced in [false, true] {
        let host = TestSwitch::new(1);
        let path = control(&host);
        let (contract_a, contract_b) = (vnic("a", 1, ""), vnic("b", 2, ""));
        let mut a = host.guest_with(&contract_a, ring(256));
        let mut b = host.guest_with(&contract_b, migrating(ring(256)));
        let log = Log::new(&b.front, 0);
        log.start(&mut b.front).unwrap();
        let next = Switch::start(1, &[], None).unwrap();
        if replaced {
            upgrade(&next, &path);
        } else {
            restore(&next, &path, &[contract_a.clone(), contract_b.clone()]);
        }
        until(|| next.ports().iter().all(|port| port.connection == Connection::Up));
        log.take();
        let before = snapshot(&b.front);
        let stats = Reader::open(next.region.file()).unwrap();
        let seen = stats.vnic("b").unwrap().rx.frames;
        a.send(&udp(b.mac(), a.mac(), &[7; 900]));
        until(|| stats.vnic("b").unwrap().rx.frames > seen);
        b.front.stop_queue(0).unwrap();
        b.front.stop_queue(1).unwrap();
        let (written, marked) = (changed(&before, &b.front), log.take());
        assert!(!written.is_empty() && written.is_subset(&marked), "{written:?}, in the log {marked:?}");
        b.front.start_queue(0).unwrap();
        b.front.enable_queue(0, true).unwrap();
        Log::stop(&mut b.front);
        log.take();
        a.send(&udp(b.mac(), a.mac(), &[7; 900]));
        b.receive();
        assert!(log.take().is_empty());
    }
}

/// The first user of the address keeps it, although the other vNIC sends first in the new process.
#[test]
fn a_link_local_address_stays_with_its_vnic() {
    for replaced in [false, true] {
        let host = TestSwitch::new(1);
        let path = control(&host);
        let prefixes = "allowed = { prefixes = [\"192.0.2.0/24\"] }";
        let (contract_a, contract_b) = (vnic("a", 1, prefixes), vnic("b", 2, prefixes));
        let mut a = host.guest_with(&contract_a, ring(256));
        let mut b = host.guest_with(&contract_b, ring(256));
        a.send(&from_link_local(b.mac(), a.mac()));
        b.receive();
        let address: std::net::Ipv6Addr = "fe80::1".parse().unwrap();
        assert_eq!(host.stats("a").link_local, [address]);

        let next = Switch::start(1, &[], None).unwrap();
        let stats = Reader::open(next.region.file()).unwrap();
        if replaced {
            upgrade(&next, &path);
        } else {
            restore(&next, &path, &[contract_a.clone(), contract_b.clone()]);
        }
        until(|| next.ports().iter().all(|port| port.connection == Connection::Up));
        b.send(&from_link_local(a.mac(), b.mac()));
        until(|| stats.vnic("b").unwrap().tx.dropped.get("link_local") == Some(&1));
        a.send(&from_link_local(b.mac(), a.mac()));
        b.receive();
        assert_eq!(stats.vnic("a").unwrap().link_local, [address]);
        assert!(stats.vnic("b").unwrap().link_local.is_empty());
        // A change of the contract ends the claim.
        let unrestricted = vnic("a", 1, "");
        next.set_port(contract(&unrestricted), Connect::Unchanged).unwrap();
        b.send(&from_link_local(a.mac(), b.mac()));
        until(|| stats.vnic("b").unwrap().link_local == [address]);
    }
}

fn from_link_local(dst: [u8; 6], src: [u8; 6]) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0, 0, 0, 59, 64, 0xfe, 0x80];
    packet.extend([0; 13]);
    packet.push(1);
    packet.extend([0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]);
    [&dst[..], &src, &[0x86, 0xdd], &packet].concat()
}

#[test]
fn nothing_is_lost_for_a_port_that_starts_later() {
    let host = TestSwitch::new(1);
    let path = control(&host);
    // This port has a front end and no driver.
    let idle = contract(&vnic("idle", 9, ""));
    let (front, back) = std::os::unix::net::UnixStream::pair().unwrap();
    host.switch.set_port(idle, Connect::Stream(back.into())).unwrap();
    let mut guests: Vec<Guest> =
        (1..=6).map(|n| host.guest_with(&vnic(&format!("g{n}"), n, ""), ring(256))).collect();
    let count = guests.len();
    // The first guest that starts sends to the last, and the other way round.
    let mut streams: Vec<Stream> =
        (0..count).map(|n| Stream::new(&guests[n], &guests[count - 1 - n])).collect();
    for guest in &mut guests {
        guest.each(|_| ());
    }
    let next = Switch::start(1, &[], None).unwrap();
    let stats = Reader::open(next.region.file()).unwrap();
    let taken = replace::prepare(&next, Client::connect(&path).unwrap(), None).unwrap();
    for (stream, guest) in streams.iter_mut().zip(&mut guests) {
        stream.send(guest);
    }
    std::mem::forget(taken.start_traffic().unwrap());
    until(|| {
        for (stream, guest) in streams.iter_mut().zip(guests.iter_mut().rev()) {
            guest.each(|frame| stream.check(frame));
        }
        streams.iter().all(Stream::is_complete)
    });
    for n in 1..=count {
        let dropped = stats.vnic(&format!("g{n}")).unwrap().tx.dropped;
        assert!(dropped.is_empty(), "g{n}: {dropped:?}");
    }
    drop(front);
}

#[test]
fn a_switch_that_is_not_released_goes_on() {
    let host = TestSwitch::new(1);
    let path = control(&host);
    let mut a = host.guest_with(&vnic("a", 1, ""), ring(256));
    let mut b = host.guest_with(&vnic("b", 2, ""), ring(1024));
    let mut stream = Stream::new(&a, &b);
    for round in 1..=3 {
        let next = Switch::start(1, &[], None).unwrap();
        let prepared = replace::prepare(&next, Client::connect(&path).unwrap(), None).unwrap();
        stream.send(&mut a);
        std::thread::sleep(Duration::from_millis(5));
        b.each(|frame| stream.check(frame));
        assert!(!stream.is_complete(), "round {round}: it is not quiet");
        drop(prepared);
        until(|| {
            b.each(|frame| stream.check(frame));
            stream.is_complete()
        });
        until(|| next.ports().iter().all(|port| port.connection == Connection::Waiting));
    }
    assert_eq!(host.port("a").connection, Connection::Up);
    a.front.stop_queue(1).unwrap();
}

#[test]
fn saved_state_is_checked_like_messages() {
    let host = TestSwitch::new(1);
    let path = control(&host);
    let toml = vnic("a", 1, "");
    let guest = host.guest(&toml);
    let mut notes = Client::connect(&path).unwrap().subscribe().unwrap();
    let mut known = Known::default();
    known.wait(&mut notes, |known| known.connections.contains_key("a"));
    let (good, _) = known.connections.remove("a").unwrap();
    type Change = fn(&mut SavedConnection);
    let wrong: [(Change, &str); 6] = [
        (|saved| saved.features = Some(1 << 60), "not offered"),
        (|saved| saved.regions[0].size <<= 8, "ends at byte"),
        (|saved| saved.vrings[0].size = Some(3), "power of two"),
        (|saved| saved.vrings.truncate(1), "the port has 2 queues now, and had 1"),
        (|saved| saved.vrings[1].addresses = Some((16, 16, 16)), "cannot start"),
        (|saved| saved.vrings[1].kick = Some(saved.regions[0].file + 1_000_000), "is missing"),
    ];
    for (change, part) in wrong {
        let mut saved = good.clone();
        change(&mut saved);
        let next = Switch::start(1, &[], None).unwrap();
        let (_front, back) = std::os::unix::net::UnixStream::pair().unwrap();
        let copy = |n: u64| Some((n, known.descriptors.get(&n)?.as_fd().try_clone_to_owned().unwrap()));
        let mut descriptors: Descriptors = good.numbers().filter_map(copy).collect();
        descriptors.insert(saved.stream, back.into());
        let restored = Restored { listener: None, saved, descriptors, gate: None };
        next.set_port(contract(&toml), Connect::Restored(Box::new(restored))).unwrap();
        let mut why = None;
        host.until(|| {
            why = next.ports()[0].last_error.clone();
            why.is_some()
        });
        let why = why.unwrap();
        assert!(why.contains(part), "{why}, expected {part}");
    }
    assert_eq!(host.port("a").connection, Connection::Up);
    drop(guest);
}

/// In the new process no front end has connected to the port, and none has left it.
#[test]
fn a_port_whose_front_end_is_gone_waits_for_the_next_after_an_upgrade() {
    let host = TestSwitch::new(1);
    let path = control(&host);
    let idle = contract(&vnic("idle", 9, ""));
    let connect = |switch: &Arc<Switch>| {
        let (front, back) = std::os::unix::net::UnixStream::pair().unwrap();
        switch.set_port(idle.clone(), Connect::Stream(back.into())).map(|()| front)
    };
    let connection = |switch: &Arc<Switch>| switch.ports()[0].connection;
    let front = connect(&host.switch).unwrap();
    until(|| connection(&host.switch) == Connection::Connected);
    drop(front);
    until(|| connection(&host.switch) == Connection::Disconnected);
    let next = Switch::start(1, &[], None).unwrap();
    upgrade(&next, &path);
    let front = connect(&next).unwrap();
    until(|| connection(&next) == Connection::Connected);
    assert_eq!(next.ports()[0].last_error, None);
    drop(front);
}
