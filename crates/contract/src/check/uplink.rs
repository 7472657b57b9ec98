//! The rules of one uplink, one remote vNIC and the keys of one segment, each by itself.

use super::rdma;
use super::rules::{Problem, Rules};
use super::vnic::{DEADLINE, DESTINATIONS, SIZE, check_visible, interface_name, table_name, vnic_name};
use crate::uplink::{FIRST_PORT, default_notice_port, default_port};
use crate::{Nanos, Peer, Remote, Segment, SegmentKeys, SharedAddress, Uplink, UplinkKind};
use std::{collections::HashSet, net::IpAddr, ops::RangeInclusive, path::Path};

/// MTU of a path: what every IPv4 host takes (RFC 791, 3.1) to the largest of usual NICs.
pub(crate) const UPLINK_MTU: RangeInclusive<u16> = 576..=9216;
/// Least MTU of an IPv6 path (RFC 8200, 5).
const UPLINK_MTU_IPV6: RangeInclusive<u16> = 1280..=9216;
/// MTU of a device with AF_XDP: a frame is in one chunk of 4 KiB, behind the headroom of an XDP program.
const XDP_MTU: RangeInclusive<u16> = 576..=3500;
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
/// VLANs (IEEE 802.1Q, 9.6): 0 is none, 4095 is reserved.
const VLANS: RangeInclusive<u32> = 1..=4094;
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
        match self.local {
            Some(_) if self.is_plain() => rules.add_problem("local", without_effect(self.kind)),
            None if !self.is_plain() => rules.add_problem("local", "missing; write this host's address"),
            Some(local) => {
                if let Err(error) = SharedAddress::Ip(local).as_source() {
                    rules.add_problem("local", error);
                }
            }
            None => {}
        }
        if self.is_plain() && self.device.is_none() {
            rules.add_problem("device", "missing; write the NIC that frames leave by");
        }
        for (key, port, default) in
            [("port", self.port, default_port()), ("notice-port", self.notice_port, default_notice_port())]
        {
            if self.is_plain() && port != default {
                rules.add_problem(key, without_effect(self.kind));
            }
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
        if let Some(device) = &self.rdma {
            if self.is_plain() {
                rules.add_problem("rdma", without_effect(self.kind));
            }
            rdma::check_device(&mut rules, device);
        }
        if self.notice_port == self.port {
            rules.add_problem("notice-port", format!("{} is port, too; notices need another one", self.port));
        }
        rules.check_range(
            "mtu",
            self.mtu,
            match self.kind {
                UplinkKind::Xdp => XDP_MTU,
                _ if self.is_ipv6() => UPLINK_MTU_IPV6,
                _ => UPLINK_MTU,
            },
        );
        if let Some(latency) = self.latency {
            rules.check_range("latency", latency, LATENCY);
        }
        rules.check_range("arrival-budget", self.arrival_budget, ARRIVAL_BUDGET);
        if self.is_plain() && self.peers.len() != 1 {
            rules.add_problem(
                "peer",
                format!(
                    "a plain NIC has one peer, the network behind it, and {} are listed; write \
                     [uplink.{}.peer.lan] with segments, its VLANs",
                    self.peers.len(),
                    self.name
                ),
            );
        }
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
            match peer.address {
                Some(_) if self.is_plain() => {
                    rules.add_problem(&key("address"), without_effect(self.kind));
                }
                None if !self.is_plain() => rules.add_problem(&key("address"), "missing; write the peer's"),
                None => {}
                Some(address) => {
                    if let Err(message) = self.peer_address(address) {
                        rules.add_problem(&key("address"), message);
                    } else if !addresses.insert(address) {
                        let message = format!("{address} is another peer's of this uplink");
                        rules.add_problem(&key("address"), message);
                    }
                }
            }
            if self.is_plain() {
                check_vlans(rules, peer, key);
            }
            self.check_peer(rules, peer, key);
        }
    }

    fn peer_address(&self, address: IpAddr) -> Result<(), String> {
        SharedAddress::Ip(address).as_source().map_err(|error| error.to_string())?;
        let family = |address: IpAddr| if address.is_ipv4() { "IPv4" } else { "IPv6" };
        let Some(local) = self.local else { return Ok(()) };
        if address == local {
            return Err(format!("{address} is this host's own, local; write the peer's"));
        }
        if address.is_ipv4() != local.is_ipv4() {
            return Err(format!(
                "{address} is an {} address and local {local} an {} one; an uplink uses one family, write another \
                 [uplink.NAME] for the other",
                family(address),
                family(local)
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

/// Checks the peer of a plain NIC: its VLANs are listed, since no other may be taken from the host.
fn check_vlans(rules: &mut Rules, peer: &Peer, key: impl Fn(&str) -> String) {
    match &peer.segments {
        None => rules.add_problem(&key("segments"), "missing; list the VLANs that frames of vNICs have"),
        Some(segments) => {
            for segment in segments.iter().filter(|segment| !VLANS.contains(&segment.id())) {
                let (first, last) = (VLANS.start(), VLANS.end());
                let message = format!(
                    "{segment} is no VLAN; {first} to {last}, or use kind = \"vxlan\" for this segment \
                     (frames without a tag stay with the host)"
                );
                rules.add_problem(&key("segments"), message);
            }
        }
    }
    if peer.stamps {
        let message =
            "frames that leave by a plain NIC carry no stamp, since anything may be behind it; remove it";
        rules.add_problem(&key("stamps"), message);
    }
}

/// Returns why a key of VXLAN is refused.
pub(crate) fn without_effect(kind: UplinkKind) -> String {
    format!("has no effect with kind = \"{}\", which sends no VXLAN; remove it", kind.name())
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
        let files = [("key-file", self.key_file.as_ref()), ("next-key-file", self.next_key_file.as_ref())];
        for (key, path) in files {
            if let Some(Err(message)) = path.map(|path| absolute_file(path, "/etc/tidegate/keys/42")) {
                rules.add_problem(key, message);
            }
        }
        if self.key_file.is_none() && self.next_key_file.is_some() {
            rules.add_problem("next-key-file", "the controller gives the next key, too; remove it");
        }
        if self.key_file.is_some() && self.next_key_file == self.key_file {
            rules.add_problem(
                "next-key-file",
                "this is key-file, too; name the file of the key that replaces it",
            );
        }
        rules.result()
    }
}

/// Requires an absolute path, written in one way.
pub(super) fn absolute_file(path: &Path, example: &str) -> Result<(), String> {
    let bytes = path.as_os_str().as_encoded_bytes();
    let is_plain = |part: &[u8]| !matches!(part, b"" | b"." | b"..");
    if bytes.len() > PATH || !path.is_absolute() || bytes.contains(&0) {
        return Err(format!("expected the absolute path of a file, such as {example:?}"));
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
