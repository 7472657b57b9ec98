//! `[host.cores]` and `[host.flow.NAME]` tables to [`Cores`] and [`Flow`].

use super::uplink::{AN_ADDRESS, Address};
use super::{keys, reader::Table};
use crate::check::{VLAN, id_range};
use crate::cores::{PLACEMENTS, PROTOCOLS, TUNNELS};
use crate::{Cores, Flow, Mac, Placement, Tunnel};
use std::{ops::RangeInclusive, str::FromStr};
use tidegate_cores::cpus::{self, Cpus};

const PORT: RangeInclusive<u16> = 1..=u16::MAX;
const PROTOCOL: RangeInclusive<u8> = 1..=u8::MAX;
const CPU: RangeInclusive<usize> = 0..=cpus::MOST - 1;
const A_LIST: &str = "a list of CPUs such as \"2-7,9\"";

pub(super) fn read(table: &Table<'_>) -> Cores {
    table.check_known_keys(keys::CORES);
    let cpus = |key| table.text::<List>(key, A_LIST, List(None)).and_then(|list| list.0);
    Cores {
        placement: table.text("placement", "\"off\" or \"plan\"", Placement::Off).unwrap_or_default(),
        cpus: cpus("cpus"),
        housekeeping: cpus("housekeeping"),
        adopt: table.boolean("adopt").unwrap_or_default(),
        steer: table.texts("steer", "an interface name such as \"eth1\""),
    }
}

/// Returns `None` for a flow with unreadable fields, which are reported: the rules between flows would name it again.
pub(super) fn read_flow(table: &Table<'_>) -> Option<Flow> {
    let before = table.faults();
    table.check_known_keys(keys::FLOW);
    if !table.has("device") {
        table.report_missing("device", "device = \"eth1\" (a NIC of [host.cores] steer)");
    }
    let tunnel = table.text("tunnel", "a tunnel such as \"vxlan\"", Tunnel::None).unwrap_or_default();
    let address = |key| table.text::<Address>(key, AN_ADDRESS, Address(None)).and_then(|address| address.0);
    let flow = Flow {
        device: table.text("device", "an interface name", String::new()).unwrap_or_default(),
        tunnel,
        id: table.integer("id", &id_range(tunnel)),
        vlan: table.integer("vlan", &VLAN),
        mac: table.text("mac", "a MAC address such as \"52:54:00:00:00:01\"", Mac([0; 6])),
        from: address("from"),
        to: address("to"),
        protocol: match table.as_str("protocol") {
            Some(_) => table.text("protocol", "", Protocol(0)).map(|protocol| protocol.0),
            None => table.integer("protocol", &PROTOCOL),
        },
        from_port: table.integer("from-port", &PORT),
        to_port: table.integer("to-port", &PORT),
        cpu: table.integer("cpu", &CPU),
    };
    (table.faults() == before).then_some(flow)
}

/// CPUs; `None` stands for an unreadable list.
struct List(Option<Cpus>);

impl FromStr for List {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let error = || {
            format!(
                "{text:?} is no list of CPUs; write numbers up to {} and ranges, such as \"2-7,9\"",
                CPU.end()
            )
        };
        let ascends = |part: &str| match part.split_once('-') {
            None => !part.is_empty(),
            Some((first, last)) => first.parse::<usize>().ok() <= last.parse().ok(),
        };
        if !text.trim().is_empty() && !text.trim().split(',').all(ascends) {
            return Err(error());
        }
        cpus::from_list(text).map(|cpus| Self(Some(cpus))).ok_or_else(error)
    }
}

struct Protocol(u8);

impl FromStr for Protocol {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let known = PROTOCOLS.iter().find(|(name, _)| *name == text);
        known.map(|(_, number)| Self(*number)).ok_or_else(|| {
            format!(
                "unknown protocol {text:?}; \"tcp\", \"udp\", \"sctp\", or a number without quotes, 1 to 255"
            )
        })
    }
}

impl FromStr for Placement {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let known = PLACEMENTS.iter().find(|(name, _)| *name == text);
        known
            .map(|(_, placement)| *placement)
            .ok_or_else(|| format!("unknown placement {text:?}; \"off\" or \"plan\""))
    }
}

impl FromStr for Tunnel {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let known = TUNNELS.iter().find(|(name, _)| *name == text);
        known.map(|(_, tunnel)| *tunnel).ok_or_else(|| {
            format!("unknown tunnel {text:?}; \"none\", \"vxlan\", \"geneve\", \"gre\" or \"esp\"")
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::{Cores, Errors, Flow, Host, Placement, Tunnel, parse, testing};

    fn host(text: &str) -> Host {
        let document = parse(text, "t.toml").unwrap_or_else(|errors| panic!("{text}\n{errors}"));
        document.host.expect("a host").value
    }

    fn refused(text: &str) -> Vec<(usize, String)> {
        let Errors(errors) = parse(text, "t.toml").expect_err(text);
        errors.iter().map(|e| (e.line, format!("{}: {}", e.key, e.message))).collect()
    }

    #[test]
    fn reads_the_full_shape() {
        let text = r#"
[host.cores]
placement = "plan"
cpus = "2-4,9"
housekeeping = "0"
adopt = true
steer = ["eth1", "eth0.5"]

[host.flow."voice.1"]
device = "eth0.5"
tunnel = "geneve"
id = 16777215
vlan = 7
mac = "01:00:5e:00:00:01"
from = "2001:db8::1"
to = "2001:db8::2"
protocol = "udp"
from-port = 1
to-port = 65535
cpu = 9

[host.flow.ipsec]
device = "eth1"
tunnel = "esp"
id = 4294967295
to = "192.0.2.1"
"#;
        let host = host(text);
        let cores = Cores {
            placement: Placement::Plan,
            cpus: Some([2, 3, 4, 9].into()),
            housekeeping: Some([0].into()),
            adopt: true,
            steer: vec!["eth1".into(), "eth0.5".into()],
        };
        assert_eq!(host.cores, cores);
        let voice = Flow {
            device: "eth0.5".into(),
            tunnel: Tunnel::Geneve,
            id: Some((1 << 24) - 1),
            vlan: Some(7),
            mac: Some("01:00:5e:00:00:01".parse().expect("a MAC")),
            from: Some("2001:db8::1".parse().expect("an address")),
            to: Some("2001:db8::2".parse().expect("an address")),
            protocol: Some(17),
            from_port: Some(1),
            to_port: Some(65535),
            cpu: Some(9),
        };
        assert_eq!(host.flow["voice.1"], voice);
        assert_eq!(voice.fields(), ["id", "vlan", "mac", "from", "to", "protocol", "from-port", "to-port"]);
        let to = Some([192, 0, 2, 1].into());
        assert_eq!(
            host.flow["ipsec"],
            Flow { tunnel: Tunnel::Esp, id: Some(u32::MAX), to, ..testing::flow("eth1") }
        );
        assert_eq!(self::host("[host.cores]\n"), Host::default(), "the default is what was before");
    }

    /// Bad input: the lines, and their one error at the last of them.
    #[test]
    fn refuses_bad_input() {
        let steer = "[host.cores]\nsteer = [\"eth1\"]\n";
        let cases: &[(&str, &str, &str)] = &[
            (
                "[host.cores]\n",
                "placement = \"on\"",
                "cores.placement: unknown placement \"on\"; \"off\" or \"plan\"",
            ),
            ("[host.cores]\n", "adopt = 1", "cores.adopt: expected true or false, found integer"),
            ("[host.cores]\n", "cpu = \"1\"", "cores.cpu: unknown key; did you mean \"cpus\"?"),
            (
                "[host.cores]\n",
                "cpus = [1, 2]",
                "cores.cpus: expected a list of CPUs such as \"2-7,9\", found array",
            ),
            (
                "[host.cores]\n",
                "cpus = 3",
                "cores.cpus: expected a list of CPUs such as \"2-7,9\", found a bare number",
            ),
            ("[host.cores]\n", "cpus = \"\"", "cores.cpus: an empty list; name at least one CPU"),
            (
                "[host.cores]\n",
                "cpus = \"3-2\"",
                "cores.cpus: \"3-2\" is no list of CPUs; write numbers up to 8191 and ranges",
            ),
            ("[host.cores]\n", "cpus = \"1,,2\"", "cores.cpus: \"1,,2\" is no list of CPUs"),
            ("[host.cores]\n", "cpus = \"8192\"", "cores.cpus: \"8192\" is no list of CPUs"),
            ("[host.cores]\n", "cpus = \"-1\"", "cores.cpus: \"-1\" is no list of CPUs"),
            (
                "[host.cores]\ncpus = \"1-5\"\n",
                "housekeeping = \"0,4-6\"",
                "cores.housekeeping: CPU 4-5 is in cpus, too; a CPU is for frames or for all other work",
            ),
            ("[host.cores]\n", "steer = [\"a/b\"]", "cores.steer: \"a/b\" is not an interface name"),
            ("[host.cores]\n", "steer = [\"a\", \"a\"]", "cores.steer: a is listed twice"),
            (
                steer,
                "[host.flow.a]",
                "flow.a.device: missing; write device = \"eth1\" (a NIC of [host.cores] steer)",
            ),
            (
                steer,
                "[host.flow._]\ndevice = \"eth1\"\nto = \"::1\"",
                "flow._: \"_\" is not a valid name of a flow",
            ),
            (
                steer,
                "[host.flow.host]\ndevice = \"eth1\"\nto = \"::1\"",
                "flow.host: the name \"host\" is reserved",
            ),
            (steer, "[host.flow.a]\ndevice = \"eth1\"", "flow.a: it would take all frames of the NIC"),
        ];
        let flows: &[(&str, &str)] = &[
            ("device = \"eth2\"", "device: \"eth2\" is not in [host.cores] steer; add it there"),
            (
                "tunnel = \"ipip\"",
                "tunnel: unknown tunnel \"ipip\"; \"none\", \"vxlan\", \"geneve\", \"gre\" or \"esp\"",
            ),
            ("id = 1", "id: a frame without a tunnel has no number; write tunnel, or remove id"),
            ("tunnel = \"vxlan\"\nid = 16777216", "id: 16777216 is out of range; 0 to 16777215"),
            ("tunnel = \"geneve\"\nid = 16777216", "id: 16777216 is out of range; 0 to 16777215"),
            ("tunnel = \"gre\"\nid = 4294967296", "id: 4294967296 is out of range; 0 to 4294967295"),
            ("tunnel = \"esp\"\nid = 0", "id: 0 is out of range; 1 to 4294967295"),
            (
                "tunnel = \"esp\"\nmac = \"02:00:00:00:00:01\"",
                "mac: ESP encrypts it; write id (the SPI), from, to and vlan alone",
            ),
            ("tunnel = \"esp\"\nprotocol = 6", "protocol: ESP encrypts it"),
            ("vlan = 4095", "vlan: 4095 is out of range; 1 to 4094"),
            ("mac = \"x\"", "mac: \"x\" is not a MAC address"),
            ("from = \"host\"", "from: \"host\" is not an IP address"),
            ("from = \"192.0.2.1\"\nto = \"::1\"", "to: ::1 is not of the family of from, 192.0.2.1"),
            (
                "protocol = \"ip\"",
                "protocol: unknown protocol \"ip\"; \"tcp\", \"udp\", \"sctp\", or a number without quotes",
            ),
            ("protocol = 256", "protocol: 256 is out of range; 1 to 255"),
            ("protocol = true", "protocol: expected a whole number, 1 to 255, found boolean"),
            ("from-port = 80", "from-port: a port needs protocol = \"tcp\", \"udp\" or \"sctp\""),
            ("protocol = 1\nto-port = 80", "to-port: a port needs protocol"),
            ("protocol = \"tcp\"\nto-port = 0", "to-port: 0 is out of range; 1 to 65535"),
            ("cpu = 8192", "cpu: 8192 is out of range; 0 to 8191"),
            ("ports = 80", "ports: unknown key"),
        ];
        for (before, line, wanted) in cases {
            let text = format!("{before}{line}\n");
            let [(at, message)] = &refused(&text)[..] else { panic!("{text}{:#?}", refused(&text)) };
            assert!(message.starts_with(&format!("host.{wanted}")), "{text}{message}");
            let wanted =
                before.lines().count() + if line.starts_with('[') { 1 } else { line.lines().count() };
            assert_eq!(*at, wanted, "{text}{message}");
        }
        for (lines, wanted) in flows {
            let device = if lines.starts_with("device") { "" } else { "device = \"eth1\"\n" };
            // A name with a dot: errors point into its table all the same.
            let text = format!("{steer}[host.flow.\"a.b\"]\n{device}to = \"::1\"\n{lines}\n");
            let text = if lines.contains("to = ") { text.replacen("to = \"::1\"\n", "", 1) } else { text };
            let [(at, message)] = &refused(&text)[..] else { panic!("{text}{:#?}", refused(&text)) };
            assert!(message.starts_with(&format!("host.flow.a.b.{wanted}")), "{text}{message}");
            assert_eq!(*at, text.lines().count(), "{text}{message}");
        }
    }

    #[test]
    fn rules_between_flows() {
        let flow = |name: &str, lines: &str| format!("[host.flow.{name}]\ndevice = \"eth1\"\n{lines}\n");
        let steer = "[host.cores]\ncpus = \"2-3\"\nsteer = [\"eth1\", \"eth2\"]\n";
        let same = "to = \"::1\"\nprotocol = \"tcp\"";
        let twice = [steer, &flow("a", same), &flow("b", "to = \"::1\"\nprotocol = 6\ncpu = 3")].concat();
        assert_eq!(
            refused(&twice),
            [(8, "host.flow.b: it has the same fields as flow a; keep one of them".into())]
        );
        host(&twice.replacen("\"eth1\"\nto", "\"eth2\"\nto", 1));
        let elsewhere = [steer, &flow("a", "to = \"::1\"\ncpu = 4")].concat();
        assert_eq!(
            refused(&elsewhere),
            [(7, "host.flow.a.cpu: CPU 4 is not in [host.cores] cpus, which are 2-3".into())]
        );

        let fields =
            ["vlan = 1", "to = \"::1\"", "from = \"::1\"", "protocol = 6", "mac = \"02:00:00:00:00:01\""];
        let sets = |count: usize| -> String {
            let stated = |bits: usize| fields.iter().enumerate().filter(move |(at, _)| bits & 1 << at != 0);
            let lines = |bits| stated(bits).map(|(_, line)| format!("{line}\n")).collect::<String>();
            (1..=count).map(|n| flow(&format!("f{n}"), &lines(n))).collect()
        };
        assert_eq!(host(&[steer, &sets(6)].concat()).flow.len(), 6);
        let found = refused(&[steer, &sets(31)].concat());
        let wanted = "host.flow.f15: it states vlan, from, to, protocol, which is one more set of fields; all flows together state at most 6";
        assert_eq!(found.len(), 1, "{found:#?}");
        assert!(found[0].1.starts_with(wanted), "{found:#?}");

        let all = "id = 1\ntunnel = \"gre\"\nvlan = 1\nto = \"::1\"\nfrom = \"::1\"\nprotocol = 6\nmac = \"02:00:00:00:00:01\"\nfrom-port = 1\nto-port = 1";
        assert_eq!(
            host(&[steer, &sets(6), &flow("g", all)].concat()).flow.len(),
            7,
            "beside flows that state all"
        );

        let many = |count: usize| {
            let flows = (0..count).map(|n| {
                flow(&format!("f{n}"), &format!("vlan = {}\nto = \"10.0.0.{}\"", n / 256 + 1, n % 256))
            });
            [steer.to_owned(), flows.collect()].concat()
        };
        assert_eq!(host(&many(1000)).flow.len(), 1000);
        assert_eq!(refused(&many(1001)), [(4, "host.flow: 1001 are listed; at most 1000".into())]);
    }
}
