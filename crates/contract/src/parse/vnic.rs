//! A `[vnic.NAME]` table to a [`Vnic`].

use super::{keys, reader::Table};
use crate::check::{MTU, QOS, QUEUES, VLAN, WEIGHT};
use crate::{
    Allowed, Attach, Bytes, Discipline, FlowQueueing, LinkState, Mac, Method, Nanos, OnRefused,
    OnUnreachable, Queueing, Rate, Rx, Segment, SocketMode, SocketOwner, Transport, Tx, UPLINK, VfOptions,
    Vnic,
};
use std::{convert::Infallible, path::PathBuf, str::FromStr};

const A_RATE: &str = "a rate such as \"500mbit\"";
const A_SIZE: &str = "a size such as \"64kB\"";
const A_MAC: &str = "a MAC address such as \"52:54:00:00:00:01\"";
const LARGE: Bytes = Bytes::new(1_000_000_000);

pub(super) fn read(table: &Table<'_>, name: String) -> Vnic {
    table.check_known_keys(keys::VNIC);
    let attach = table.table("attach").map(|attach| read_attach(&attach));
    let mac = table.text("mac", A_MAC, Mac([2, 0, 0, 0, 0, 0]));
    let segment = table.integer("segment", &(0..=(1u32 << 24) - 1));
    for (key, example) in [
        ("attach", "attach = { vhost-user = \"/run/tidegate/vm/NAME.sock\" }, or tap, netdev, vf"),
        ("mac", "mac = \"52:54:00:00:00:01\""),
        ("segment", "segment = 1 (only vNICs of one segment reach each other)"),
    ] {
        if !table.has(key) {
            table.report_missing(key, example);
        }
    }
    let deadline = table.text("deadline", "a duration such as \"500us\"", Nanos::new(1_000_000_000));
    let tx = table.table("tx").map_or_else(Tx::default, |tx| read_tx(&tx));
    let mut to: Vec<String> = table
        .texts::<Name>("to", "the name of a vNIC or remote, or \"uplink\"")
        .into_iter()
        .map(|n| n.0)
        .collect();
    if !table.has("to") && deadline.is_none() && tx.min.is_some() {
        to.push(UPLINK.into());
    }
    let vnic = Vnic {
        name,
        attach: attach.unwrap_or(Attach::Tap { name: "stand-in".into(), netns: None }),
        mac: mac.unwrap_or(Mac([2, 0, 0, 0, 0, 0])),
        segment: segment.and_then(Segment::new).unwrap_or_else(|| Segment::new(0).expect("in range")),
        tx,
        rx: table.table("rx").map_or_else(Rx::default, |rx| read_rx(&rx)),
        queueing: read_queueing(table),
        weight: table.integer("weight", &WEIGHT).unwrap_or(1),
        deadline,
        to,
        allowed: table.table("allowed").map_or_else(Allowed::default, |allowed| read_allowed(&allowed)),
        mtu: table.integer("mtu", &MTU).unwrap_or(1500),
        queues: table.integer("queues", &QUEUES).unwrap_or(1),
        guest: table.text("guest", "an absolute path", "/stand-in".into()),
        on_refused: table.text("on-refused", "\"fail\" or \"best-effort\"", OnRefused::default()),
        on_unreachable: table.text("on-unreachable", "\"best-effort\" or \"wait\"", OnUnreachable::default()),
        transport: table
            .text("transport", "\"uplink\" or \"rdma\"", Transport::default())
            .unwrap_or_default(),
        zero_copy: table.boolean("zero-copy").unwrap_or_default(),
    };
    table.report_problems(vnic.check());
    vnic
}

impl FromStr for Transport {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.iter().find(|(name, _)| *name == text);
        known.map(|(_, value)| *value).ok_or_else(|| format!("{text:?} is unknown; \"uplink\" or \"rdma\""))
    }
}

fn read_tx(table: &Table<'_>) -> Tx {
    table.check_known_keys(keys::TX);
    Tx {
        max: table.text("max", A_RATE, Rate::MAX),
        min: table.text("min", A_RATE, Rate::from_bits(1).expect("in range")),
        burst: table.text("burst", A_SIZE, LARGE),
        method: table.text("method", "\"shape\" or \"police\"", Method::default()).unwrap_or_default(),
    }
}

fn read_rx(table: &Table<'_>) -> Rx {
    table.check_known_keys(keys::RX);
    Rx {
        max: table.text("max", A_RATE, Rate::MAX),
        burst: table.text("burst", A_SIZE, LARGE),
        discipline: table
            .text("discipline", "\"contract\" or \"fifo\"", Discipline::default())
            .unwrap_or_default(),
        queue: table.text("queue", A_SIZE, LARGE),
    }
}

/// Reads `queueing`: a word, or a table of settings.
fn read_queueing(contract: &Table<'_>) -> Queueing {
    if contract.as_str("queueing").is_some() {
        return contract.text("queueing", "", Queueing::default()).unwrap_or_default();
    }
    let expected = "\"flows\", \"fifo\", or a table such as { target = \"5ms\" }";
    let Some(table) = contract.table_or("queueing", expected) else { return Queueing::default() };
    table.check_known_keys(keys::QUEUEING);
    let default = FlowQueueing::default();
    let duration = |key, default| table.text(key, "a duration such as \"5ms\"", default).unwrap_or(default);
    Queueing::Flows(FlowQueueing {
        target: duration("target", default.target),
        interval: duration("interval", default.interval),
        per_host: table.boolean("per-host").unwrap_or_default(),
    })
}

fn read_allowed(table: &Table<'_>) -> Allowed {
    table.check_known_keys(keys::ALLOWED);
    let any_mac = table.as_str("macs") == Some("any");
    Allowed {
        macs: if any_mac { Vec::new() } else { table.texts("macs", A_MAC) },
        any_mac,
        prefixes: table.texts("prefixes", "an IP prefix such as \"10.0.0.0/8\""),
        shared: table.texts("shared", "a MAC or IP address such as \"192.0.2.10\""),
        vlans: table.integers("vlans", &VLAN),
        control: table.boolean("control").unwrap_or_default(),
        router: table.boolean("router").unwrap_or_default(),
        dhcp_server: table.boolean("dhcp-server").unwrap_or_default(),
    }
}

fn read_attach(table: &Table<'_>) -> Attach {
    let options = keys::ATTACH_OPTIONS.iter().map(|(key, _)| *key);
    table.check_known_keys(&keys::ATTACH_KINDS.iter().copied().chain(options).collect::<Vec<_>>());
    let kinds: Vec<&str> = keys::ATTACH_KINDS.iter().copied().filter(|kind| table.has(kind)).collect();
    let (kind, rest) = match kinds.split_first() {
        Some((kind, rest)) => (*kind, rest),
        None => {
            table.report(
                "",
                format!("the kind of attachment is missing; write one of {}", keys::ATTACH_KINDS.join(", ")),
            );
            ("", [].as_slice())
        }
    };
    for second in rest {
        table.report(second, format!("{kind} is given too; a vNIC is attached in one way, keep one of them"));
    }
    for (option, of) in keys::ATTACH_OPTIONS {
        if table.has(option) && rest.is_empty() && !kind.is_empty() && kind != *of {
            table.report(option, format!("belongs to {of}, not to {kind}; remove it"));
        }
    }
    let path = |key| table.text::<PathBuf>(key, "an absolute path", "/stand-in".into());
    let name = |key| {
        table.text::<Name>(key, "an interface name", Name("stand-in".into())).map(|n| n.0).unwrap_or_default()
    };
    let string =
        |key| table.text::<Name>(key, "a name or number, as a string", Name("0".into())).map(|n| n.0);
    match kind {
        "vhost-user" => Attach::VhostUser {
            path: path("vhost-user").unwrap_or_default(),
            mode: table.text("mode", "\"server\" or \"client\"", SocketMode::Server).unwrap_or_default(),
            owner: SocketOwner {
                user: string("owner"),
                group: string("group"),
                mode: table.text("socket-mode", "octal digits as a string, \"0660\"", Octal(0)).map(|o| o.0),
            },
        },
        "netdev" => Attach::Netdev { name: name("netdev") },
        "vf" => {
            let vf =
                table.text("vf", "a physical function and an index, \"enp3s0f0/2\"", VfName::placeholder());
            let VfName { pf, index } = vf.unwrap_or_else(VfName::placeholder);
            let link_state =
                table.text("link-state", "\"auto\", \"enable\" or \"disable\"", LinkState::default());
            let options = VfOptions {
                qos: table.integer("qos", &QOS).unwrap_or_default(),
                trust: table.boolean("trust").unwrap_or_default(),
                link_state: link_state.unwrap_or_default(),
            };
            Attach::Vf { pf, index, options }
        }
        "tap" => Attach::Tap { name: name("tap"), netns: path("netns") },
        _ => Attach::Tap { name: "stand-in".into(), netns: None },
    }
}

/// A string that [`Vnic::check`] checks later. Unlike `String`, it takes no bare number.
struct Name(String);

impl FromStr for Name {
    type Err = Infallible;
    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self(text.into()))
    }
}

/// Permission bits, written in octal.
struct Octal(u32);

impl FromStr for Octal {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.strip_prefix("0o").unwrap_or(text);
        if !(3..=4).contains(&digits.len()) || !digits.bytes().all(|b| (b'0'..=b'7').contains(&b)) {
            return Err(format!("{text:?} is not a file mode; write octal digits as a string, \"0660\""));
        }
        u32::from_str_radix(digits, 8).map(Self).map_err(|error| error.to_string())
    }
}

/// `PF/INDEX`.
struct VfName {
    pf: String,
    index: u16,
}

impl VfName {
    fn placeholder() -> Self {
        Self { pf: "stand-in".into(), index: 0 }
    }
}

impl FromStr for VfName {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.split_once('/').and_then(|(pf, index)| {
            let digits = !index.is_empty() && index.bytes().all(|b| b.is_ascii_digit());
            Some(Self { pf: pf.into(), index: index.parse().ok().filter(|_| digits)? })
        });
        parsed.ok_or_else(|| {
            format!("{text:?} names no virtual function; write the physical one and an index, \"enp3s0f0/2\"")
        })
    }
}

impl FromStr for Discipline {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "contract" => Ok(Self::Contract),
            "fifo" => Ok(Self::Fifo),
            _ => Err(format!("unknown discipline {text:?}; \"contract\" or \"fifo\"")),
        }
    }
}

impl FromStr for Queueing {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "flows" => Ok(Self::default()),
            "fifo" => Ok(Self::Fifo),
            _ => Err(format!("unknown queueing {text:?}; \"flows\" or \"fifo\"")),
        }
    }
}

impl FromStr for Method {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "shape" => Ok(Self::Shape),
            "police" => Ok(Self::Police),
            _ => Err(format!("unknown method {text:?}; \"shape\" or \"police\"")),
        }
    }
}

impl FromStr for LinkState {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "enable" => Ok(Self::Enable),
            "disable" => Ok(Self::Disable),
            _ => Err(format!("unknown link state {text:?}; \"auto\", \"enable\" or \"disable\"")),
        }
    }
}

impl FromStr for SocketMode {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "server" => Ok(Self::Server),
            "client" => Ok(Self::Client),
            _ => Err(format!(
                "unknown mode {text:?}; \"server\" (Tidegate listens) or \"client\" (the front end listens)"
            )),
        }
    }
}
