//! Domains and the contracts they become.

use super::*;
use proptest::prelude::*;
use std::path::Path;
use tidegate_contract::{FlowQueueing, Nanos, Rate, SocketMode};

fn domain(metadata: &str, devices: &str) -> String {
    format!(
        "<domain type='kvm'>\n<name>web 1</name>\n<metadata>{metadata}</metadata>\n<devices>\n{devices}\n</devices>\n</domain>"
    )
}

fn contracts(vnics: &str) -> String {
    format!("<tg:contracts xmlns:tg='https://tidegate.dev/libvirt/1'>{vnics}</tg:contracts>")
}

fn bridge(more: &str) -> String {
    format!(
        "<interface type='bridge'>\n<mac address='52:54:00:00:00:01'/>\n<source bridge='br0'/>\n<target dev='vnet3'/>\n{more}\n</interface>"
    )
}

fn refused(metadata: &str, devices: &str) -> String {
    translate(&domain(metadata, devices), "web.xml").expect_err("refused").to_string()
}

#[test]
fn a_bandwidth_is_turned_to_the_vms_view() {
    let bandwidth = "<bandwidth><inbound average='1000' peak='5000' burst='1024'/><outbound average='128' burst='256'/></bandwidth>";
    let done = translate(&domain("", &bridge(bandwidth)), "web.xml").expect("translated");
    let [contract] = &done.contracts[..] else { panic!("{done:?}") };
    let vnic = &contract.vnic;
    assert_eq!((done.domain.as_str(), vnic.name.as_str()), ("web 1", "web-1-525400000001"));
    assert_eq!(vnic.attach, Attach::Netdev { name: "vnet3".into() });
    assert_eq!((vnic.rx.max, vnic.tx.max), (Rate::from_bits(8_000_000), Rate::from_bits(1_024_000)));
    assert_eq!(
        (vnic.rx.burst.map(|b| b.get()), vnic.tx.burst.map(|b| b.get())),
        (Some(1_048_576), Some(262_144))
    );
    assert!(contract.limited_by_libvirt && contract.attached);
    assert_eq!(done.notes.len(), 1, "{:?}", done.notes);
    assert_eq!(
        done.to_metadata(),
        "<tidegate:contracts xmlns:tidegate=\"https://tidegate.dev/libvirt/1\">\n  <tidegate:vnic mac=\"52:54:00:00:00:01\" \
         tx.max=\"1024kbit\" tx.burst=\"256KiB\" rx.max=\"8mbit\" rx.burst=\"1MiB\"/>\n</tidegate:contracts>\n"
    );
}

#[test]
fn metadata_wins_and_may_say_everything() {
    let asked = contracts(
        "<tg:vnic mac='52:54:00:00:00:01' name='plc1' segment='7' tx.max='500mbit' tx.burst='10kB' deadline='1ms' to='plc2,plc3' queueing.target='2ms' queueing.per-host='true'/>",
    );
    let bandwidth = "<mtu size='9000'/><bandwidth><inbound average='1'/></bandwidth>";
    let done = translate(&domain(&asked, &bridge(bandwidth)), "web.xml").expect("translated");
    let vnic = &done.contracts[0].vnic;
    assert_eq!((vnic.name.as_str(), u32::from(vnic.segment), vnic.mtu), ("plc1", 7, 9000));
    assert_eq!((vnic.rx.max, vnic.to.len(), vnic.is_realtime()), (None, 2, true));
    let flows = FlowQueueing { target: Nanos::new(2_000_000), per_host: true, ..FlowQueueing::default() };
    assert_eq!(vnic.queueing, Queueing::Flows(flows));
    assert!(done.contracts[0].limited_by_libvirt, "libvirt sets its own all the same");
    // The printed metadata has the same meaning.
    let second = translate(&domain(&done.to_metadata(), &bridge(bandwidth)), "web.xml").expect("translated");
    assert_eq!(second, done);
}

#[test]
fn a_guest_that_is_not_told_its_mtu_is_a_note() {
    let notes = |mtu: &str, told: &str| {
        let contract = format!("<tg:vnic mac='52:54:00:00:00:02' segment='7' {mtu}/>");
        let interface = format!(
            "<interface type='vhostuser'><mac address='52:54:00:00:00:02'/><source type='unix' path='/run/tidegate/vm/a.sock' \
             mode='client'/>{told}</interface>"
        );
        let done = translate(&domain(&contracts(&contract), &interface), "web.xml").expect("translated");
        (done.contracts[0].vnic.mtu, done.notes)
    };
    assert_eq!(notes("", ""), (1500, vec![]));
    // QEMU tells the guest what the contract says, or less.
    assert_eq!(notes("", "<mtu size='1450'/>"), (1450, vec![]));
    assert_eq!(notes("mtu='1450'", "<mtu size='1450'/>"), (1450, vec![]));
    assert_eq!(notes("mtu='9000'", ""), (9000, vec![]));
    for (told, sends) in [("", "1500"), ("<mtu size='9000'/>", "9000")] {
        let (mtu, notes) = notes("mtu='1450'", told);
        assert_eq!((mtu, notes.len()), (1450, 1));
        assert!(
            notes[0].contains(&format!("the guest sends {sends}: write <mtu size='1450'/>")),
            "{notes:?}"
        );
    }
}

#[test]
fn a_vhostuser_interface_is_a_port_of_the_switch() {
    let interface = |mode: &str| {
        format!(
            "<interface type='vhostuser'><mac address='52:54:00:00:00:02'/><source type='unix' path='/run/tidegate/vm/a.sock' \
             mode='{mode}'/><driver queues='4'/></interface>"
        )
    };
    let asked = contracts("<tg:vnic mac='52:54:00:00:00:02' segment='42' attach.group='kvm'/>");
    let done = translate(&domain(&asked, &interface("client")), "a.xml").expect("translated");
    let vnic = &done.contracts[0].vnic;
    let Attach::VhostUser { path, mode, owner } = &vnic.attach else { panic!("{vnic:?}") };
    assert_eq!(
        (path.as_path(), *mode, vnic.queues),
        (Path::new("/run/tidegate/vm/a.sock"), SocketMode::Server, 4)
    );
    assert_eq!(owner.group.as_deref(), Some("kvm"));
    let plain = contracts("<tg:vnic mac='52:54:00:00:00:02' segment='42'/>");
    let done = translate(&domain(&plain, &interface("server")), "a.xml").expect("translated");
    assert!(matches!(done.contracts[0].vnic.attach, Attach::VhostUser { mode: SocketMode::Client, .. }));
    assert_eq!(translate(&domain("", &interface("client")), "a.xml").expect("nothing asked").contracts, []);

    let error = refused(&contracts("<tg:vnic mac='52:54:00:00:00:02'/>"), &interface("client"));
    assert!(error.contains("write its segment, such as segment=\"42\""), "{error}");
    let error = refused(&asked, &interface("both"));
    assert!(error.contains("\"both\"; expected client or server"), "{error}");
}

#[test]
fn zero_copy_is_refused_where_memory_may_be_taken_away() {
    let port = "<interface type='vhostuser'><mac address='52:54:00:00:00:02'/><source type='unix' path='/run/tidegate/vm/a.sock' \
                mode='client'/></interface>\n";
    let asked = |zero_copy| {
        contracts(&format!(
            "<tg:vnic mac='52:54:00:00:00:02' segment='42' transport='rdma' zero-copy='{zero_copy}'/>"
        ))
    };
    let memory = "<memoryBacking><source type='memfd'/><access mode='shared'/><allocation mode='immediate'/></memoryBacking>";
    let with = |zero_copy, memory: &str, balloon: &str| {
        domain(&asked(zero_copy), &format!("{port}{balloon}"))
            .replace("<devices>", &format!("{memory}\n<devices>"))
    };
    let none = "<memballoon model='none'/>";
    let done = translate(&with("true", memory, none), "a.xml").expect("translated");
    assert!(done.contracts[0].vnic.zero_copy);
    // Without zero copy all is as it was.
    translate(&with("false", "", "<memballoon model='virtio'/>"), "a.xml").expect("translated");

    let said =
        translate(&with("true", memory, "<memballoon model='virtio'/>"), "a.xml").unwrap_err().to_string();
    assert!(
        said.contains("a.xml:7:1")
            && said.contains("vnic.web-1-525400000002.zero-copy: a balloon takes pages"),
        "{said}"
    );
    assert!(said.contains("model='none'/> into <devices>; or remove zero-copy from the metadata"), "{said}");
    let said = translate(&with("true", "", none), "a.xml").unwrap_err().to_string();
    assert!(said.contains("neither memfd nor huge pages") && said.contains("<domain type"), "{said}");
    let said = refused(&contracts("<tg:vnic mac='52:54:00:00:00:01' zero-copy='true'/>"), &bridge(none));
    assert!(said.contains("a netdev attachment shares no memory of the guest with the switch"), "{said}");
}

#[test]
fn a_domain_without_requests_gets_no_contract() {
    let done = translate(&domain("<other xmlns='urn:x'/>", &bridge("")), "web.xml").expect("translated");
    assert_eq!((done.contracts, done.notes), (vec![], vec![]));
    let user = "<interface type='user'><mac address='52:54:00:00:00:01'/></interface>";
    assert_eq!(translate(&domain("", user), "x").expect("translated").contracts, []);
}

#[test]
fn a_tap_without_a_name_is_explained() {
    let cold =
        bridge("<bandwidth><outbound average='1000'/></bandwidth>").replace("<target dev='vnet3'/>", "");
    let done = translate(&domain("", &cold), "web.xml").expect("translated");
    assert!(!done.contracts[0].attached);
    assert_eq!(done.to_toml(), "# Domain \"web 1\"\n");
    let text = done.explained();
    assert!(
        text.contains(
            "# attach: its tap gets a name when the domain starts\nmac      = \"52:54:00:00:00:01\""
        ),
        "{text}"
    );
}

#[test]
fn the_state_that_libvirt_keeps_is_read_too() {
    let actual = "<actual type='bridge'><source bridge='br0'/><bandwidth><inbound average='100'/></bandwidth></actual>";
    let inner = domain("", &bridge(actual).replace("type='bridge'>\n<mac", "type='network'>\n<mac"));
    let status = format!("<!-- made by libvirt -->\n<domstatus state='running'>\n{inner}\n</domstatus>");
    let done = translate(&status, "web.xml").expect("translated");
    assert_eq!(done.contracts[0].vnic.rx.max, Rate::from_bits(800_000));
}

#[test]
fn errors_have_their_line_and_column() {
    let one = |attributes: &str| contracts(&format!("\n<tg:vnic mac='52:54:00:00:00:01' {attributes}/>"));
    for (metadata, device, expected) in [
        (
            one("tx.max='500'"),
            bridge(""),
            "web.xml:4:34: vnic.web-1-525400000001.tx.max: rate \"500\" has no unit",
        ),
        (one("tx.maxx='500mbit'"), bridge(""), "unknown key; did you mean \"tx.max\"?"),
        (one("name='a b'"), bridge(""), "web.xml:4:34: vnic.a b.name: "),
        (one("attach.tap='x'"), bridge(""), "says where the interface is attached; remove this key"),
        (one("deadline='1ms'"), bridge(""), "tx.max"),
        (contracts("<tg:vnic tx.max='1mbit'/>"), bridge(""), "names no interface"),
        (contracts("<tg:nic mac='52:54:00:00:00:01'/>"), bridge(""), "<nic> has no meaning here"),
        (contracts("<vnic mac='52:54:00:00:00:01'/>"), bridge(""), "<vnic> has no meaning here"),
        (contracts("hello"), bridge(""), "this text has no meaning here"),
        (one("/><tg:vnic mac='52:54:00:00:00:01'"), bridge(""), "has two contracts here"),
        (
            "<x:contracts xmlns:x='https://tidegate.dev/libvirt/2'/>".into(),
            bridge(""),
            "expected <contracts> of",
        ),
        (
            one(""),
            bridge("").replace("bridge'>", "hostdev'>"),
            "interface of type hostdev, for which Tidegate can keep no contract",
        ),
        (one(""), bridge("").replace("vnet3", "a name that is far too long"), "attach.netdev"),
        (
            String::new(),
            bridge("<bandwidth><inbound average='fast'/></bandwidth>"),
            "whole number of kilobytes, not \"fast\"",
        ),
        (
            String::new(),
            bridge("<bandwidth><inbound average='99999999999'/></bandwidth>"),
            "more than 400 Gbit/s",
        ),
        (
            String::new(),
            bridge("<bandwidth><inbound speed='1'/></bandwidth>"),
            "<inbound> has no attribute speed",
        ),
        (String::new(), "<interface type='bridge'/>".into(), "no <mac address="),
        (String::new(), "<interface".into(), "this text is not valid XML"),
    ] {
        let error = refused(&metadata, &device);
        assert!(error.contains(expected), "{error}\nlacks: {expected}");
    }
    let error = translate("<network/>", "x").expect_err("no domain").to_string();
    assert!(error.contains("not <network>"), "{error}");
    let bomb = "<!DOCTYPE x [<!ENTITY a 'b'>]><domain><name>&a;</name></domain>";
    assert!(translate(bomb, "x").is_err());
}

#[test]
fn a_contract_for_no_interface_waits() {
    let done = translate(&domain(&contracts("<tg:vnic mac='52:54:00:00:00:09' tx.max='1mbit'/>"), ""), "x")
        .expect("ok");
    assert_eq!(done.contracts, []);
    assert!(done.notes[0].contains("52:54:00:00:00:09") && done.to_metadata().contains("tx.max=\"1mbit\""));
}

proptest! {
    /// Any domain name becomes a valid name of a vNIC.
    #[test]
    fn every_domain_has_a_name_for_its_vnics(domain in "\\PC{1,300}", mac in any::<[u8; 6]>()) {
        let vnic = format!("[vnic.{:?}]\nattach = {{ netdev = 'a' }}\nmac = '52:54:00:00:00:01'\nsegment = 0\n", name(&domain, Mac(mac)));
        prop_assert!(tidegate_contract::parse(&vnic, "x").is_ok(), "{}", vnic);
    }

    /// Any attribute is a contract or an error, and is printed as it was.
    #[test]
    fn attributes_are_read_as_they_were_written(name in "\\PC{0,20}", value in "[ -~\\n\\t]{0,30}", key in "(tx|rx)\\.(max|burst)|name|to|segment") {
        let element = format!("<tg:vnic mac='52:54:00:00:00:01' {key}=\"{}\" mtu=\"{}\"/>", escaped(&value), escaped(&name.replace(|c: char| c.is_control(), "")));
        let text = domain(&contracts(&element), &bridge(""));
        if let Ok(done) = translate(&text, "x") {
            let second = translate(&domain(&done.to_metadata(), &bridge("")), "x");
            prop_assert_eq!(second.expect("the same"), done);
        }
    }

    /// No text makes the reader panic.
    #[test]
    fn nonsense_is_an_error(text in "(<[a-z/]{0,8}( [a-z]{1,5}='[a-z0-9:]{0,20}')?/?>|[a-z ]){0,60}") {
        let _ = translate(&text, "x");
        let _ = translate(&domain(&text, &text), "x");
    }
}

#[test]
fn the_guests_limit_port_is_found() {
    let port = |kind: &str, mode: &str, name: &str, path: &str| {
        format!(
            "<channel type='{kind}'><source mode='{mode}'{path}/><target type='virtio' name='{name}' state='connected'/></channel>"
        )
    };
    let path = " path='/var/lib/libvirt/qemu/channel/target/domain-1-web/org.tidegate.limit.0'";
    let limited = bridge("<bandwidth><outbound average='128'/></bandwidth>");
    let guest = |channels: &str, asked: &str| {
        let done = translate(&domain(asked, &format!("{channels}{limited}")), "web.xml").expect("translated");
        done.contracts[0].vnic.guest.clone().map(|path| path.display().to_string())
    };
    let agent = port("unix", "bind", "org.qemu.guest_agent.0", " path='/run/agent'");
    let ours = port("unix", "bind", "org.tidegate.limit.0", path);
    let found = guest(&format!("{agent}{ours}"), "");
    assert_eq!(found.as_deref().map(|p| format!(" path='{p}'")).as_deref(), Some(path));
    // libvirt chooses that of a stopped domain later.
    assert_eq!(guest(&port("unix", "bind", "org.tidegate.limit.0", ""), ""), None);
    assert_eq!(guest(&format!("{agent}{}", port("unix", "connect", "org.tidegate.limit.0", path)), ""), None);
    assert_eq!(guest(&port("pty", "bind", "org.tidegate.limit.0", path), ""), None);
    let asked = contracts("<tg:vnic mac='52:54:00:00:00:01' guest='/run/other'/>");
    assert_eq!(guest(&ours, &asked).as_deref(), Some("/run/other"), "the metadata wins");
}
