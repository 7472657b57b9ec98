//! Contracts to TOML, and changes of single keys.

mod controller;
mod host;

use crate::error::{ErrorList, MOST};
use crate::{
    Attach, Discipline, Error, Errors, FlowQueueing, LinkState, Method, Nanos, OnRefused, OnUnreachable,
    Queueing, SocketMode, Transport, Vnic, parse, parse::keys,
};
use std::fmt::{Display, Write};
use toml_edit::{Array, DocumentMut, InlineTable, Item, TableLike, Value};

impl Vnic {
    /// Returns the table that a user would write, without defaults. [`crate::parse()`] reads it back to an equal value.
    pub fn to_toml(&self) -> String {
        let mut text = format!("[vnic.{}]\n", key(&self.name));
        let mut line = |key: &str, value: Value| {
            writeln!(text, "{key:<8} = {}", value.decorated("", ""))
                .expect("writing to a string cannot fail");
        };
        line("attach", attach(&self.attach).into());
        line("mac", string(self.mac));
        line("segment", i64::from(self.segment.id()).into());
        let police = (self.tx.method == Method::Police).then(|| "police".into());
        let tx = [
            ("max", self.tx.max.map(string)),
            ("min", self.tx.min.map(string)),
            ("burst", self.tx.burst.map(string)),
            ("method", police),
        ];
        let fifo = (self.rx.discipline == Discipline::Fifo).then(|| "fifo".into());
        let rx = [
            ("max", self.rx.max.map(string)),
            ("burst", self.rx.burst.map(string)),
            ("discipline", fifo),
            ("queue", self.rx.queue.map(string)),
        ];
        let queueing = match self.queueing {
            Queueing::Fifo => Some("fifo".into()),
            Queueing::Flows(FlowQueueing { target, interval, per_host }) => {
                let default = FlowQueueing::default();
                let stated = |value: Nanos, default: Nanos| (value != default).then(|| string(value));
                table([
                    ("target", stated(target, default.target)),
                    ("interval", stated(interval, default.interval)),
                    ("per-host", per_host.then(|| true.into())),
                ])
            }
        };
        let list = |values: Array| (!values.is_empty()).then(|| Value::from(values));
        let yes = |value: bool| value.then(|| Value::from(true));
        let allowed = &self.allowed;
        let macs: Array = allowed.macs.iter().copied().map(string).collect();
        let allowed = [
            ("macs", if allowed.any_mac { Some("any".into()) } else { list(macs) }),
            ("prefixes", list(allowed.prefixes.iter().copied().map(string).collect())),
            ("shared", list(allowed.shared.iter().copied().map(string).collect())),
            ("vlans", list(allowed.vlans.iter().map(|vlan| i64::from(*vlan)).collect())),
            ("control", yes(allowed.control)),
            ("router", yes(allowed.router)),
            ("dhcp-server", yes(allowed.dhcp_server)),
        ];
        let number = |n: i64, default: i64| (n != default).then(|| n.into());
        for (key, value) in [
            ("tx", table(tx)),
            ("rx", table(rx)),
            ("queueing", queueing),
            ("weight", number(self.weight.into(), 1)),
            ("deadline", self.deadline.map(string)),
            ("to", list(self.to.iter().map(String::as_str).collect())),
            ("allowed", table(allowed)),
            ("mtu", number(self.mtu.into(), 1500)),
            ("queues", number(self.queues.into(), 1)),
            ("guest", self.guest.as_ref().map(|path| string(path.display()))),
            ("on-refused", self.on_refused.and_then(|value| word(&OnRefused::ALL, value))),
            ("on-unreachable", self.on_unreachable.and_then(|value| word(&OnUnreachable::ALL, value))),
            (
                "transport",
                (self.transport != Transport::default())
                    .then(|| word(&Transport::ALL, self.transport))
                    .flatten(),
            ),
            ("zero-copy", yes(self.zero_copy)),
        ] {
            if let Some(value) = value {
                line(key, value);
            }
        }
        text
    }
}

/// Returns a name as a TOML key: bare unless it has a dot.
fn key(name: &str) -> String {
    if name.contains('.') { format!("\"{name}\"") } else { name.into() }
}

fn word<T: PartialEq>(words: &[(&str, T)], value: T) -> Option<Value> {
    words.iter().find(|(_, of)| *of == value).map(|(word, _)| (*word).into())
}

fn string(value: impl Display) -> Value {
    value.to_string().into()
}

/// Returns the keys that have a value; `None` if none has.
fn table<const N: usize>(entries: [(&str, Option<Value>); N]) -> Option<Value> {
    let table: InlineTable = entries.into_iter().filter_map(|(key, value)| Some((key, value?))).collect();
    (!table.is_empty()).then(|| table.into())
}

fn attach(attach: &Attach) -> InlineTable {
    let entries: Vec<(&str, Option<Value>)> = match attach {
        Attach::VhostUser { path, mode, owner } => vec![
            ("vhost-user", Some(string(path.display()))),
            ("mode", (*mode == SocketMode::Client).then(|| "client".into())),
            ("owner", owner.user.as_ref().map(string)),
            ("group", owner.group.as_ref().map(string)),
            ("socket-mode", owner.mode.map(|mode| format!("{mode:04o}").into())),
        ],
        Attach::Tap { name, netns } => {
            vec![("tap", Some(string(name))), ("netns", netns.as_ref().map(|path| string(path.display())))]
        }
        Attach::Netdev { name } => vec![("netdev", Some(string(name)))],
        Attach::Vf { pf, index, options } => {
            let link_state = match options.link_state {
                LinkState::Auto => None,
                LinkState::Enable => Some("enable".into()),
                LinkState::Disable => Some("disable".into()),
            };
            vec![
                ("vf", Some(string(format!("{pf}/{index}")))),
                ("qos", (options.qos != 0).then(|| i64::from(options.qos).into())),
                ("trust", options.trust.then(|| true.into())),
                ("link-state", link_state),
            ]
        }
    };
    entries.into_iter().filter_map(|(key, value)| Some((key, value?))).collect()
}

/// Changes single keys of a contract: `[("tx.max", "500mbit"), ("deadline", "none")]`.
///
/// Keys are dotted, from the contract's table on. Values have no quotes; lists have commas (`plc2,uplink`) or are
/// TOML (`["plc2", "uplink"]`). `none` removes a key.
///
/// # Errors
/// Unknown keys, and everything that [`crate::parse()`] and [`Vnic::check`] refuse. Errors have no line.
pub fn set_key(vnic: &Vnic, assignments: &[(String, String)]) -> Result<Vnic, Errors> {
    const ORIGIN: &str = "vnic set";
    let error = |key: &str, message: String| Error {
        file: ORIGIN.into(),
        line: 0,
        column: 0,
        key: format!("vnic.{}.{key}", vnic.name),
        message,
        excerpt: None,
    };
    let mut document: DocumentMut = vnic.to_toml().parse().expect("to_toml writes TOML");
    let contract = document["vnic"][&vnic.name].as_table_like_mut().expect("to_toml writes this table");
    let mut errors = ErrorList::default();
    for (key, value) in assignments.iter().take(MOST) {
        if let Err(message) = assign(contract, key, value) {
            errors.note(|| error(key, message));
        }
    }
    // Fewer keys exist: some of these are wrong, or named twice.
    for (key, _) in assignments.iter().skip(MOST) {
        errors.note(|| error(key, "too many keys at once".into()));
    }
    let errors = errors.into_errors();
    if !errors.is_empty() {
        return Err(Errors(errors));
    }
    let parsed = parse(&document.to_string(), ORIGIN).map_err(|Errors(errors)| {
        // Places in a text that the user never saw would mislead.
        Errors(errors.into_iter().map(|e| Error { line: 0, column: 0, excerpt: None, ..e }).collect())
    })?;
    Ok(parsed.vnics.into_iter().next().expect("the one table that was written").value)
}

fn assign(contract: &mut dyn TableLike, key: &str, value: &str) -> Result<(), String> {
    let known = keys::vnic_keys();
    if !known.iter().any(|k| k == key) {
        return Err(format!(
            "unknown key{}",
            crate::suggest::did_you_mean(key, known.iter().map(String::as_str))
        ));
    }
    let (parent, last) = key.split_once('.').map_or((None, key), |(parent, last)| (Some(parent), last));
    let mut table = contract;
    if let Some(parent) = parent {
        if value == "none" && !table.contains_key(parent) {
            return Ok(());
        }
        let inner = table.entry(parent).or_insert_with(|| Item::Value(InlineTable::new().into()));
        if parent == "queueing" && inner.as_str() == Some("flows") {
            *inner = Item::Value(InlineTable::new().into());
        }
        table = inner.as_table_like_mut().ok_or_else(|| format!("{parent} is not a table"))?;
    }
    if value == "none" {
        table.remove(last);
    } else {
        table.insert(last, Item::Value(typed(key, value)?));
    }
    Ok(())
}

/// Returns `text` as the kind of value that `key` takes.
fn typed(key: &str, text: &str) -> Result<Value, String> {
    if text.starts_with(['[', '{', '"', '\'']) {
        return text
            .parse()
            .map_err(|error: toml_edit::TomlError| format!("{text}: {}", error.message().trim_end()));
    }
    let number = |text: &str| text.trim().parse::<i64>().map_or_else(|_| text.into(), Value::from);
    let items = || text.split(',').map(str::trim).filter(|item| !item.is_empty());
    Ok(match key {
        "weight" | "segment" | "mtu" | "queues" | "attach.qos" => number(text),
        "attach.trust"
        | "queueing.per-host"
        | "allowed.control"
        | "allowed.router"
        | "allowed.dhcp-server"
        | "zero-copy" => text.parse::<bool>().map_or_else(|_| text.into(), Value::from),
        "allowed.macs" if text == "any" => text.into(),
        "to" | "allowed.macs" | "allowed.prefixes" | "allowed.shared" => items().collect::<Array>().into(),
        "allowed.vlans" => items().map(number).collect::<Array>().into(),
        _ => text.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Allowed, Bytes, Mac, Prefix, Rate, Rx, Segment, SharedAddress, SocketOwner, Tx, VfOptions, testing,
    };
    use proptest::{collection::btree_set, collection::vec, option, prelude::*};

    fn set(vnic: &Vnic, assignments: &[(&str, &str)]) -> Result<Vnic, Errors> {
        let owned: Vec<_> = assignments.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
        set_key(vnic, &owned)
    }

    #[test]
    fn the_toml_is_as_a_user_writes_it() {
        let mut vnic = testing::vnic("plc.1");
        vnic.mac = Mac([0x52, 0x54, 0, 0, 0, 1]);
        vnic.tx = Tx {
            max: Rate::from_bits(500_000_000),
            min: None,
            burst: Some(Bytes::new(4000)),
            ..Tx::default()
        };
        vnic.deadline = Some(Nanos::new(500_000));
        vnic.to = vec!["plc2".into(), "uplink".into()];
        vnic.allowed.vlans = vec![1, 2];
        vnic.allowed.dhcp_server = true;
        assert_eq!(
            vnic.to_toml(),
            r#"[vnic."plc.1"]
attach   = { vhost-user = "/run/tidegate/vm/plc.1.sock" }
mac      = "52:54:00:00:00:01"
segment  = 1
tx       = { max = "500mbit", burst = "4kB" }
deadline = "500us"
to       = ["plc2", "uplink"]
allowed  = { vlans = [1, 2], dhcp-server = true }
"#
        );
    }

    #[test]
    fn sets_and_removes_keys() {
        let plain = testing::vnic("a.b");
        let vnic = set(
            &plain,
            &[
                ("tx.max", "500mbit"),
                ("tx.burst", "4kB"),
                ("deadline", "1ms"),
                ("to", "b, uplink"),
                ("weight", "2"),
                ("allowed.vlans", "[1, 2]"),
                ("allowed.macs", "any"),
                ("allowed.shared", "00:00:5e:00:01:33"),
                ("allowed.control", "true"),
                ("attach.group", "kvm"),
                ("rx.discipline", "fifo"),
                ("queueing.target", "2ms"),
                ("queueing.per-host", "true"),
                ("guest", "/run/vm/a.limit"),
            ],
        )
        .expect("valid");
        assert_eq!(vnic.tx.max, Rate::from_bits(500_000_000));
        assert_eq!(vnic.to, ["b", "uplink"]);
        assert_eq!(
            (vnic.weight, vnic.allowed.any_mac, vnic.allowed.vlans.as_slice()),
            (2, true, [1, 2].as_slice())
        );
        assert!(vnic.is_realtime() && vnic.allowed.control);
        assert_eq!(vnic.allowed.shared, ["00:00:5e:00:01:33".parse().expect("an address")]);
        let flows = FlowQueueing { target: Nanos::new(2_000_000), per_host: true, ..FlowQueueing::default() };
        assert_eq!(vnic.queueing, Queueing::Flows(flows));
        let fifo = set(&vnic, &[("queueing", "fifo")]).expect("valid");
        assert_eq!(fifo.queueing, Queueing::Fifo);
        let with_options = [("queueing", "flows"), ("queueing.target", "2ms"), ("queueing.per-host", "true")];
        assert_eq!(set(&fifo, &with_options).expect("valid").queueing, vnic.queueing);
        let refused = set(&fifo, &[("queueing.target", "2ms")]).expect_err("no flows").to_string();
        assert!(refused.ends_with("queueing.target: queueing is not a table"), "{refused}");
        let undone = [
            "tx.max",
            "tx.burst",
            "deadline",
            "to",
            "weight",
            "allowed",
            "attach.group",
            "rx.discipline",
            "queueing.target",
            "queueing.per-host",
            "guest",
        ];
        let undone: Vec<_> = undone.iter().map(|key| (*key, "none")).collect();
        assert_eq!(set(&vnic, &undone), Ok(plain.clone()));
        assert_eq!(set(&plain, &[("tx.min", "1mbit")]).expect("valid").to, ["uplink"]);
        assert_eq!(set(&plain, &[("tx.min", "none"), ("deadline", "none")]), Ok(plain));
    }

    #[test]
    fn keys_that_a_file_may_not_have_are_refused() {
        let plain = testing::vnic("web");
        for (key, value, wanted) in [
            ("tx.maxx", "1mbit", "vnic set: vnic.web.tx.maxx: unknown key; did you mean \"tx.max\"?"),
            ("deadlin", "none", "vnic set: vnic.web.deadlin: unknown key; did you mean \"deadline\"?"),
            ("name", "x", "vnic set: vnic.web.name: unknown key"),
            (
                "tx.max",
                "500",
                "vnic set: vnic.web.tx.max: rate \"500\" has no unit; write \"500mbit\" (units: bit, kbit, mbit, gbit)",
            ),
            (
                "allowed.router",
                "yes",
                "vnic set: vnic.web.allowed.router: expected true or false, found string",
            ),
            (
                "weight",
                "heavy",
                "vnic set: vnic.web.weight: expected a whole number, 1 to 1000, found string",
            ),
            ("weight", "0", "vnic set: vnic.web.weight: 0 is out of range; 1 to 1000"),
            ("to", "web", "vnic set: vnic.web.to: web is this vNIC itself"),
            ("to", "[\"b\"", "vnic set: vnic.web.to: [\"b\": unclosed array, expected `]`"),
            ("mac", "none", "vnic set: vnic.web.mac: missing; write mac = \"52:54:00:00:00:01\""),
            (
                "attach.tap",
                "t0",
                "vnic set: vnic.web.attach.tap: vhost-user is given too; a vNIC is attached in one way, keep one of them",
            ),
            ("tx", "fast", "vnic set: vnic.web.tx: expected a table, found string"),
        ] {
            assert_eq!(set(&plain, &[(key, value)]).expect_err(key).to_string(), wanted);
        }
        let both = set(&plain, &[("tx", "fast"), ("tx.max", "1mbit")]).expect_err("tx is not a table");
        assert_eq!(both.to_string(), "vnic set: vnic.web.tx.max: tx is not a table");
        let two = set(&plain, &[("tx.max", "5"), ("rx.max", "6")]).expect_err("two errors");
        assert_eq!(two.0.len(), 2);
    }

    prop_compose! {
        fn any_attach()(
            kind in 0..4, name in "[a-z0-9\"\\\\-]{1,12}", path in "(/[a-zü\"' \\\\.]{1,9}){1,3}x", client: bool,
            user in option::of("[a-z0-9]{1,8}"), group in option::of("[a-z]{1,8}"), mode in option::of(0u32..=0o777),
            netns: bool, index: u16, qos in 0u8..=7, trust: bool,
            link_state in prop_oneof![Just(LinkState::Auto), Just(LinkState::Enable), Just(LinkState::Disable)],
        ) -> Attach {
            let owner = if client { SocketOwner::default() } else { SocketOwner { user, group, mode } };
            let mode = if client { SocketMode::Client } else { SocketMode::Server };
            match kind {
                0 => Attach::VhostUser { path: path.into(), mode, owner },
                1 => Attach::Tap { name, netns: netns.then(|| path.into()) },
                2 => Attach::Netdev { name },
                _ => Attach::Vf { pf: name, index, options: VfOptions { qos, trust, link_state } },
            }
        }
    }

    fn any_rate() -> impl Strategy<Value = Rate> {
        let gbits = (1u64..=400).prop_map(|n| n * 1_000_000_000);
        prop_oneof![gbits, 1u64..=400_000, 1u64..=400_000_000_000]
            .prop_map(|n| Rate::from_bits(n).expect("in range"))
    }

    fn any_mac() -> impl Strategy<Value = Mac> {
        any::<[u8; 5]>().prop_map(|[a, b, c, d, e]| Mac([2, a, b, c, d, e]))
    }

    prop_compose! {
        fn any_rates()(
            max in option::of(any_rates_pair()), burst in option::of(1u64..=1_000_000_000),
            rx_max in option::of(any_rate()), rx_burst in option::of(1u64..=1_000_000_000),
            fifo: bool, queue in option::of(1u64..=1_000_000_000),
        ) -> (Tx, Rx) {
            let discipline = if fifo { Discipline::Fifo } else { Discipline::Contract };
            let tx = Tx { max: max.map(|m| m.1), min: max.and_then(|m| m.0), burst: burst.map(Bytes::new), ..Tx::default() };
            let rx = Rx { max: rx_max, burst: rx_burst.map(Bytes::new), discipline, queue: queue.map(Bytes::new) };
            (tx, rx)
        }
    }

    /// A limit, and perhaps a guarantee not above it.
    fn any_rates_pair() -> impl Strategy<Value = (Option<Rate>, Rate)> {
        (any_rate(), any_rate(), any::<bool>()).prop_map(|(a, b, min)| (min.then(|| a.min(b)), a.max(b)))
    }

    fn any_shared() -> impl Strategy<Value = SharedAddress> {
        let ip = |ip: std::net::IpAddr| SharedAddress::Ip(ip);
        prop_oneof![
            any::<[u8; 4]>().prop_map(|[a, b, c, d]| SharedAddress::Mac(Mac([4, 1, a, b, c, d]))),
            any::<[u8; 2]>().prop_map(move |[a, b]| ip([10, 9, a, b].into())),
            any::<u16>().prop_map(move |a| ip([0xfd00, 9, 0, 0, 0, 0, 0, a].into())),
        ]
    }

    prop_compose! {
        fn any_allowed()(
            macs in btree_set(any_mac(), 0..3), any_mac: bool, vlans in btree_set(1u16..=4094, 0..3),
            v4 in vec(any::<u8>(), 0..3), shared in btree_set(any_shared(), 0..3), [control, router, dhcp_server] in any::<[bool; 3]>(),
        ) -> Allowed {
            let prefix = |n: u8| format!("10.{n}.0.0/16").parse::<Prefix>().expect("a prefix");
            let mut prefixes: Vec<_> = v4.into_iter().map(prefix).collect();
            prefixes.dedup();
            prefixes.truncate(2);
            let macs = if any_mac { Vec::new() } else { macs.into_iter().collect() };
            let vlans = vlans.into_iter().collect();
            let shared = shared.into_iter().collect();
            Allowed { macs, any_mac, prefixes, shared, vlans, control, router, dhcp_server }
        }
    }

    prop_compose! {
        fn any_queueing()(fifo: bool, per_host: bool, target in 100_000u64..=100_000_000, interval in 0u64..=2_000_000_000,
                          stated in any::<[bool; 2]>()) -> Queueing {
            let default = FlowQueueing::default();
            let target = if stated[0] { Nanos::new(target) } else { default.target };
            let interval = Nanos::new(interval.max(2 * target.get()));
            let interval = if stated[1] { interval } else { default.interval.max(Nanos::new(2 * target.get())) };
            if fifo { Queueing::Fifo } else { Queueing::Flows(FlowQueueing { target, interval, per_host }) }
        }
    }

    prop_compose! {
        fn any_vnic()(
            name in "[a-zA-Z0-9][a-zA-Z0-9._-]{0,20}", attach in any_attach(), mac in any_mac(), segment in 0u32..1 << 24,
            (tx, rx) in any_rates(), queueing in any_queueing(), weight in 1u32..=1000, deadline in option::of(10_000u64..=10_000_000_000),
            to in btree_set("~?[a-z]{3}", 0..3), allowed in any_allowed(), mtu in prop_oneof![Just(1500), 68u16..],
            queues in 1u16..=64, guest in option::of("(/[a-zü\"' \\\\.]{1,9}){1,3}y"),
            about_paths in (option::of(any::<bool>()), option::of(any::<bool>())), by_rdma: bool,
            zero_copy: bool,
        ) -> Vnic {
            // No other generator makes such a name, so `to` never has the vNIC itself.
            let mut to: Vec<String> = to.into_iter().map(|t| if t.starts_with('~') { "uplink".into() } else { format!("to-{t}") }).collect();
            to.dedup();
            let mut vnic = Vnic {
                name, attach, mac, segment: Segment::new(segment).expect("in range"), tx, rx, queueing, weight,
                deadline: deadline.map(Nanos::new), to, allowed, mtu, queues,
                guest: guest.map(Into::into),
                on_refused: about_paths.0.map(|first| OnRefused::ALL[usize::from(first)].1),
                on_unreachable: about_paths.1.map(|first| OnUnreachable::ALL[usize::from(first)].1),
                transport: if by_rdma { Transport::Rdma } else { Transport::Uplink },
                zero_copy,
            };
            if !vnic.uses_uplinks() {
                vnic.transport = Transport::Uplink;
            }
            vnic.zero_copy &= vnic.transport == Transport::Rdma && matches!(vnic.attach, Attach::VhostUser { .. });
            if vnic.tx.min.is_some() && vnic.to.is_empty() {
                vnic.to.push("uplink".into());
            }
            if vnic.tx.max.is_none() || vnic.to.is_empty() || vnic.tx.burst.is_none_or(|b| b.get() < vnic.largest_frame()) {
                vnic.deadline = None;
            }
            if vnic.deadline.is_none() {
                (vnic.on_refused, vnic.on_unreachable) = (None, None);
            }
            vnic
        }
    }

    proptest! {
        #[test]
        fn written_contracts_read_back(vnic in any_vnic()) {
            prop_assume!(vnic.check().is_ok());
            let text = vnic.to_toml();
            let document = parse(&text, "written").map_err(|e| TestCaseError::fail(format!("{text}\n{e}")))?;
            prop_assert_eq!(&document.vnics[0].value, &vnic, "{}", text);
            prop_assert_eq!(set_key(&vnic, &[]), Ok(vnic.clone()));
            let json = serde_json::to_string(&vnic).expect("serialises");
            prop_assert_eq!(serde_json::from_str::<Vnic>(&json).expect("parses"), vnic);
        }
    }
}
