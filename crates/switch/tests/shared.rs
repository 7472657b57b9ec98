//! Addresses that vNICs share and announcements move; and vNICs that try to steal them.
//!
//! ```text
//!  fw1 ─┐ virtual MAC, 192.0.2.10
//!  fw2 ─┤                          ─▶ switch ◀─ client: which of both does a frame to the virtual MAC reach?
//!  thief┘
//! ```

mod harness;

use harness::*;
use std::time::{Duration, Instant};
use tidegate_evidence::SharedStatus;
use tidegate_switch::server::ports::Connect;

const VIRTUAL: [u8; 6] = [0, 0, 0x5e, 0, 1, 0x33];
const VIP: [u8; 4] = [192, 0, 2, 10];
const SHARES: &str = "shared = [\"00:00:5e:00:01:33\", \"192.0.2.10\"]";

fn ethernet(from: [u8; 6], to: [u8; 6], ethertype: u16, packet: &[u8]) -> Vec<u8> {
    let mut frame = [&to[..], &from, &ethertype.to_be_bytes(), packet].concat();
    frame.resize(frame.len().max(60), 0);
    frame
}

fn arp(from: [u8; 6], to: [u8; 6], sender: [u8; 6], address: [u8; 4], asked: [u8; 4]) -> Vec<u8> {
    let packet = [&[0, 1, 8, 0, 6, 4, 0, 2][..], &sender, &address, &[0; 6], &asked].concat();
    ethernet(from, to, 0x0806, &packet)
}

fn gratuitous(from: [u8; 6], address: [u8; 4]) -> Vec<u8> {
    arp(from, BROADCAST, from, address, address)
}

fn v4(from: [u8; 6], to: [u8; 6], source: [u8; 4], target: [u8; 4], protocol: u8) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 36, 0, 1, 0, 0, 64, protocol, 0, 0];
    packet.extend(source);
    packet.extend(target);
    let sum = checksum(&packet);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.extend([0, 9, 0, 9, 0, 16, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
    ethernet(from, to, 0x0800, &packet)
}

fn vrrp(source: [u8; 4]) -> Vec<u8> {
    v4(VIRTUAL, [1, 0, 0x5e, 0, 0, 0x12], source, [224, 0, 0, 18], 112)
}

fn data(from: [u8; 6], to: [u8; 6], source: [u8; 4]) -> Vec<u8> {
    v4(from, to, source, [192, 0, 2, 77], 17)
}

fn allowed(prefixes: &str, more: &str) -> String {
    format!("allowed = {{ prefixes = [{prefixes}], {more} }}")
}

fn router(name: &str, n: u8) -> String {
    vnic(name, n, &allowed(&format!("\"192.0.2.{n}/32\""), SHARES))
}

struct Scene {
    host: TestSwitch,
    client: Guest,
    routers: [Guest; 2],
}

impl Scene {
    fn new(workers: usize) -> Self {
        let host = TestSwitch::new(workers);
        let client = host.guest(&vnic("client", 9, ""));
        let routers = [host.guest(&router("fw1", 1)), host.guest(&router("fw2", 2))];
        Self { host, client, routers }
    }

    /// Returns "passes", or the reason of the drop.
    fn sends(&mut self, router: usize, frame: &[u8]) -> String {
        sends(&self.host, &mut self.routers[router], frame)
    }

    fn shared(&self, number: usize) -> SharedStatus {
        self.host.port("fw1").shared[number].clone()
    }

    /// Holders of the MAC and of the IP address.
    fn holders(&self) -> [Option<String>; 2] {
        [0, 1].map(|number| self.shared(number).holder)
    }

    fn reached(&mut self) -> usize {
        let frame = data(self.client.mac(), VIRTUAL, [192, 0, 2, 9]);
        self.client.send(&frame);
        let (mut reached, mut copies) = (None, 0);
        let mut look = |routers: &mut [Guest; 2]| {
            for (number, router) in routers.iter_mut().enumerate() {
                router.each(|got| {
                    if got == frame {
                        (reached, copies) = (Some(number), copies + 1);
                    }
                });
            }
            copies
        };
        self.host.until(|| look(&mut self.routers) > 0);
        std::thread::sleep(Duration::from_millis(5));
        assert_eq!(look(&mut self.routers), 1, "one router alone");
        reached.unwrap()
    }
}

fn sends(host: &TestSwitch, guest: &mut Guest, frame: &[u8]) -> String {
    let name = guest.vnic.name.clone();
    let stats = || host.stats(&name).tx;
    let before = stats();
    guest.send(frame);
    host.until(|| stats().frames > before.frames || stats().dropped != before.dropped);
    let after = stats();
    let reason = after.dropped.iter().find(|(reason, count)| before.dropped.get(*reason) != Some(count));
    reason.map_or("passes".into(), |(reason, _)| reason.clone())
}

fn has(mac: &str, ip: &str) -> [Option<String>; 2] {
    [mac, ip].map(|name| Some(name.to_owned()).filter(|name| !name.is_empty()))
}

#[test]
fn an_announcement_moves_an_address_and_data_does_not() {
    // With one worker many frames take the direct way, with two none does.
    for workers in [1, 2] {
        moves_by_announcements(Scene::new(workers));
    }
}

fn moves_by_announcements(mut it: Scene) {
    assert_eq!(it.holders(), has("", ""));
    // The first user holds an address, so a router continues after a restart of the switch.
    assert_eq!(it.sends(0, &data(VIRTUAL, it.client.mac(), [192, 0, 2, 1])), "passes");
    assert_eq!(it.sends(0, &data(VIRTUAL, it.client.mac(), VIP)), "passes");
    assert_eq!((it.holders(), it.reached()), (has("fw1", "fw1"), 0));

    // No other frame of the second router moves an address.
    let [client, fw2] = [it.client.mac(), it.routers[1].mac()];
    for frame in [
        data(VIRTUAL, client, [192, 0, 2, 2]),
        data(fw2, client, VIP),
        arp(fw2, client, VIRTUAL, [192, 0, 2, 2], [192, 0, 2, 9]),
        arp(fw2, client, fw2, VIP, [192, 0, 2, 9]),
        arp(fw2, BROADCAST, fw2, VIP, [192, 0, 2, 9]),
        // To one neighbour only: the others do not hear it.
        arp(fw2, client, fw2, VIP, VIP),
        v4(VIRTUAL, client, [192, 0, 2, 2], [224, 0, 0, 18], 112),
    ] {
        assert_eq!(it.sends(1, &frame), "shared", "{frame:02x?}");
    }
    assert_eq!((it.holders(), it.reached()), (has("fw1", "fw1"), 0));
    assert_eq!(it.sends(1, &data(fw2, client, [192, 0, 2, 2])), "passes");

    // In VRRP the advertisement moves the MAC, and the gratuitous ARP the IP address.
    assert_eq!(it.sends(1, &vrrp([192, 0, 2, 2])), "passes");
    assert_eq!((it.holders(), it.reached()), (has("fw2", "fw1"), 1));
    assert_eq!(it.sends(1, &vrrp(VIP)), "shared", "an advertisement says nothing of its IP source");
    assert_eq!(it.sends(1, &gratuitous(VIRTUAL, VIP)), "passes");
    assert_eq!(it.holders(), has("fw2", "fw2"));
    for frame in [data(VIRTUAL, client, VIP), arp(VIRTUAL, client, VIRTUAL, VIP, [192, 0, 2, 9])] {
        assert_eq!(it.sends(1, &frame), "passes");
        assert_eq!(it.sends(0, &frame), "shared");
    }
    // One packet moves both addresses back.
    assert_eq!(it.sends(0, &gratuitous(VIRTUAL, VIP)), "passes");
    assert_eq!((it.holders(), it.reached()), (has("fw1", "fw1"), 0));
    assert_eq!((it.shared(0).moves, it.shared(1).moves, it.shared(0).refused), (2, 2, 0));
}

#[test]
fn a_vnic_without_the_address_in_its_contract_takes_nothing() {
    let mut it = Scene::new(2);
    assert_eq!(it.sends(0, &gratuitous(VIRTUAL, VIP)), "passes");
    let subnet = "\"192.0.2.0/24\"";
    let thieves = [
        (vnic("t1", 21, &allowed(subnet, "")), "source_mac", "source_prefix"),
        (vnic("t2", 22, &allowed(subnet, "macs = \"any\"")), "source_mac", "source_prefix"),
        (vnic("t3", 23, &allowed(subnet, "shared = [\"192.0.2.11\"]")), "source_mac", "source_prefix"),
        // Without prefixes any IP address may be used, but no other vNIC's MAC.
        (vnic("t4", 24, "allowed = { macs = \"any\" }"), "source_mac", "passes"),
    ];
    for (contract, by_mac, by_ip) in thieves {
        let mut thief = it.host.guest(&contract);
        let own = thief.mac();
        for frame in [vrrp([192, 0, 2, 3]), data(VIRTUAL, it.client.mac(), [192, 0, 2, 3])] {
            assert_eq!(sends(&it.host, &mut thief, &frame), by_mac, "{contract}");
        }
        for frame in [gratuitous(own, VIP), data(own, it.client.mac(), VIP)] {
            assert_eq!(sends(&it.host, &mut thief, &frame), by_ip, "{contract}");
        }
        assert_eq!((it.holders(), it.reached()), (has("fw1", "fw1"), 0), "{contract}");
        let name = thief.vnic.name.clone();
        drop(thief);
        it.host.switch.remove_port(&name).unwrap();
    }
    // Another segment has its own addresses.
    let elsewhere = vnic("t5", 25, &allowed(subnet, "")).replace("segment = 7", "segment = 8");
    let mut elsewhere = it.host.guest(&elsewhere);
    let own = elsewhere.mac();
    assert_eq!(
        sends(&it.host, &mut elsewhere, &gratuitous(own, VIP)),
        "no_receiver",
        "it may, and is alone there"
    );
}

#[test]
fn a_storm_of_announcements_moves_an_address_seldom() {
    let mut it = Scene::new(2);
    let frame = gratuitous(VIRTUAL, VIP);
    let (start, mut rounds) = (Instant::now(), 0u64);
    while start.elapsed() < Duration::from_millis(1500) {
        it.routers.iter_mut().for_each(|router| router.send_or_drop(&frame));
        it.routers.iter_mut().for_each(|router| _ = router.drain());
        it.client.drain();
        rounds += 1;
    }
    it.host.until(|| it.routers.iter_mut().all(|router| router.front.in_flight(0) == 0));
    let most = 8 + start.elapsed().as_secs() + 1;
    // An announcement on both workers at once may move the MAC and find the IP address already moved.
    for (shared, least) in [(it.shared(0), 8), (it.shared(1), 2)] {
        assert!((least..=most).contains(&shared.moves), "{shared:?} in {:?}", start.elapsed());
    }
    let mac = it.shared(0);
    assert!(mac.refused > mac.moves && rounds > 100, "{mac:?} of {rounds}");
    // The holder keeps the address until the pause after its move is over.
    let at = it.reached();
    assert_eq!(it.holders()[0], Some(["fw1", "fw2"][at].to_owned()));
    it.host.until(|| {
        std::thread::sleep(Duration::from_millis(100));
        sends(&it.host, &mut it.routers[1 - at], &frame) == "passes"
    });
    assert_eq!(it.reached(), 1 - at);
}

#[test]
fn a_vnic_that_goes_or_loses_the_address_has_it_no_more() {
    let mut it = Scene::new(2);
    assert_eq!(it.sends(1, &gratuitous(VIRTUAL, VIP)), "passes");
    assert_eq!(it.holders(), has("fw2", "fw2"));
    it.host.change(&vnic("fw2", 2, &allowed("\"192.0.2.0/24\"", "")));
    assert_eq!(it.holders(), has("", ""));
    assert_eq!(it.sends(1, &gratuitous(VIRTUAL, VIP)), "source_mac");
    let fw2 = it.routers[1].mac();
    assert_eq!(it.sends(1, &gratuitous(fw2, VIP)), "source_prefix");
    assert_eq!(it.sends(0, &data(VIRTUAL, it.client.mac(), VIP)), "passes");
    assert_eq!(it.reached(), 0);
    it.host.change(&router("fw2", 2));
    assert_eq!(it.sends(1, &gratuitous(VIRTUAL, VIP)), "passes");
    it.host.switch.remove_port("fw2").unwrap();
    assert_eq!(it.holders(), has("", ""));
    assert_eq!(it.sends(0, &vrrp([192, 0, 2, 1])), "passes");
    assert_eq!(it.holders(), has("fw1", ""));
    it.host.change(&router("fw1", 1).replace("segment = 7", "segment = 8"));
    assert_eq!(it.holders(), has("", ""));
    // When no contract names the addresses, any vNIC may use them.
    it.host.change(&vnic("fw1", 1, "allowed = { macs = \"any\" }"));
    assert_eq!(it.sends(0, &data(VIRTUAL, it.client.mac(), VIP)), "passes");
    let mut own = it.host.guest(&vnic("own", 7, "").replace("52:54:00:00:00:07", "00:00:5e:00:01:33"));
    assert_eq!(sends(&it.host, &mut own, &data(VIRTUAL, it.client.mac(), VIP)), "passes");
}

#[test]
fn an_own_mac_is_not_shared() {
    let it = Scene::new(2);
    let refused = |toml: &str| {
        let vnic = contract(toml);
        let listener = it.host.listener(&vnic.name);
        it.host.switch.set_port(vnic, Connect::Listener(listener)).unwrap_err()
    };
    let own = refused(&vnic("own", 7, "").replace("52:54:00:00:00:07", "00:00:5e:00:01:33"));
    assert!(own.starts_with("MAC 00:00:5e:00:01:33 is shared by fw1 in segment 7"), "{own}");
    let shares = refused(&vnic("third", 7, "allowed = { shared = [\"52:54:00:00:00:01\"] }"));
    assert!(shares.starts_with("MAC 52:54:00:00:00:01 belongs to fw1 in segment 7"), "{shares}");
}
