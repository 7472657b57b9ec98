//! `tidegate path request`: the terms, checked before the controller is asked.
//!
//! ```text
//!  options with units ──▶ Args ──▶ request: what contradicts itself is refused here ──▶ PathRequest
//! ```

use super::name;
use crate::network::reach::Reach;
use std::net::IpAddr;
use tidegate_contract::network_paths::PRIORITY;
use tidegate_contract::{Bytes, Mac, Nanos, Rate};
use tidegate_controller_api::{EthernetKey, Key, PathRequest, UdpKey};

pub const EXAMPLE: &str = "\
Examples: of VXLAN, and of frames of plain NICs, by --vlan in the place of addresses and port
  tidegate path request 'a1>b1' --source h1 --target h2 --source-address 10.1.0.1 \\
    --target-address 10.1.0.2 --source-port 49156 --dscp 46 --rate 20mbit --burst 3kB \\
    --smallest-frame 110B --largest-frame 1550B --budget 1ms
  tidegate path request 'a1>b1' --source h1 --target h2 --vlan 42 \\
    --source-mac 02:00:00:00:0a:01 --target-mac 02:00:00:00:0b:01 --rate 20mbit --burst 3kB \\
    --smallest-frame 64B --largest-frame 1518B --budget 1ms";

/// Options of VXLAN's key alone.
const OUTER: [&str; 5] = ["source_address", "target_address", "source_port", "target_port", "dscp"];

/// The smallest frame of Ethernet, without its FCS (bytes).
const SMALLEST: Bytes = Bytes::new(60);
/// As `controller/openapi.json` has it: bytes, ns.
const LARGEST_BURST: Bytes = Bytes::new(1_000_000_000);
const LONGEST_BUDGET: Nanos = Nanos::new(10_000_000_000_000);

/// A path's terms; sizes and rates are those on the host's wire.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The path, 'VNIC>REMOTE'; in quotes, since a shell takes > for itself
    #[arg(value_parser = name::path)]
    name: String,
    /// Host of the sender
    #[arg(long, value_name = "HOST", value_parser = name::host)]
    source: String,
    /// Host of the receiver
    #[arg(long, value_name = "HOST", value_parser = name::host)]
    target: String,
    /// Address of the sending uplink
    #[arg(long, value_name = "IP", required_unless_present = "vlan")]
    source_address: Option<IpAddr>,
    /// Address of the receiving uplink
    #[arg(long, value_name = "IP", required_unless_present = "vlan")]
    target_address: Option<IpAddr>,
    /// Outer UDP source port, of this flow alone
    #[arg(long, value_name = "PORT", required_unless_present = "vlan", value_parser = clap::value_parser!(u16).range(1..))]
    source_port: Option<u16>,
    /// UDP port of VXLAN
    #[arg(long, value_name = "PORT", default_value_t = 4789, value_parser = clap::value_parser!(u16).range(1..))]
    target_port: u16,
    /// Mark of its frames as the host sends them, 0 to 63
    #[arg(long, value_name = "MARK", required_unless_present = "vlan", value_parser = clap::value_parser!(u8).range(..64))]
    dscp: Option<u8>,
    /// Of plain NICs: VLAN of its frames at both hosts, 1 to 4094
    #[arg(long, value_name = "VLAN", requires_all = ["source_mac", "target_mac"], conflicts_with_all = OUTER, value_parser = clap::value_parser!(u16).range(1..=4094))]
    vlan: Option<u16>,
    /// Of plain NICs: priority in the tag as the host sends it, 1 to 7
    #[arg(long, value_name = "PRIORITY", requires = "vlan", default_value_t = PRIORITY, value_parser = clap::value_parser!(u8).range(1..=7))]
    priority: u8,
    /// Of plain NICs: MAC of the sending vNIC
    #[arg(long, value_name = "MAC", requires = "vlan")]
    source_mac: Option<Mac>,
    /// Of plain NICs: MAC of the receiving vNIC
    #[arg(long, value_name = "MAC", requires = "vlan")]
    target_mac: Option<Mac>,
    /// Rate, such as 20mbit
    #[arg(long, value_name = "RATE", value_parser = rate)]
    rate: Rate,
    /// Burst as it leaves the host, such as 3kB
    #[arg(long, value_name = "SIZE", value_parser = size)]
    burst: Bytes,
    /// Its smallest frame, such as 110B
    #[arg(long, value_name = "SIZE", value_parser = size)]
    smallest_frame: Bytes,
    /// Its largest frame, such as 1550B
    #[arg(long, value_name = "SIZE", value_parser = size)]
    largest_frame: Bytes,
    /// What the network may take of the deadline, such as 1ms
    #[arg(long, value_name = "TIME", value_parser = time)]
    budget: Nanos,
    #[command(flatten)]
    pub reach: Reach,
}

impl Args {
    /// Returns the request, or what contradicts itself in it.
    pub fn request(&self) -> Result<PathRequest, String> {
        let (vnic, remote) = self.name.split_once('>').unwrap_or_default();
        let key = self.key()?;
        let fault = if vnic == remote {
            format!("{vnic} would send to itself; name two vNICs")
        } else if self.source == self.target {
            format!("both vNICs would be on host {}; paths are between hosts", self.source)
        } else if self.smallest_frame < SMALLEST {
            format!(
                "--smallest-frame {} is below {SMALLEST}, the smallest frame there is",
                self.smallest_frame
            )
        } else if self.largest_frame < self.smallest_frame {
            format!(
                "--largest-frame {} is below --smallest-frame {}",
                self.largest_frame, self.smallest_frame
            )
        } else if self.burst < self.largest_frame {
            format!(
                "--burst {} is below --largest-frame {}: no such frame could be sent",
                self.burst, self.largest_frame
            )
        } else if self.burst > LARGEST_BURST {
            format!("--burst {} is above {LARGEST_BURST}", self.burst)
        } else if self.budget.get() == 0 || self.budget > LONGEST_BUDGET {
            format!("--budget {} is not between 1ns and {LONGEST_BUDGET}", self.budget)
        } else {
            return Ok(PathRequest {
                vnic: vnic.into(),
                remote: remote.into(),
                source: self.source.clone(),
                target: self.target.clone(),
                key,
                dscp: self.dscp.unwrap_or(0),
                rate: self.rate.bits(),
                burst: self.burst.get(),
                smallest_frame: self.smallest_frame.get(),
                largest_frame: self.largest_frame.get(),
                budget: self.budget.get(),
            });
        };
        Err(fault)
    }

    /// Returns what switches see of its frames, or what contradicts itself in that.
    fn key(&self) -> Result<Key, String> {
        match (self.vlan, self.source_address, self.target_address, self.source_port) {
            (Some(vlan), ..) => self.tagged(vlan),
            (None, Some(source), Some(target), Some(source_port)) => {
                outer(source, target, source_port, self.target_port)
            }
            _ => Err("write --vlan with both MACs, or both addresses with --source-port".into()),
        }
    }

    fn tagged(&self, vlan: u16) -> Result<Key, String> {
        let (Some(source), Some(target)) = (self.source_mac, self.target_mac) else {
            return Err("--vlan needs --source-mac and --target-mac".into());
        };
        if source == target {
            return Err(format!("both vNICs would have the MAC {source}; each has its own"));
        }
        if let Some(mac) = [source, target].into_iter().find(|mac| mac.0[0] & 1 == 1) {
            return Err(format!("{mac} is the MAC of a group; a path leads from one vNIC to one"));
        }
        Ok(Key::Ethernet(EthernetKey {
            vlan,
            priority: self.priority,
            source_mac: source.to_string(),
            target_mac: target.to_string(),
        }))
    }
}

fn outer(source: IpAddr, target: IpAddr, source_port: u16, target_port: u16) -> Result<Key, String> {
    let is_unusable = |address: &IpAddr| address.is_unspecified() || address.is_multicast();
    if source.is_ipv4() != target.is_ipv4() {
        Err(format!("{source} and {target} are not of one family; both are IPv4, or both are IPv6"))
    } else if source == target {
        Err(format!("both uplinks would have the address {source}; each has its own"))
    } else if let Some(address) = [source, target].into_iter().find(is_unusable) {
        Err(format!("{address} is no uplink's address; write that of its `local`"))
    } else {
        Ok(Key::Udp(UdpKey { source, target, source_port, target_port }))
    }
}

fn rate(text: &str) -> Result<Rate, String> {
    text.parse().map_err(|error: tidegate_contract::units::UnitError| error.to_string())
}

fn size(text: &str) -> Result<Bytes, String> {
    text.parse().map_err(|error: tidegate_contract::units::UnitError| error.to_string())
}

fn time(text: &str) -> Result<Nanos, String> {
    text.parse().map_err(|error: tidegate_contract::units::UnitError| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::super::tests::path;
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    const GOOD: [(&str, &str); 12] = [
        ("--source", "h1"),
        ("--target", "h2"),
        ("--source-address", "10.1.0.1"),
        ("--target-address", "10.1.0.2"),
        ("--source-port", "49156"),
        ("--target-port", "4789"),
        ("--dscp", "46"),
        ("--rate", "47mbit"),
        ("--burst", "7.1kB"),
        ("--smallest-frame", "110B"),
        ("--largest-frame", "1550B"),
        ("--budget", "900us"),
    ];

    /// Of plain NICs.
    const TAGGED: [(&str, &str); 11] = [
        ("--source", "h1"),
        ("--target", "h2"),
        ("--vlan", "42"),
        ("--priority", "3"),
        ("--source-mac", "02:00:00:00:0A:01"),
        ("--target-mac", "02:00:00:00:0b:01"),
        ("--rate", "47mbit"),
        ("--burst", "7.1kB"),
        ("--smallest-frame", "64B"),
        ("--largest-frame", "1518B"),
        ("--budget", "900us"),
    ];

    fn request(name: &str, change: Option<(&str, &str)>) -> Result<PathRequest, String> {
        parsed(name, &GOOD, change)
    }

    /// Options with one that has another value; `""`: without this option.
    fn parsed(
        name: &str,
        options: &[(&str, &str)],
        change: Option<(&str, &str)>,
    ) -> Result<PathRequest, String> {
        let mut words = vec!["tidegate", "path", "request", name];
        for (option, value) in options {
            match change.filter(|(changed, _)| changed == option) {
                Some((_, "")) => {}
                Some((_, to)) => words.extend([*option, to]),
                None => words.extend([*option, *value]),
            }
        }
        match Cli::try_parse_from(words).map_err(|error| error.to_string())?.command {
            Command::Path(super::super::Command::Request(args)) => args.request(),
            other => panic!("another command: {other:?}"),
        }
    }

    #[test]
    fn options_are_a_request() {
        assert_eq!(request("a1>b1", None), Ok(path().request));
    }

    #[test]
    fn options_of_plain_nics_are_a_request() {
        let one = parsed("a1>b1", &TAGGED, None).unwrap();
        let mut key = EthernetKey {
            vlan: 42,
            priority: 3,
            source_mac: "02:00:00:00:0a:01".into(),
            target_mac: "02:00:00:00:0b:01".into(),
        };
        assert_eq!((one.key, one.dscp, one.smallest_frame), (Key::Ethernet(key.clone()), 0, 64));
        // Without it, the priority is that of hosts.
        key.priority = PRIORITY;
        let one = parsed("a1>b1", &TAGGED, Some(("--priority", ""))).unwrap();
        assert_eq!(one.key, Key::Ethernet(key));
        for (option, value, expected) in [
            ("--vlan", "0", "0 is not in 1..=4094"),
            ("--vlan", "4095", "4095 is not in 1..=4094"),
            ("--vlan", "", "not provided"),
            ("--priority", "8", "8 is not in 1..=7"),
            ("--priority", "0", "0 is not in 1..=7"),
            ("--source-mac", "02:00:00:00:0b:01", "both vNICs would have the MAC"),
            ("--target-mac", "ff:ff:ff:ff:ff:ff", "the MAC of a group"),
            ("--target-mac", "02:00", "invalid value"),
            ("--target-mac", "", "not provided"),
        ] {
            let error = parsed("a1>b1", &TAGGED, Some((option, value))).unwrap_err();
            assert!(error.contains(expected), "{option} {value:?}: {error}");
        }
        for (option, value) in &GOOD[2..7] {
            let both: Vec<_> = TAGGED.into_iter().chain([(*option, *value)]).collect();
            let error = parsed("a1>b1", &both, None).unwrap_err();
            assert!(error.contains("cannot be used with"), "{option}: {error}");
        }
        for option in ["--source-address", "--target-address", "--source-port", "--dscp"] {
            assert!(request("a1>b1", Some((option, ""))).unwrap_err().contains("not provided"), "{option}");
        }
    }

    #[test]
    fn absurd_terms_are_refused_before_any_controller_is_asked() {
        for (option, value, expected) in [
            ("--source", "h2", "on host h2"),
            ("--source", "h/1", "is no name of a host"),
            ("--source-address", "10.1.0.2", "both uplinks"),
            ("--source-address", "fd00::1", "not of one family"),
            ("--source-address", "0.0.0.0", "is no uplink's address"),
            ("--target-address", "224.0.0.1", "is no uplink's address"),
            ("--target-address", "10.1.0", "invalid"),
            ("--source-port", "0", "0 is not in 1..=65535"),
            ("--dscp", "64", "64 is not in 0..64"),
            ("--rate", "20", "has no unit"),
            ("--rate", "20Mbit", "write \"20mbit\""),
            ("--rate", "0mbit", "is zero"),
            ("--rate", "999gbit", "too large"),
            ("--burst", "1kB", "below --largest-frame"),
            ("--burst", "2000MB", "is above"),
            ("--smallest-frame", "20B", "below 60B"),
            ("--smallest-frame", "1600B", "is below --smallest-frame"),
            ("--budget", "0ms", "not between"),
            ("--budget", "99999s", "not between"),
        ] {
            let error = request("a1>b1", Some((option, value))).unwrap_err();
            assert!(error.contains(expected), "{option} {value}: {error}");
        }
        assert!(request("a1>a1", None).unwrap_err().contains("to itself"));
        assert!(request("a1", None).unwrap_err().contains("in quotes"));
    }
}
