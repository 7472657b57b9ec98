//! The `[host]` table to TOML.

use super::{string, word};
use crate::cores::{PLACEMENTS, PROTOCOLS, TUNNELS};
use crate::{Aggregate, Control, Cores, Flow, Host, Nic, Tunnel};
use std::fmt::Write;
use tidegate_cores::cpus::list;
use toml_edit::{Array, Key, Value};

type Lines<'a> = Vec<(&'a str, Option<Value>)>;

impl Host {
    /// Returns the table that a user would write, without defaults. [`crate::parse()`] reads it back to an equal value.
    pub fn to_toml(&self) -> String {
        let default = Self::default();
        let mut text = String::new();
        let lines = vec![
            ("host-latency", changed(&self.host_latency, &default.host_latency)),
            ("busy-poll", changed(&self.busy_poll, &default.busy_poll)),
            ("flood", changed(&self.flood, &default.flood)),
            ("flood-burst", changed(&self.flood_burst, &default.flood_burst)),
        ];
        table(&mut text, "host", lines);
        for (name, nic) in &self.nic {
            let path = format!("host.nic.{}", key(name));
            table(&mut text, &path, nic_lines(nic));
            for (segment, Aggregate { max, min }) in &nic.segment {
                table(
                    &mut text,
                    &format!("{path}.segment.{segment}"),
                    vec![("max", max.map(string)), ("min", min.map(string))],
                );
            }
        }
        if self.cores != Cores::default() {
            table(&mut text, "host.cores", cores_lines(&self.cores));
        }
        for (name, flow) in &self.flow {
            table(&mut text, &format!("host.flow.{}", key(name)), flow_lines(flow));
        }
        text
    }
}

fn nic_lines(nic: &Nic) -> Lines<'static> {
    let default = Nic::default();
    let control = match nic.control {
        Control::Auto => None,
        Control::On => Some("on".into()),
        Control::Off => Some("off".into()),
    };
    vec![
        ("capacity", nic.capacity.map(string)),
        ("control", control),
        ("period", changed(&nic.period, &default.period)),
    ]
}

fn cores_lines(cores: &Cores) -> Lines<'static> {
    let default = Cores::default();
    let steer: Array = cores.steer.iter().map(String::as_str).collect();
    vec![
        ("placement", word(&PLACEMENTS, cores.placement).filter(|_| cores.placement != default.placement)),
        ("cpus", cores.cpus.as_ref().map(|cpus| list(cpus).into())),
        ("housekeeping", cores.housekeeping.as_ref().map(|cpus| list(cpus).into())),
        ("adopt", cores.adopt.then(|| true.into())),
        ("steer", (!steer.is_empty()).then(|| steer.into())),
    ]
}

fn flow_lines(flow: &Flow) -> Lines<'static> {
    let number = |number: Option<u32>| number.map(|number| i64::from(number).into());
    let protocol = |number: u8| word(&PROTOCOLS, number);
    vec![
        ("device", Some(string(&flow.device))),
        ("tunnel", word(&TUNNELS, flow.tunnel).filter(|_| flow.tunnel != Tunnel::None)),
        ("id", number(flow.id)),
        ("vlan", number(flow.vlan.map(Into::into))),
        ("mac", flow.mac.map(string)),
        ("from", flow.from.map(string)),
        ("to", flow.to.map(string)),
        (
            "protocol",
            flow.protocol.map(|number| protocol(number).unwrap_or_else(|| i64::from(number).into())),
        ),
        ("from-port", number(flow.from_port.map(Into::into))),
        ("to-port", number(flow.to_port.map(Into::into))),
        ("cpu", flow.cpu.map(|cpu| i64::try_from(cpu).unwrap_or(i64::MAX).into())),
    ]
}

/// Writes a table with the lines that have a value.
fn table(text: &mut String, path: &str, lines: Lines<'_>) {
    let lines: Vec<(&str, Value)> =
        lines.into_iter().filter_map(|(key, value)| Some((key, value?))).collect();
    let width = lines.iter().map(|(key, _)| key.len()).max().unwrap_or(0);
    let gap = if text.is_empty() { "" } else { "\n" };
    writeln!(text, "{gap}[{path}]").expect(INFALLIBLE);
    for (key, value) in lines {
        writeln!(text, "{key:<width$} = {}", value.decorated("", "")).expect(INFALLIBLE);
    }
}

const INFALLIBLE: &str = "writing to a string cannot fail";

/// Returns a name as a TOML key, in quotes if it needs them.
fn key(name: &str) -> String {
    Key::new(name).to_string()
}

fn changed<T: PartialEq + Copy + std::fmt::Display>(value: &T, default: &T) -> Option<Value> {
    (value != default).then(|| string(*value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cores::PORT_PROTOCOLS;
    use crate::{Bytes, Mac, Nanos, Placement, Rate, Segment, parse, testing};
    use proptest::{collection::btree_map, option, prelude::*};

    fn read(text: &str) -> Host {
        let document = parse(text, "written").unwrap_or_else(|errors| panic!("{text}\n{errors}"));
        document.host.expect("a host").value
    }

    #[test]
    fn the_toml_is_as_a_user_writes_it() {
        let mut host = Host { host_latency: Nanos::new(100_000), ..Host::default() };
        host.nic.insert("eth0.5".into(), Nic { control: Control::On, ..Nic::default() });
        host.cores = Cores {
            placement: Placement::Plan,
            cpus: Some((2..8).collect()),
            housekeeping: Some([0, 1, 9].into()),
            adopt: true,
            steer: vec!["eth1".into()],
        };
        let voice = Flow {
            tunnel: Tunnel::Vxlan,
            id: Some(42),
            protocol: Some(17),
            to_port: Some(5004),
            cpu: Some(3),
            ..testing::flow("eth1")
        };
        host.flow.insert("voice.1".into(), voice);
        let text = r#"[host]
host-latency = "100us"

[host.nic."eth0.5"]
control = "on"

[host.cores]
placement    = "plan"
cpus         = "2-7"
housekeeping = "0-1,9"
adopt        = true
steer        = ["eth1"]

[host.flow."voice.1"]
device   = "eth1"
tunnel   = "vxlan"
id       = 42
protocol = "udp"
to-port  = 5004
cpu      = 3
"#;
        assert_eq!(host.to_toml(), text);
        assert_eq!(read(text), host);
        assert_eq!(Host::default().to_toml(), "[host]\n");
    }

    fn any_rate() -> impl Strategy<Value = Rate> {
        (1u64..=400_000_000_000).prop_map(|bits| Rate::from_bits(bits).expect("in range"))
    }

    prop_compose! {
        fn any_nic()(
            capacity in option::of(any_rate()), period in 10_000_000u64..=1_000_000_000,
            control in prop_oneof![Just(Control::Auto), Just(Control::On), Just(Control::Off)],
            aggregates in btree_map(0u32..1 << 24, (option::of(any_rate()), option::of(any_rate())), 0..3),
        ) -> Nic {
            let aggregate = |(max, min): (Option<Rate>, Option<Rate>)| match (max, min) {
                (Some(a), Some(b)) => Aggregate { max: Some(a.max(b)), min: Some(a.min(b)) },
                (max, min) => Aggregate { max, min },
            };
            let segment = aggregates.into_iter().map(|(id, rates)| (Segment::new(id).expect("in range"), aggregate(rates))).collect();
            Nic { capacity, control, period: Nanos::new(period), segment }
        }
    }

    prop_compose! {
        fn any_cores()(
            plan: bool, cpus in option::of(0usize..60), housekeeping in option::of(100usize..160), adopt: bool, steered in 1usize..4,
        ) -> Cores {
            Cores {
                placement: if plan { Placement::Plan } else { Placement::Off },
                cpus: cpus.map(|first| (first..64).filter(|cpu| cpu % 3 != 1 || *cpu == first).collect()),
                housekeeping: housekeeping.map(|first| [first, first + 1, 8191].into()),
                adopt,
                steer: (0..steered).map(|n| format!("eth{n}.\"{n}")).collect(),
            }
        }
    }

    fn any_address() -> impl Strategy<Value = std::net::IpAddr> {
        prop_oneof![
            any::<[u8; 4]>().prop_map(Into::into),
            any::<[u8; 16]>().prop_map(Into::into),
            any::<[u8; 4]>().prop_map(|v4| std::net::Ipv4Addr::from(v4).to_ipv6_mapped().into()),
        ]
    }

    prop_compose! {
        fn any_flow()(
            tunnel in 0..TUNNELS.len(), id in option::of(any::<u32>()), vlan in option::of(1u16..=4094), mac in option::of(any::<[u8; 6]>()),
            addresses in (option::of(any_address()), option::of(any_address())),
            protocol in option::of(prop_oneof![Just(6u8), Just(17), Just(132), 1u8..]),
            ports in (option::of(1u16..), option::of(1u16..)), cpu in option::of(0usize..8192),
        ) -> Flow {
            let tunnel = TUNNELS[tunnel].1;
            let is_open = tunnel != Tunnel::Esp;
            let protocol = protocol.filter(|_| is_open);
            let has_ports = protocol.is_some_and(|protocol| PORT_PROTOCOLS.contains(&protocol));
            Flow {
                device: String::new(),
                tunnel,
                id: id.filter(|_| tunnel != Tunnel::None).map(|id| id % (1 << 24)),
                vlan,
                mac: mac.map(Mac).filter(|_| is_open),
                from: addresses.0,
                to: addresses.1.filter(|to| addresses.0.is_none_or(|from| from.is_ipv4() == to.is_ipv4())),
                protocol,
                from_port: ports.0.filter(|_| has_ports),
                to_port: ports.1.filter(|_| has_ports),
                cpu,
            }
        }
    }

    proptest! {
        #[test]
        fn written_hosts_read_back(
            times in (1u64..=10_000_000_000, 0u64..=1_000_000_000), flood in any_rate(), flood_burst in 1u64..=1_000_000_000,
            nic in btree_map("[a-z\"\\\\. ü]{1,6}x", any_nic(), 0..3), cores in any_cores(),
            flow in btree_map("[a-zA-Z0-9][a-zA-Z0-9._-]{0,20}", any_flow(), 0..8),
        ) {
            let host = Host {
                host_latency: Nanos::new(times.0), busy_poll: Nanos::new(times.1), uplink: (), flood,
                flood_burst: Bytes::new(flood_burst), nic, cores: cores.clone(),
                flow: flow.into_iter().map(|(name, flow)| (name, Flow {
                    device: cores.steer[0].clone(),
                    cpu: flow.cpu.filter(|cpu| cores.cpus.as_ref().is_none_or(|cpus| cpus.contains(cpu))),
                    ..flow
                })).collect(),
            };
            prop_assume!(crate::check::check_host(&host).is_ok());
            let text = host.to_toml();
            let document = parse(&text, "written").map_err(|e| TestCaseError::fail(format!("{text}\n{e}")))?;
            prop_assert_eq!(&document.host.expect("a host").value, &host, "{}", text);
            let json = serde_json::to_string(&host).expect("serialises");
            prop_assert_eq!(serde_json::from_str::<Host>(&json).expect("parses"), host);
        }
    }

    #[test]
    fn flows_of_each_kind_pass_the_check() {
        // Or the property above would hold of few hosts.
        let mac = Some(Mac([2, 0, 0, 0, 0, 1]));
        for flow in [
            Flow { mac, ..testing::flow("eth1") },
            Flow {
                tunnel: Tunnel::Esp,
                id: Some(u32::MAX),
                from: Some([10, 0, 0, 1].into()),
                ..testing::flow("eth1")
            },
            Flow {
                tunnel: Tunnel::Gre,
                id: Some(0),
                protocol: Some(89),
                vlan: Some(4094),
                ..testing::flow("eth1")
            },
        ] {
            let mut host = Host::default();
            host.cores.steer.push("eth1".into());
            host.flow.insert("a".into(), flow);
            assert_eq!(read(&host.to_toml()), host);
        }
    }
}
