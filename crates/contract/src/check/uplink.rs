//! The rules of one uplink, one remote vNIC and the keys of one segment, each by itself.

use super::rules::{Problem, Rules};
use super::vnic::{DEADLINE, DESTINATIONS, SIZE, check_visible, interface_name, table_name, vnic_name};
use crate::uplink::FIRST_PORT;
use crate::{Nanos, Peer, Remote, Segment, SegmentKeys, SharedAddress, Uplink};
use std::{collections::HashSet, net::IpAddr, ops::RangeInclusive, path::Path};

/// MTU of a path: what every IPv4 host takes (RFC 791, 3.1) to the largest of usual NICs.
pub(crate) const UPLINK_MTU: RangeInclusive<u16> = 576..=9216;
/// Least MTU of an IPv6 path (RFC 8200, 5).
const UPLINK_MTU_IPV6: RangeInclusive<u16> = 1280..=9216;
/// A network between hosts; one that takes longer keeps no deadline of interest.
const LATENCY: RangeInclusive<Nanos> = Nanos::new(0)..=Nanos::new(1_000_000_000);
/// From the shortest deadline to the longest latency.
const ARRIVAL_BUDGET: RangeInclusive<Nanos> = Nanos::new(10_000)..=Nanos::new(1_000_000_000);
/// Most peers of one uplink: a flooded frame is copied to each.
const PEERS: usize = 64;
/// Most segments in `segments`: each frame that leaves is looked up in it.
const SEGMENTS: usize = 1024;
/// Most addresses of one remote.
const ADDRESSES: usize = 16;
/// Longest path (PATH_MAX, limits.h(0p)).
const PATH: usize = 4096;

impl Uplink {
    /// Checks all rules of one uplink by itself.
    ///
    /// # Errors
    /// Every broken rule, with its key.
    pub fn check(&self) -> Result<(), Vec<Problem>> {
        let mut rules = Rules::default();
        if let Err(message) = table_name(&self.name, "an uplink") {
            rules.add_problem("name", message);
        }
        if let Err(error) = SharedAddress::Ip(self.local).as_source() {
            rules.add_problem("local", error);
        }
        if let Some(Err(message)) = self.device.as_deref().map(interface_name) {
            rules.add_problem("device", message);
        }
        for (key, port) in [("port", self.port), ("notice-port", self.notice_port)] {
            if port < FIRST_PORT {
                let message =
                    format!("{port} is a port of the host's services, or none; write 1024 to 65535");
                rules.add_problem(key, message);
            }
        }
        if self.notice_port == self.port {
            rules.add_problem("notice-port", format!("{} is port, too; notices need another one", self.port));
        }
        rules.check_range("mtu", self.mtu, if self.local.is_ipv4() { UPLINK_MTU } else { UPLINK_MTU_IPV6 });
        if let Some(latency) = self.latency {
            rules.check_range("latency", latency, LATENCY);
        }
        rules.check_range("arrival-budget", self.arrival_budget, ARRIVAL_BUDGET);
        self.check_peers(&mut rules);
        rules.result()
    }

    fn check_peers(&self, rules: &mut Rules) {
        if self.peers.len() > PEERS {
            rules.add_problem("peer", format!("{} are listed; at most {PEERS}", self.peers.len()));
            return;
        }
        let mut addresses = HashSet::new();
        let mut names = HashSet::new();
        for peer in &self.peers {
            let key = |key: &str| format!("peer.{}.{key}", peer.name);
            if let Err(message) = table_name(&peer.name, "a peer") {
                rules.add_problem(&key("name"), message);
            } else if !names.insert(peer.name.as_str()) {
                rules.add_problem(&key("name"), format!("peer {} stands twice", peer.name));
            }
            if let Err(message) = self.peer_address(peer.address) {
                rules.add_problem(&key("address"), message);
            } else if !addresses.insert(peer.address) {
                rules.add_problem(
                    &key("address"),
                    format!("{} is another peer's of this uplink", peer.address),
                );
            }
            self.check_peer(rules, peer, key);
        }
    }

    fn peer_address(&self, address: IpAddr) -> Result<(), String> {
        SharedAddress::Ip(address).as_source().map_err(|error| error.to_string())?;
        let family = |address: IpAddr| if address.is_ipv4() { "IPv4" } else { "IPv6" };
        if address == self.local {
            return Err(format!("{address} is this host's own, local; write the peer's"));
        }
        if address.is_ipv4() != self.local.is_ipv4() {
            return Err(format!(
                "{address} is an {} address and local {} an {} one; an uplink uses one family, write another \
                 [uplink.NAME] for the other",
                family(address),
                self.local,
                family(self.local)
            ));
        }
        Ok(())
    }

    fn check_peer(&self, rules: &mut Rules, peer: &Peer, key: impl Fn(&str) -> String) {
        if let Some(segments) = &peer.segments {
            if segments.is_empty() {
                rules.add_problem(&key("segments"), "no segment is listed; leave it out for all segments");
            }
            rules.check_distinct(&key("segments"), segments, SEGMENTS);
        }
        if let Some(latency) = peer.latency {
            rules.check_range(&key("latency"), latency, LATENCY);
        }
        if let Some(budget) = peer.arrival_budget {
            rules.check_range(&key("arrival-budget"), budget, ARRIVAL_BUDGET);
        }
    }
}

impl Remote {
    /// Checks all rules of one remote vNIC by itself.
    ///
    /// # Errors
    /// Every broken rule, with its key.
    pub fn check(&self) -> Result<(), Vec<Problem>> {
        let mut rules = Rules::default();
        if let Err(message) = table_name(&self.name, "a remote vNIC") {
            rules.add_problem("name", message);
        }
        if let Err(error) = self.mac.as_source() {
            rules.add_problem("mac", error);
        }
        if self.addresses.len() > ADDRESSES {
            rules.add_problem("addresses", format!("at most {ADDRESSES} addresses"));
        }
        for address in self.addresses.iter().take(ADDRESSES) {
            if let Err(error) = SharedAddress::Ip(*address).as_source() {
                rules.add_problem("addresses", error);
            }
        }
        if let Some(burst) = self.tx.burst {
            rules.check_range("tx.burst", burst, SIZE);
        }
        match self.deadline {
            Some(deadline) => {
                rules.check_range("deadline", deadline, DEADLINE);
                for (key, is_given) in
                    [("tx.max", self.tx.max.is_some()), ("tx.burst", self.tx.burst.is_some())]
                {
                    if !is_given {
                        rules.add_problem(
                            "deadline",
                            format!("a deadline needs `{key}`: write the one of its contract"),
                        );
                    }
                }
                if self.to.is_empty() {
                    rules.add_problem(
                        "deadline",
                        "a deadline needs `to`: name the vNICs of this host towards which it holds",
                    );
                }
            }
            None if !self.to.is_empty() => {
                rules.add_problem("to", "only a deadline holds somewhere; write deadline, or leave `to` out");
            }
            None => {}
        }
        for name in self.to.iter().take(DESTINATIONS) {
            if let Err(message) = vnic_name(name) {
                rules.add_problem("to", message);
            }
        }
        rules.check_distinct("to", &self.to, DESTINATIONS);
        rules.result()
    }
}

impl SegmentKeys {
    /// Checks the rules of the keys of one segment; opens no file.
    ///
    /// # Errors
    /// Every broken rule, with its key.
    pub fn check(&self) -> Result<(), Vec<Problem>> {
        let mut rules = Rules::default();
        let files = [("key-file", Some(&self.key_file)), ("next-key-file", self.next_key_file.as_ref())];
        for (key, path) in files {
            if let Some(Err(message)) = path.map(|path| key_file(path)) {
                rules.add_problem(key, message);
            }
        }
        if self.next_key_file.as_ref() == Some(&self.key_file) {
            rules.add_problem(
                "next-key-file",
                "this is key-file, too; name the file of the key that replaces it",
            );
        }
        rules.result()
    }
}

fn key_file(path: &Path) -> Result<(), String> {
    let bytes = path.as_os_str().as_encoded_bytes();
    let is_plain = |part: &[u8]| !matches!(part, b"" | b"." | b"..");
    if bytes.len() > PATH || !path.is_absolute() || bytes.contains(&0) {
        return Err("expected the absolute path of a file, such as \"/etc/tidegate/keys/42\"".into());
    }
    if !bytes[1..].split(|byte| *byte == b'/').all(is_plain) {
        return Err("write the path without \"..\", \".\", double slashes and a slash at its end".into());
    }
    check_visible(path)
}

/// Returns the segments that a list has, in words.
pub(super) fn listed(segments: &[Segment]) -> String {
    let few: Vec<String> = segments.iter().take(8).map(Segment::to_string).collect();
    format!("{}{}", few.join(", "), if segments.len() > 8 { ", …" } else { "" })
}
