//! A running domain's threads, and the CPUs that libvirt chose for them.
//!
//! ```text
//!  /run/libvirt/qemu/NAME.xml: <domstatus pid=...> ─┬─ <vcpus>: threads of virtual CPUs ─┐
//!                                                   └─ <domain> <cputune>: CPUs ─────────┴─▶ Running
//! ```
//!
//! Source of the format: libvirt, formatdomain, "CPU Tuning"; its state by `qemuDomainObjPrivateXMLFormat` (qemu_domain.c).

use crate::xml::{Source, child, child_attribute, children};
use roxmltree::Node;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use tidegate_contract::Errors;

/// A running domain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Running {
    /// Its name.
    pub name: String,
    /// QEMU's process.
    pub process: u32,
    /// Threads of virtual CPUs, by the number of the CPU; empty where libvirt does not know them.
    pub vcpus: BTreeMap<u32, u32>,
    /// The network interfaces of its vNICs.
    pub interfaces: BTreeSet<String>,
    /// The vhost-user sockets of its vNICs.
    pub sockets: BTreeSet<PathBuf>,
    /// The CPUs that libvirt chose.
    pub pins: Pins,
}

/// Which of a domain's threads have CPUs by libvirt, and which, as libvirt lists them; empty where it does not say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pins {
    /// All that have no element of their own: `<vcpu cpuset=...>`, or CPUs that numad chose (`placement='auto'`).
    pub all: Option<String>,
    /// These virtual CPUs: `<vcpupin>`.
    pub vcpus: BTreeMap<u32, String>,
    /// The emulator's threads and vhost's, which have its cgroup: `<emulatorpin>`.
    pub emulator: Option<String>,
    /// These I/O threads: `<iothreadpin>`.
    pub io: BTreeMap<u32, String>,
}

/// Reads libvirt's state of a domain.
///
/// # Errors
/// It is no XML, or not such a state.
pub fn running(text: &str, origin: &str) -> Result<Running, Errors> {
    let source = Source { text, origin };
    let document = source.parse()?;
    let root = document.root_element();
    let number = |node: Node<'_, '_>, name: &str| node.attribute(name)?.parse::<u32>().ok();
    let wrong = |what: &str| Errors(vec![source.error_at_element(root, "", what)]);
    let process = number(root, "pid").filter(|_| root.tag_name().name() == "domstatus");
    let process =
        process.ok_or_else(|| wrong("expected the state of a running domain: <domstatus pid=...>"))?;
    let domain = child(root, "domain").ok_or_else(|| wrong("the state has no <domain>"))?;
    let name = child(domain, "name").and_then(|node| node.text()).unwrap_or_default().trim().to_owned();
    let vcpus = children(root, "vcpus").flat_map(|node| children(node, "vcpu"));
    let vcpus = vcpus.filter_map(|node| Some((number(node, "id")?, number(node, "pid")?)));

    let tuning = || children(domain, "cputune");
    let cpus = |node: Node<'_, '_>| node.attribute("cpuset").unwrap_or_default().to_owned();
    let pinned = |element: &'static str, attribute: &'static str| {
        let elements = tuning().flat_map(move |node| children(node, element));
        elements.filter_map(move |node| Some((number(node, attribute)?, cpus(node))))
    };
    let by_numad = || {
        let is_auto = child_attribute(domain, "vcpu", "placement") == Some("auto");
        is_auto.then(|| child_attribute(root, "numad", "cpuset").unwrap_or_default().to_owned())
    };
    let pins = Pins {
        all: child_attribute(domain, "vcpu", "cpuset").map(str::to_owned).or_else(by_numad),
        vcpus: pinned("vcpupin", "vcpu").collect(),
        emulator: tuning().find_map(|node| child(node, "emulatorpin")).map(cpus),
        io: pinned("iothreadpin", "iothread").collect(),
    };

    let interfaces = || children(domain, "devices").flat_map(|devices| children(devices, "interface"));
    let sockets = interfaces().filter(|node| node.attribute("type") == Some("vhostuser"));
    Ok(Running {
        name,
        process,
        vcpus: vcpus.collect(),
        interfaces: interfaces()
            .filter_map(|node| child_attribute(node, "target", "dev"))
            .map(str::to_owned)
            .collect(),
        sockets: sockets
            .filter_map(|node| child_attribute(node, "source", "path"))
            .map(PathBuf::from)
            .collect(),
        pins,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STATE: &str = "
        <domstatus state='running' reason='booted' pid='4711'>
          <vcpus><vcpu id='0' pid='4720'/><vcpu id='1' pid='4721'/><vcpu id='x' pid='1'/></vcpus>
          <domain type='kvm' id='1'>
            <name>plc</name>
            <vcpu placement='static'>2</vcpu>
            <cputune>
              <vcpupin vcpu='0' cpuset='2'/><emulatorpin cpuset='1'/><iothreadpin iothread='1' cpuset='1'/>
            </cputune>
            <devices>
              <interface type='bridge'><target dev='vnet0'/></interface>
              <interface type='vhostuser'><source type='unix' path='/run/a.sock' mode='client'/></interface>
            </devices>
          </domain>
        </domstatus>";

    #[test]
    fn threads_and_pins() {
        let expected = Running {
            name: "plc".into(),
            process: 4711,
            vcpus: [(0, 4720), (1, 4721)].into(),
            interfaces: ["vnet0".into()].into(),
            sockets: ["/run/a.sock".into()].into(),
            pins: Pins {
                all: None,
                vcpus: [(0, "2".into())].into(),
                emulator: Some("1".into()),
                io: [(1, "1".into())].into(),
            },
        };
        assert_eq!(running(STATE, "plc.xml").unwrap(), expected);
        let numad = "<numad nodeset='0' cpuset='4-7'/>";
        let cases = [
            ("placement='auto'", "", ""),
            ("placement='auto'", numad, "4-7"),
            ("placement='static' cpuset='0-3'", numad, "0-3"),
        ];
        for (placement, chosen, cpus) in cases {
            let state = STATE
                .replace("placement='static'", placement)
                .replace("<vcpus>", &format!("{chosen}<vcpus>"));
            assert_eq!(running(&state, "").unwrap().pins.all.as_deref(), Some(cpus), "{placement}");
        }
    }

    #[test]
    fn a_captured_state() {
        let expected = Running {
            name: "plc".into(),
            process: 28_429,
            vcpus: [(0, 28_436), (1, 28_437)].into(),
            interfaces: ["vnet1".into()].into(),
            sockets: BTreeSet::new(),
            pins: Pins {
                all: None,
                vcpus: [(0, "1".into())].into(),
                emulator: Some("0".into()),
                io: [(1, "0".into())].into(),
            },
        };
        assert_eq!(running(include_str!("../tests/captured/running.xml"), "plc.xml").unwrap(), expected);
    }

    #[test]
    fn only_the_state_of_a_running_domain() {
        for wrong in ["<domain/>", "<domstatus pid='a'><domain/></domstatus>", "<domstatus pid='1'/>", "x"] {
            assert!(running(wrong, "a.xml").is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn a_spoilt_state_is_an_error_or_read(at in 0_usize..900, with in "[<>/'a-z&]{0,3}") {
            let at = at.min(STATE.len());
            let _ = running(&format!("{}{with}{}", &STATE[..at], &STATE[at..]), "a.xml");
            let _ = running(&STATE[..at], "a.xml");
        }
    }
}
