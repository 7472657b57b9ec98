//! The rules of `transport = "rdma"` and of an uplink's `rdma`.
//!
//! ```text
//!  vNIC: attachment, mtu ─────────────────────────────▶ Problem
//!  uplink: name of a device ──────────────────────────▶ Problem
//!  vNIC ─ segment ─▶ uplink with `rdma`? keys? no path ─▶ Errors
//! ```

use super::rules::Rules;
use super::taken::error_at;
use crate::error::ErrorList;
use crate::rdma::{LARGEST_MTU, LONGEST_NAME, is_device_name, why_too_long};
use crate::reach::Reach;
use crate::{Attach, Document, Transport, Uplink, Vnic};
use std::collections::HashSet;

/// Checks one vNIC by itself.
pub(super) fn check_vnic(rules: &mut Rules, vnic: &Vnic) {
    check_zero_copy(rules, vnic);
    if vnic.transport != Transport::Rdma {
        return;
    }
    if !vnic.uses_uplinks() {
        let message = "frames of vhost-user and tap attachments alone leave by an uplink; attach the vNIC so, or remove \
                       this key";
        rules.add_problem("transport", message);
    } else if let Some(why) = why_too_long(vnic, LARGEST_MTU.into()) {
        rules.add_problem("mtu", why);
    }
}

/// Checks `zero-copy`.
fn check_zero_copy(rules: &mut Rules, vnic: &Vnic) {
    if !vnic.zero_copy {
        return;
    }
    if !matches!(vnic.attach, Attach::VhostUser { .. }) {
        let message = format!(
            "a {} attachment shares no memory of the guest with the switch; attach the vNIC by vhost-user, or remove this key",
            vnic.attach.kind()
        );
        rules.add_problem("zero-copy", message);
    } else if vnic.transport != Transport::Rdma {
        let message = "it has no effect without transport = \"rdma\"; write that, too, or remove this key";
        rules.add_problem("zero-copy", message);
    }
}

/// Checks the name of a device.
pub(super) fn check_device(rules: &mut Rules, device: &str) {
    if !is_device_name(device) {
        let message = format!(
            "{device:?} is no name of an RDMA device: 1 to {LONGEST_NAME} of letters, digits, '.', '_' and '-', none of '.' and \
             '-' first; `rdma link` lists them"
        );
        rules.add_problem("rdma", message);
    }
}

/// Checks what vNICs need of uplinks and segments.
pub(super) fn check(errors: &mut ErrorList, document: &Document) {
    let uplinks: Vec<_> = document.uplinks.iter().map(|uplink| Reach::new(&uplink.value)).collect();
    let keyed: HashSet<_> = document.segments.iter().map(|keys| keys.value.segment).collect();
    for located in document.vnics.iter().filter(|vnic| vnic.value.transport == Transport::Rdma) {
        let vnic = &located.value;
        let of_segment = || uplinks.iter().filter(|reach| reach.carries(vnic.segment));
        let by_rdma: Vec<&Uplink> =
            of_segment().map(|reach| reach.uplink).filter(|uplink| uplink.rdma.is_some()).collect();
        if by_rdma.is_empty() {
            errors.note(|| {
                let message = match of_segment().next() {
                    Some(reach) => format!(
                        "no uplink of segment {} has an RDMA device; write rdma = \"DEVICE\" in [uplink.{}]",
                        vnic.segment, reach.uplink.name
                    ),
                    None => format!(
                        "no uplink carries segment {}; write an [uplink.NAME] with rdma",
                        vnic.segment
                    ),
                };
                error_at(located, "transport", message)
            });
        }
        if !keyed.contains(&vnic.segment) {
            errors.note(|| {
                let message = format!(
                    "queue pairs of segment {0} are announced under its key; write [segment.{0}] with key-file",
                    vnic.segment
                );
                error_at(located, "transport", message)
            });
        }
        let reached =
            |uplink: &&Uplink| uplink.peers.iter().any(|peer| peer.stamps && peer.carries(vnic.segment));
        if let Some(uplink) = by_rdma.iter().find(|uplink| !reached(uplink)) {
            errors.note(|| {
                let message = format!(
                    "peers of uplink {} with stamps = false hear of no queue pair, and have none of segment {}; remove stamps \
                     = false at the peer whose vNICs it is to reach, or remove this key",
                    uplink.name, vnic.segment
                );
                error_at(located, "transport", message)
            });
        }
        let is_served = |uplink: &&&Uplink| {
            document.controller.as_ref().is_some_and(|controller| controller.value.serves(&uplink.name))
        };
        if let Some(uplink) = by_rdma.iter().find(is_served).filter(|_| vnic.is_realtime()) {
            errors.note(|| {
                let message = format!(
                    "a path of [controller] is known by a UDP source port of its own, and datagrams of RDMA have none that \
                     lasts; remove this key, the deadline, or {} from controller.uplinks",
                    uplink.name
                );
                error_at(located, "transport", message)
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Transport, check_set, parse, set_key};

    const HOST: &str = "\
[uplink.net0]
local = \"192.0.2.1\"
rate = \"10gbit\"
mtu = 4200
rdma = \"rxe0\"
peer.host2.address = \"192.0.2.2\"

[segment.42]
key-file = \"/etc/key\"

[vnic.a]
attach = { vhost-user = \"/run/tidegate/vm/a.sock\" }
mac = \"52:54:00:00:00:01\"
segment = 42
transport = \"rdma\"
";

    fn errors(text: &str) -> String {
        let document = match parse(text, "a.toml") {
            Ok(document) => document,
            Err(errors) => return errors.to_string(),
        };
        check_set(&document).err().map_or_else(String::new, |errors| errors.to_string())
    }

    #[test]
    fn a_vnic_by_rdma_needs_a_device_and_a_key() {
        assert_eq!(errors(HOST), "");
        let document = parse(HOST, "a.toml").expect("parses");
        assert_eq!(document.vnics[0].value.transport, Transport::Rdma);
        assert_eq!(document.uplinks[0].value.rdma.as_deref(), Some("rxe0"));
        assert!(document.vnics[0].value.to_toml().contains("transport = \"rdma\""));
        for (from, to, expected) in [
            (
                "rdma = \"rxe0\"\n",
                "",
                "vnic.a.transport: no uplink of segment 42 has an RDMA device; write rdma = \"DEVICE\" in [uplink.net0]",
            ),
            ("[segment.42]\nkey-file = \"/etc/key\"\n", "", "write [segment.42] with key-file"),
            ("segment = 42\n", "segment = 43\n", "write [segment.43] with key-file"),
            (
                "peer.host2.address = \"192.0.2.2\"\n",
                "peer.host2 = { address = \"192.0.2.2\", stamps = false }\n",
                "vnic.a.transport: peers of uplink net0 with stamps = false hear of no queue pair",
            ),
            ("\"rdma\"\n", "\"roce\"\n", "vnic.a.transport: \"roce\" is unknown; \"uplink\" or \"rdma\""),
            ("\"rxe0\"", "\"../rxe0\"", "uplink.net0.rdma: \"../rxe0\" is no name of an RDMA device"),
            ("\"rxe0\"", "\"-x\"", "uplink.net0.rdma: \"-x\" is no name of an RDMA device"),
            (
                "segment = 42\n",
                "segment = 42\nmtu = 4060\n",
                "vnic.a.mtu: mtu = 4060 does not fit: a datagram of the RDMA device has at most 4096 bytes, 46 of them",
            ),
            (
                "{ vhost-user = \"/run/tidegate/vm/a.sock\" }",
                "{ netdev = \"vnet0\" }",
                "vnic.a.transport: frames of vhost-user and tap attachments alone",
            ),
            (
                "local = \"192.0.2.1\"\n",
                "kind = \"packet\"\ndevice = \"eth0\"\n",
                "uplink.net0.rdma: has no effect with kind = \"packet\"",
            ),
        ] {
            assert!(HOST.contains(from), "{from}");
            let said = errors(&HOST.replacen(from, to, 1));
            assert!(said.contains(expected), "{from} -> {to}: {said}");
        }
    }

    #[test]
    fn zero_copy_needs_memory_that_the_switch_shares_and_a_queue_pair() {
        let with = |change: &[(&str, &str)]| {
            let text = HOST.replace("\"rdma\"\n", "\"rdma\"\nzero-copy = true\n");
            change.iter().fold(text, |text, (from, to)| text.replace(from, to))
        };
        assert_eq!(errors(&with(&[])), "");
        let vnic = parse(&with(&[]), "a.toml").expect("parses").vnics.remove(0).value;
        assert!(vnic.zero_copy && vnic.to_toml().contains("zero-copy = true"), "{}", vnic.to_toml());
        let unset = set_key(&vnic, &[("zero-copy".into(), "false".into())]).expect("valid");
        assert!(!unset.zero_copy && !unset.to_toml().contains("zero-copy"));
        let vhost_user = "{ vhost-user = \"/run/tidegate/vm/a.sock\" }";
        let said = errors(&with(&[("transport = \"rdma\"\n", "")]));
        assert!(said.contains("vnic.a.zero-copy: it has no effect without transport = \"rdma\""), "{said}");
        for (attach, kind) in [
            ("{ tap = \"tap0\" }", "tap"),
            ("{ netdev = \"vnet0\" }", "netdev"),
            ("{ vf = \"eth0/1\" }", "vf"),
        ] {
            let said = errors(&with(&[(vhost_user, attach)]));
            assert!(
                said.contains(&format!("vnic.a.zero-copy: a {kind} attachment shares no memory")),
                "{said}"
            );
        }
        let said = errors(&with(&[("zero-copy = true", "zero-copy = \"yes\"")]));
        assert!(said.contains("vnic.a.zero-copy: expected true or false, found string"), "{said}");
    }

    #[test]
    fn a_path_of_the_controller_and_rdma_exclude_each_other() {
        let controlled = "\
[controller]
url = [\"http://127.0.0.1:6654\"]
host = \"h1\"
token-file = \"/etc/token\"
uplinks = [\"net0\"]

";
        let text = format!("{controlled}{HOST}");
        assert_eq!(errors(&text), "");
        let deadline = "tx = { max = \"10mbit\", burst = \"8kB\" }\ndeadline = \"2ms\"\nto = [\"uplink\"]\n";
        let said = errors(&format!("{text}{deadline}"));
        assert!(said.contains("vnic.a.transport: a path of [controller]"), "{said}");
    }
}
