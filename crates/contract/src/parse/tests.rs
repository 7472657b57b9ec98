//! Accepted and refused texts, and the messages.

use super::*;
use crate::{Aggregate, Control, Nic};
use crate::{
    Allowed, Attach, Bytes, Discipline, FlowQueueing, LinkState, Mac, Nanos, Queueing, Rate, Rx, Segment,
    SocketMode, SocketOwner, Tx, VfOptions,
};
use crate::{Host, Vnic};

/// Returns a complete contract, with `line` replaced or added.
fn with(line: &str) -> String {
    let key = line.split(['=', ' ']).next().expect("a key");
    let lines = ["attach = { tap = \"t0\" }", "mac = \"52:54:00:00:00:01\"", "segment = 1"];
    let other_lines = lines.iter().filter(|l| !l.starts_with(key)).map(|l| format!("{l}\n"));
    format!("[vnic.web]\n{}{line}\n", other_lines.collect::<String>())
}

fn only(text: &str) -> Vnic {
    let document = parse(text, "t.toml").unwrap_or_else(|errors| panic!("{text}\n{errors}"));
    document.vnics.into_iter().next().expect("one vNIC").value
}

fn messages(text: &str) -> Vec<String> {
    let Errors(errors) = parse(text, "t.toml").expect_err(text);
    errors.iter().map(|e| format!("{}: {}", e.key, e.message)).collect()
}

#[test]
fn reads_the_full_shape() {
    let text = r#"
[host]
host-latency = "100us"
busy-poll = "100ms"
flood = "5mbit"
flood-burst = "9kB"

[vnic.plc1]
attach   = { vhost-user = "/run/tidegate/vm/plc1.sock", mode = "server", owner = "libvirt-qemu", group = "kvm", socket-mode = "0660" }
mac      = "52:54:00:00:00:01"
segment  = 42
tx       = { max = "500mbit", min = "50mbit", burst = "4kB" }
rx       = { max = "1gbit", burst = "64KiB", discipline = "fifo", queue = "1.5MB" }
queueing = { target = "2ms", interval = "50ms", per-host = true }
weight   = 7
deadline = "500us"
to       = ["plc2", "uplink"]
allowed  = { macs = ["52:54:00:00:00:02"], prefixes = ["10.0.0.0/8"], shared = ["00:00:5e:00:01:33", "10.0.0.10"], vlans = [1, 4094], control = true, dhcp-server = true }
mtu      = 3000
queues   = 2
guest    = "/run/vm/plc1.limit"

[vnic."a.b"]
attach.tap = "tg-web"
attach.netns = "/run/netns/web"
mac = "52:54:00:00:00:03"
segment = 0
tx.min = "1mbit"
allowed.macs = "any"
"#;
    let document = parse(text, "web.toml").expect("valid");
    let rate = |bits| Rate::from_bits(bits);
    let host = document.host.expect("a host");
    assert_eq!((host.line, host.place().as_str()), (2, "web.toml:2"));
    assert_eq!(host.value.host_latency, Nanos::new(100_000));
    assert_eq!((host.value.busy_poll, host.value.flood_burst), (Nanos::new(100_000_000), Bytes::new(9000)));
    let [plc1, web] = document.vnics.as_slice() else { panic!("two vNICs") };
    assert_eq!((plc1.line, web.line), (8, 23));
    let wanted = Vnic {
        name: "plc1".into(),
        attach: Attach::VhostUser {
            path: "/run/tidegate/vm/plc1.sock".into(),
            mode: SocketMode::Server,
            owner: SocketOwner {
                user: Some("libvirt-qemu".into()),
                group: Some("kvm".into()),
                mode: Some(0o660),
            },
        },
        mac: Mac([0x52, 0x54, 0, 0, 0, 1]),
        segment: Segment::new(42).expect("in range"),
        tx: Tx {
            max: rate(500_000_000),
            min: rate(50_000_000),
            burst: Some(Bytes::new(4000)),
            ..Tx::default()
        },
        rx: Rx {
            max: rate(1_000_000_000),
            burst: Some(Bytes::new(65_536)),
            discipline: Discipline::Fifo,
            queue: Some(Bytes::new(1_500_000)),
        },
        queueing: Queueing::Flows(FlowQueueing {
            target: Nanos::new(2_000_000),
            interval: Nanos::new(50_000_000),
            per_host: true,
        }),
        weight: 7,
        deadline: Some(Nanos::new(500_000)),
        to: vec!["plc2".into(), "uplink".into()],
        allowed: Allowed {
            macs: vec![Mac([0x52, 0x54, 0, 0, 0, 2])],
            any_mac: false,
            prefixes: vec!["10.0.0.0/8".parse().expect("a prefix")],
            shared: ["00:00:5e:00:01:33", "10.0.0.10"].map(|text| text.parse().expect("an address")).into(),
            vlans: vec![1, 4094],
            control: true,
            router: false,
            dhcp_server: true,
        },
        mtu: 3000,
        queues: 2,
        guest: Some("/run/vm/plc1.limit".into()),
        on_refused: None,
        on_unreachable: None,
        transport: crate::Transport::default(),
        zero_copy: false,
    };
    assert_eq!(plc1.value, wanted);
    assert_eq!(web.value.name, "a.b");
    assert_eq!(web.value.attach, Attach::Tap { name: "tg-web".into(), netns: Some("/run/netns/web".into()) });
    assert!(web.value.allowed.any_mac);
    assert_eq!(web.value.to, ["uplink"], "a guarantee without to holds towards the uplink");
}

#[test]
fn other_attachments_and_defaults() {
    let vf = only(&with("attach = { vf = \"enp3s0f0/2\" }"));
    assert_eq!(vf.attach, Attach::Vf { pf: "enp3s0f0".into(), index: 2, options: VfOptions::default() });
    assert_eq!(
        only(&with("attach = { netdev = \"vnet3\" }")).attach,
        Attach::Netdev { name: "vnet3".into() }
    );
    assert_eq!((vf.weight, vf.mtu, vf.queues, vf.to.len()), (1, 1500, 1, 0));
    let both = parse("[host]\nhost_latency = \"1us\"\nflood_burst = \"2kB\"", "h").expect("underscores too");
    assert_eq!(both.host.expect("a host").value.host_latency, Nanos::new(1000));
    assert_eq!(parse("# nothing yet\n", "e").expect("comments only"), Document::default());
}

#[test]
fn queueing_is_a_word_or_a_table() {
    let queueing = |line| only(&with(line)).queueing;
    let flows = FlowQueueing::default();
    for line in ["weight = 2", "queueing = \"flows\"", "queueing = {}", "queueing.per-host = false"] {
        assert_eq!(queueing(line), Queueing::Flows(flows), "{line}");
    }
    assert_eq!(queueing("queueing = \"fifo\""), Queueing::Fifo);
    let shorter = FlowQueueing { target: Nanos::new(1_000_000), interval: Nanos::new(2_000_000), ..flows };
    assert_eq!(queueing("queueing = { target = \"1ms\", interval = \"2ms\" }"), Queueing::Flows(shorter));
    let realtime =
        "queueing = \"flows\"\ndeadline = \"1ms\"\nto = [\"b\"]\ntx = { max = \"1mbit\", burst = \"2kB\" }";
    assert_eq!(queueing(realtime), Queueing::Flows(flows), "a default refuses nothing");
}

#[test]
fn functions_and_their_nics() {
    let vf = with("attach = { vf = \"eth1/0\", qos = 5, trust = true, link-state = \"enable\" }");
    let options = VfOptions { qos: 5, trust: true, link_state: LinkState::Enable };
    assert_eq!(only(&vf).attach, Attach::Vf { pf: "eth1".into(), index: 0, options });
    let text = r#"
[host.nic.eth1]
capacity = "800mbit"
control  = "on"
period   = "50ms"

[host.nic.eth1.segment.42]
max = "300mbit"
min = "100mbit"

[host.nic.eth2]
"#;
    let host = parse(text, "h").expect("valid").host.expect("a host").value;
    let rate = |mbit: u64| Rate::from_bits(mbit * 1_000_000);
    let tenant = Aggregate { max: rate(300), min: rate(100) };
    let eth1 = Nic {
        capacity: rate(800),
        control: Control::On,
        period: Nanos::new(50_000_000),
        segment: [(Segment::new(42).expect("in range"), tenant)].into(),
    };
    assert_eq!(host.nic, [("eth1".into(), eth1), ("eth2".into(), Nic::default())].into());
    let json = serde_json::to_string(&host).expect("serialises");
    assert_eq!(serde_json::from_str::<Host>(&json).expect("parses"), host);
}

/// Bad input: the line, and its one error.
#[test]
fn refuses_bad_input() {
    let long_path = format!("attach = {{ vhost-user = \"/{}\" }}", "x".repeat(107));
    let cases: &[(&str, &str)] = &[
        ("colour = 1", "vnic.web.colour: unknown key; known keys: attach, mac, segment"),
        ("deadlin = \"1ms\"", "vnic.web.deadlin: unknown key; did you mean \"deadline\"?"),
        ("tx = { maxx = \"1mbit\" }", "vnic.web.tx.maxx: unknown key; did you mean \"max\"?"),
        ("tx = { max = \"500\" }", "vnic.web.tx.max: rate \"500\" has no unit; write \"500mbit\""),
        ("tx = { max = 500 }", "vnic.web.tx.max: rate \"500\" has no unit; write \"500mbit\""),
        ("tx = { max = -5 }", "vnic.web.tx.max: rate \"-5\" has no unit"),
        ("tx = { max = \"-5mbit\" }", "vnic.web.tx.max: rate \"-5mbit\" is negative"),
        ("tx = { max = \"0mbit\" }", "vnic.web.tx.max: rate \"0mbit\" is zero"),
        ("tx = { max = nan }", "vnic.web.tx.max: rate \"nan\" is not a finite number"),
        ("rx = { max = \"inf\" }", "vnic.web.rx.max: rate \"inf\" is not a finite number"),
        (
            "rx = { max = \"401gbit\" }",
            "vnic.web.rx.max: rate \"401gbit\" is too large; it must be at most 400gbit",
        ),
        ("rx = { max = true }", "vnic.web.rx.max: expected a rate such as \"500mbit\", found boolean"),
        ("tx = \"500mbit\"", "vnic.web.tx: expected a table, found string"),
        ("tx = { max = \"1mbit\", min = \"2mbit\" }", "vnic.web.tx.min: min 2mbit is over max 1mbit"),
        ("tx = { burst = \"0B\" }", "vnic.web.tx.burst: 0B is out of range; 1B to 1000MB"),
        (
            "rx = { discipline = \"lifo\" }",
            "vnic.web.rx.discipline: unknown discipline \"lifo\"; \"contract\" or \"fifo\"",
        ),
        ("rx = { queue = \"2000MB\" }", "vnic.web.rx.queue: 2000MB is out of range"),
        ("queueing = \"lifo\"", "vnic.web.queueing: unknown queueing \"lifo\"; \"flows\" or \"fifo\""),
        (
            "queueing = 5",
            "vnic.web.queueing: expected \"flows\", \"fifo\", or a table such as { target = \"5ms\" }, found integer",
        ),
        (
            "queueing = { targets = \"5ms\" }",
            "vnic.web.queueing.targets: unknown key; did you mean \"target\"?",
        ),
        ("queueing = { target = 5 }", "vnic.web.queueing.target: duration \"5\" has no unit"),
        ("queueing.target = \"99us\"", "vnic.web.queueing.target: 99us is out of range; 100us to 100ms"),
        (
            "queueing = { target = \"101ms\", interval = \"1s\" }",
            "vnic.web.queueing.target: 101ms is out of range; 100us to 100ms",
        ),
        (
            "queueing = { target = \"51ms\" }",
            "vnic.web.queueing.interval: 100ms is out of range; twice the target to 2s, here 102ms or more",
        ),
        (
            "queueing = { interval = \"2001ms\" }",
            "vnic.web.queueing.interval: 2001ms is out of range; twice the target to 2s",
        ),
        (
            "queueing = { per-host = \"yes\" }",
            "vnic.web.queueing.per-host: expected true or false, found string",
        ),
        (
            "mac = \"01:00:5e:00:00:01\"",
            "vnic.web.mac: 01:00:5e:00:00:01 is a group (broadcast or multicast) address",
        ),
        ("mac = \"00:00:00:00:00:00\"", "vnic.web.mac: 00:00:00:00:00:00 is not a valid address"),
        ("mac = \"52:54\"", "vnic.web.mac: \"52:54\" is not a MAC address"),
        ("mac = [\"52:54\"]", "vnic.web.mac: expected a MAC address such as"),
        ("segment = 16777216", "vnic.web.segment: 16777216 is out of range; 0 to 16777215"),
        ("segment = -1", "vnic.web.segment: -1 is out of range; 0 to 16777215"),
        ("segment = \"42\"", "vnic.web.segment: expected a whole number, 0 to 16777215, found string"),
        ("weight = 0", "vnic.web.weight: 0 is out of range; 1 to 1000"),
        ("weight = 1.5", "vnic.web.weight: expected a whole number, 1 to 1000, found float"),
        ("queues = 65", "vnic.web.queues: 65 is out of range; 1 to 64"),
        ("mtu = 67", "vnic.web.mtu: 67 is out of range; 68 to 65535"),
        ("mtu = 65536", "vnic.web.mtu: 65536 is out of range; 68 to 65535"),
        ("to = [\"web\"]", "vnic.web.to: web is this vNIC itself"),
        ("to = [\"db\", \"db\"]", "vnic.web.to: db is listed twice"),
        ("to = [\"host\"]", "vnic.web.to: the name \"host\" is reserved"),
        ("to = \"db\"", "vnic.web.to: expected a list, [\"…\", …], found string"),
        (
            "to = [5]",
            "vnic.web.to: expected the name of a vNIC or remote, or \"uplink\", found a bare number",
        ),
        (
            "attach = { vhost-user = \"run/x.sock\" }",
            "vnic.web.attach.vhost-user: expected the absolute path of a socket",
        ),
        (
            &long_path,
            "vnic.web.attach.vhost-user: the socket path has 108 bytes; the path of a Unix socket has at most 107",
        ),
        (
            "attach = { tap = \"sixteen-bytes-xx\" }",
            "vnic.web.attach.tap: interface name \"sixteen-bytes-xx\" has 16 bytes",
        ),
        ("attach = { tap = \"a/b\" }", "vnic.web.attach.tap: \"a/b\" is not an interface name"),
        ("attach = { netdev = \"a b\" }", "vnic.web.attach.netdev: \"a b\" is not an interface name"),
        (
            "attach = { netdev = \"-rf\" }",
            "vnic.web.attach.netdev: interface name \"-rf\" looks like an option",
        ),
        ("attach = { tap = \"\" }", "vnic.web.attach.tap: \"\" is not an interface name"),
        ("attach = { tap = \"t0\", netns = \"web\" }", "vnic.web.attach.netns: expected an absolute path"),
        ("attach = { vf = \"enp3s0f0\" }", "vnic.web.attach.vf: \"enp3s0f0\" names no virtual function"),
        (
            "attach = { vf = \"enp3s0f0/+1\" }",
            "vnic.web.attach.vf: \"enp3s0f0/+1\" names no virtual function",
        ),
        (
            "attach = { vhost = \"/run/x\" }",
            "vnic.web.attach: the kind of attachment is missing; write one of vhost-user, tap, netdev, vf",
        ),
        ("attach = { tap = \"a\", netdev = \"b\" }", "vnic.web.attach.netdev: tap is given too"),
        (
            "attach = { tap = \"a\", mode = \"client\" }",
            "vnic.web.attach.mode: belongs to vhost-user, not to tap; remove it",
        ),
        ("attach = { vf = \"eth1/0\", qos = 8 }", "vnic.web.attach.qos: 8 is out of range; 0 to 7"),
        (
            "attach = { vf = \"eth1/0\", trust = 1 }",
            "vnic.web.attach.trust: expected true or false, found integer",
        ),
        (
            "attach = { vf = \"eth1/0\", link-state = \"up\" }",
            "vnic.web.attach.link-state: unknown link state \"up\"",
        ),
        (
            "attach = { tap = \"t0\", trust = true }",
            "vnic.web.attach.trust: belongs to vf, not to tap; remove it",
        ),
        ("attach = { vhost-user = \"/x\", mode = \"both\" }", "vnic.web.attach.mode: unknown mode \"both\""),
        (
            "attach = { vhost-user = \"/x\", mode = \"client\", group = \"kvm\" }",
            "vnic.web.attach.group: with mode = \"client\"",
        ),
        (
            "attach = { vhost-user = \"/x\", socket-mode = \"rw\" }",
            "vnic.web.attach.socket-mode: \"rw\" is not a file mode",
        ),
        (
            "attach = { vhost-user = \"/x\", socket-mode = \"7777\" }",
            "vnic.web.attach.socket-mode: 7777 is out of range",
        ),
        (
            "attach = { vhost-user = \"/x\", socket-mode = 660 }",
            "vnic.web.attach.socket-mode: expected octal digits as a string",
        ),
        (
            "allowed = { macs = [\"ff:ff:ff:ff:ff:ff\"] }",
            "vnic.web.allowed.macs: ff:ff:ff:ff:ff:ff is a group",
        ),
        ("allowed = { macs = \"all\" }", "vnic.web.allowed.macs: expected a list"),
        (
            "allowed = { prefixes = [\"10.0.0.1/8\"] }",
            "vnic.web.allowed.prefixes: 10.0.0.1/8 has bits set after its first 8",
        ),
        (
            "allowed = { shared = [\"192.0.2.0/24\"] }",
            "vnic.web.allowed.shared: \"192.0.2.0/24\" is neither a MAC nor an IP address; write",
        ),
        (
            "allowed = { shared = [\"01:00:5e:00:00:12\"] }",
            "vnic.web.allowed.shared: 01:00:5e:00:00:12 is a group",
        ),
        (
            "allowed = { shared = [\"52:54:00:00:00:01\"] }",
            "vnic.web.allowed.shared: 52:54:00:00:00:01 is the vNIC's own MAC; remove it here",
        ),
        (
            "allowed = { shared = [\"192.0.2.10\"] }",
            "vnic.web.allowed.shared: 192.0.2.10 is shared, which needs allowed.prefixes:",
        ),
        (
            "allowed = { shared = [\"224.0.0.18\"], prefixes = [\"192.0.2.0/24\"] }",
            "vnic.web.allowed.shared: 224.0.0.18 is not the address of one host",
        ),
        (
            "allowed = { shared = [\"02:00:00:00:00:01\", \"02:00:00:00:00:01\"] }",
            "vnic.web.allowed.shared: 02:00:00:00:00:01 is listed twice",
        ),
        ("allowed = { vlans = [4095] }", "vnic.web.allowed.vlans: 4095 is out of range; 1 to 4094"),
        ("allowed = { router = \"yes\" }", "vnic.web.allowed.router: expected true or false, found string"),
        (
            "allowed = { dhcp_server = true }",
            "vnic.web.allowed.dhcp_server: unknown key; did you mean \"dhcp-server\"?",
        ),
        ("allowed = { vlans = [7, 7] }", "vnic.web.allowed.vlans: 7 is listed twice"),
        // A deadline without envelope or `to`.
        (
            "deadline = \"1ms\"\ntx.max = \"1mbit\"\ntx.burst = \"2kB\"",
            "vnic.web.deadline: a deadline needs `to`:",
        ),
        (
            "deadline = \"1ms\"\ntx.max = \"1mbit\"\nto = [\"b\"]",
            "vnic.web.deadline: a deadline needs `tx.burst`:",
        ),
        (
            "deadline = \"1ms\"\ntx.burst = \"2kB\"\nto = [\"b\"]",
            "vnic.web.deadline: a deadline needs `tx.max`:",
        ),
        (
            "deadline = \"1ms\"\ntx.max = \"1mbit\"\ntx.burst = \"1517B\"\nto = [\"b\"]",
            "vnic.web.tx.burst: 1517B cannot hold one frame of 1518 bytes",
        ),
        (
            "deadline = \"9us\"\ntx.max = \"1mbit\"\ntx.burst = \"2kB\"\nto = [\"b\"]",
            "vnic.web.deadline: 9us is out of range; 10us to 10s",
        ),
        (
            "deadline = \"11s\"\ntx.max = \"1mbit\"\ntx.burst = \"2kB\"\nto = [\"b\"]",
            "vnic.web.deadline: 11s is out of range; 10us to 10s",
        ),
        (
            "deadline = 500\ntx = { max = \"1mbit\", burst = \"2kB\" }\nto = [\"b\"]",
            "vnic.web.deadline: duration \"500\" has no unit",
        ),
    ];
    for (line, wanted) in cases {
        let found = messages(&with(line));
        // `attach = { vhost = … }` is two errors, its own and the missing kind.
        assert!(found.iter().any(|m| m.starts_with(wanted)), "{line}: {found:#?}");
        assert!(found.len() == 1 || line.contains("{ vhost ="), "{line}: {found:#?}");
    }
}

#[test]
fn refuses_bad_tables() {
    for (text, wanted) in [
        ("[vnics.a]", "vnics: unknown key; did you mean \"vnic\"?"),
        ("[[vnic]]\nname = \"a\"", "vnic: expected a table, found array of tables"),
        ("vnic.a = 5", "vnic.a: expected a table, found integer"),
        ("host = 5", "host: expected a table, found integer"),
        ("[host]\nhost-latency = \"0us\"", "host.host-latency: 0ns is out of range; 1ns to 10s"),
        (
            "[host]\nhost_latency = \"1us\"\nhost-latency = \"1us\"",
            "host.host_latency: host-latency is given too",
        ),
        ("[host]\nfloods = \"1gbit\"", "host.floods: unknown key; did you mean \"flood\"?"),
        ("[host.nic.eth1]\nperiod = \"5ms\"", "host.nic.eth1.period: 5ms is out of range; 10ms to 1s"),
        ("[host.nic.eth1]\ncontrol = \"yes\"", "host.nic.eth1.control: unknown control \"yes\""),
        ("[host.nic.eth1]\nspeed = \"1gbit\"", "host.nic.eth1.speed: unknown key"),
        ("[host.nic.\"a/b\"]", "host.nic.a/b: \"a/b\" is not an interface name"),
        ("[host.nic.eth1.segment.x]", "host.nic.eth1.segment.x: "),
        (
            "[host.nic.eth1.segment.1]\nmax = \"1mbit\"\nmin = \"2mbit\"",
            "host.nic.eth1.segment.1.min: min 2mbit is over max 1mbit",
        ),
        (
            "[host]\nuplink = \"25gbit\"",
            "host.uplink: an uplink has a table of its own: remove this line, and write [uplink.NAME] with \
             rate = \"25gbit\", local = \"ADDRESS\" and its peers",
        ),
        ("[host]\nuplink = 5", "host.uplink: an uplink has a table of its own: remove this line"),
        (
            "[vnic.uplink]\nattach.tap = \"t\"\nmac = \"52:54:00:00:00:01\"\nsegment = 1",
            "vnic.uplink.name: the name \"uplink\" is reserved",
        ),
        (
            "[vnic._a]\nattach.tap = \"t\"\nmac = \"52:54:00:00:00:01\"\nsegment = 1",
            "vnic._a.name: \"_a\" is not a valid name of a vNIC",
        ),
        (
            &format!(
                "[vnic.{}]\nattach.tap = \"t\"\nmac = \"52:54:00:00:00:01\"\nsegment = 1",
                "n".repeat(64)
            ),
            &format!("vnic.{0}.name: \"{0}\" is not a valid name of a vNIC", "n".repeat(64)),
        ),
        ("", ": the file is empty: was it written completely?"),
        (" \n\n", ": the file is empty"),
        ("a = 1\na = 2\n", ": duplicate key"),
    ] {
        let found = messages(text);
        assert!(found.len() == 1 && found[0].starts_with(wanted), "{text}: {found:#?}");
    }
    assert_eq!(messages("[vnic.a]").len(), 3, "attach, mac and segment are missing");
}

#[test]
fn the_guests_socket() {
    let socket = |value: &str| format!("guest = \"{value}\"");
    let vnic = parse(&with(&socket("/run/vm/web.limit")), "t.toml").expect("valid").vnics.remove(0).value;
    assert_eq!(vnic.guest.as_deref(), Some(std::path::Path::new("/run/vm/web.limit")));
    for (path, wanted) in [
        ("web.limit".to_owned(), "expected the absolute path of a socket"),
        ("/run/vm/".into(), "expected the absolute path of a socket"),
        (
            format!("/{}", "x".repeat(107)),
            "the socket path has 108 bytes; the path of a Unix socket has at most 107",
        ),
    ] {
        let found = parse(&with(&socket(&path)), "t.toml").expect_err(&path).to_string();
        assert!(found.contains("vnic.web.guest: ") && found.contains(wanted), "{found}");
    }
}

#[test]
fn errors_of_a_file_come_together_and_in_order() {
    let text = "[vnic.a]\nattach = { tap = \"a b\" }\nmac = \"x\"\nsegment = 1\ntx.max = \"5\"\n[vnic.b]\ncolour = 1\n";
    let Errors(errors) = parse(text, "t.toml").expect_err("many errors");
    let lines: Vec<usize> = errors.iter().map(|e| e.line).collect();
    assert_eq!(lines, [2, 3, 5, 6, 6, 6, 7]);
}

/// A file cut anywhere is refused, or says what its whole lines say.
#[test]
fn a_half_written_file_is_an_error() {
    let text = "[vnic.plc1]\nattach = { tap = \"t0\" }\nsegment = 4\nto = [\"plc2\"]\ntx = { max = \"500mbit\", min = \"50mbit\" }\nmac = \"52:54:00:00:00:01\"\n";
    for cut in 0..text.len() - 1 {
        let error = parse(&text[..cut], "t.toml").expect_err(&text[..cut]).to_string();
        assert!(error.starts_with("t.toml:"), "{error}");
    }
    assert!(parse(text, "t.toml").is_ok());
}

#[test]
fn printed_errors() {
    for (text, wanted) in [
        (
            with("tx = { max = \"500\" }"),
            r#"web.toml:5:14: vnic.web.tx.max: rate "500" has no unit; write "500mbit" (units: bit, kbit, mbit, gbit)
  |
5 | tx = { max = "500" }
  |              ^^^^^"#,
        ),
        (
            with("\tdeadlin = \"1ms\""),
            "web.toml:5:2: vnic.web.deadlin: unknown key; did you mean \"deadline\"?
  |
5 |     deadlin = \"1ms\"
  |     ^^^^^^^",
        ),
        (
            with("tx = { min = \"2mbit\", max = \"1mbit\" } # ü"),
            r#"web.toml:5:14: vnic.web.tx.min: min 2mbit is over max 1mbit; a guarantee cannot exceed the limit
  |
5 | tx = { min = "2mbit", max = "1mbit" } # ü
  |              ^^^^^^^"#,
        ),
        (
            "[vnic.plc1]\nattach = { tap = \"t0\"\n".into(),
            r#"web.toml:2:22: unclosed inline table, expected `}`; the text ends too early: was the file written completely?
  |
2 | attach = { tap = "t0"
  |                      ^"#,
        ),
        (
            "[vnic.plc1]\nattach.tap = \"t0\"\nmac = \"52:54:00:00:00:01\"\ndeadline = \"1ms\"\ntx.max = \"1mbit\"\ntx.burst = \"2kB\""
                .into(),
            r#"web.toml:1:7: vnic.plc1.segment: missing; write segment = 1 (only vNICs of one segment reach each other)
  |
1 | [vnic.plc1]
  |       ^^^^

web.toml:4:12: vnic.plc1.deadline: a deadline needs `to`: name the vNICs, or "uplink", towards which it holds
  |
4 | deadline = "1ms"
  |            ^^^^^"#,
        ),
    ] {
        assert_eq!(parse(&text, "web.toml").expect_err(&text).to_string(), wanted);
    }
}

proptest::proptest! {
    #[test]
    fn no_text_panics(text: String, near in "[a-z\\[\\]{}=.\",\n0-9 #üµ]{0,60}") {
        let _ = parse(&text, "any");
        let _ = parse(&format!("[vnic.a]\n{near}"), "any");
    }
}

/// The errors of a few kB must not be many MB, nor take long: a user who may write contracts may write any text.
#[test]
fn errors_without_end_are_counted() {
    let list = |item: &str, count: usize| vec![item; count].join(",");
    let contract = |more: &str| {
        format!("[vnic.a]\nattach = {{ tap = \"t0\" }}\nmac = \"52:54:00:00:00:01\"\nsegment = 1\n{more}\n")
    };
    let unknown: String = (0..5_000).map(|n| format!("deadlin{n} = 1\n")).collect();
    for (more, expected) in [
        (format!("allowed = {{ macs = [{}] }}", list("\"x\"", 20_000)), "19900 more errors follow"),
        (unknown, "4900 more errors follow"),
        (
            format!("allowed = {{ macs = [{}] }}", list("\"02:00:00:00:00:02\"", 1025)),
            "1025 are listed; at most 1024",
        ),
        (format!("allowed = {{ vlans = [{}] }}", list("7", 50_000)), "50000 are listed; at most 4094"),
        (format!("to = [{}]", list("\"b\"", 200_000)), "200000 are listed; at most 64"),
        (format!("tx = {{ max = \"{}\" }}", "9".repeat(1 << 20)), "vnic.a.tx.max"),
        (format!("{} = 1", "x".repeat(1 << 20)), "unknown key"),
    ] {
        let Errors(errors) = parse(&contract(&more), "t.toml").expect_err("wrong");
        let text = Errors(errors.clone()).to_string();
        assert!(text.contains(expected), "{expected}: {}", &text[..text.len().min(500)]);
        let length = errors.iter().map(|e| e.to_string().len()).sum::<usize>();
        assert!(
            errors.len() <= 101 && length < more.len() * 3 + 50_000,
            "{} errors of {length} bytes",
            errors.len()
        );
    }
}

/// Characters that act on a terminal or hide, in every quoted place of a file.
#[test]
fn errors_show_nothing_that_acts_or_hides() {
    let evil = "\u{1b}[2J\u{202e}\u{200b}\u{7}\r";
    let texts = [
        format!("[vnic.\"a{evil}\"]\nattach = {{ tap = \"tg0\" }}\n"),
        format!("[vnic.a]\n\"key{evil}\" = 1\n"),
        format!("[vnic.a]\nattach = {{ vhost-user = \"/run/{evil}.sock\" }}\n"),
        format!("[vnic.a]\nattach = {{ tap = \"{evil}\" }}\nmac = \"{evil}\"\n"),
        format!("[vnic.a]\ntx = {{ max = \"1{evil}\" }}\nto = [\"{evil}\"]\n"),
        format!("{evil}\n"),
        format!("a = \"{evil}"),
        format!("[\"{evil}\"]\n"),
    ];
    for text in texts {
        for text in [text.clone(), text.replace(evil, "\\u001b[2J\\u202e\\n2026 ERROR forged\\t")] {
            let shown = parse(&text, &format!("web\n{evil}.toml")).unwrap_err().to_string();
            assert!(!shown.contains(|c| c != '\n' && tidegate_visible::is_hidden(c)), "{shown:?}");
            assert!(!shown.lines().any(|line| line.starts_with("2026")), "{shown}");
        }
    }
}
