//! The rules of the `[controller]` table, and of contracts that ask it for paths.
//!
//! ```text
//!  Controller ─▶ urls, name, files ─▶ Problem
//!  uplinks ─▶ each is one of the host ──────────────────────────────┐
//!  vNIC: on-refused, on-unreachable ─▶ `to` leads over one of them ─┴▶ Errors
//! ```

use super::between::may_come;
use super::rules::{Problem, Rules};
use super::taken::error_at;
use super::uplink::absolute_file;
use super::vnic::vnic_name;
use crate::controller::Identity;
use crate::error::ErrorList;
use crate::suggest::did_you_mean;
use crate::{Controller, Document, Error, UPLINK, Vnic};
use std::collections::{HashMap, HashSet};

/// Most URLs: members of one cluster of controllers.
const URLS: usize = 8;
/// Longest URL: a name of 253 characters (RFC 1035, 2.3.4), its scheme and port.
const URL: usize = 268;
/// Most uplinks: as many as a host has.
const UPLINKS: usize = 16;

impl Controller {
    /// Checks all rules of the table by itself; opens no file.
    ///
    /// # Errors
    /// Every broken rule, with its key.
    pub fn check(&self) -> Result<(), Vec<Problem>> {
        let mut rules = Rules::default();
        if self.urls.is_empty() {
            rules.add_problem("url", "no URL is listed; write one such as \"https://10.0.0.1:6654\"");
        }
        rules.check_distinct("url", &self.urls, URLS);
        let is_plain = matches!(self.identity, Identity::Token { .. });
        for address in self.urls.iter().take(URLS) {
            if let Err(message) = check_url(address, is_plain) {
                rules.add_problem("url", message);
            }
        }
        if let Err(message) = vnic_name(&self.host) {
            rules.add_problem("host", message);
        }
        let files = match &self.identity {
            Identity::Token { file } => vec![("token-file", file)],
            Identity::Certificate { ca, certificate, key } => {
                vec![("ca", ca), ("certificate", certificate), ("key", key)]
            }
        };
        for (name, file) in files {
            if let Err(message) = absolute_file(file, "/etc/tidegate/controller/ca.pem") {
                rules.add_problem(name, message);
            }
        }
        if self.uplinks.is_empty() {
            rules.add_problem("uplinks", "no uplink is listed; name those whose network it controls");
        }
        rules.check_distinct("uplinks", &self.uplinks, UPLINKS);
        rules.result()
    }
}

/// Checks a base URL: `http://` or `https://`, a host, and perhaps a port (RFC 3986, 3.2).
fn check_url(address: &str, is_plain: bool) -> Result<(), String> {
    let shown = address.chars().take(URL).collect::<String>();
    let rest = address.strip_prefix("https://").or_else(|| address.strip_prefix("http://"));
    let Some(authority) = rest.filter(|_| address.len() <= URL) else {
        return Err(format!("{shown:?} is no URL; write one such as \"https://10.0.0.1:6654\""));
    };
    if address.starts_with("http://") != is_plain {
        return Err(format!(
            "{shown:?} has another scheme than the first one; a host has one identity at all controllers"
        ));
    }
    let (host, port) = match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((inside, after)) => {
            if inside.parse::<std::net::Ipv6Addr>().is_err() {
                return Err(format!("{shown:?} has no IPv6 address in its brackets"));
            }
            (inside, after)
        }
        None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
    };
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | ':');
    if host.is_empty() || !host.chars().all(is_of_name) || port.contains(['/', '?', '#', '@']) {
        return Err(format!(
            "{shown:?} has more than scheme, host and port; write one such as \"https://10.0.0.1:6654\""
        ));
    }
    let is_port =
        |port: &str| port.bytes().all(|b| b.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|p| p > 0);
    if !port.is_empty() && !port.strip_prefix(':').is_some_and(is_port) {
        return Err(format!("{shown:?} has no port from 1 to 65535 after its host"));
    }
    Ok(())
}

/// Notes every broken rule between the table and others.
pub(super) fn check(errors: &mut ErrorList, document: &Document) {
    let controller = document.controller.as_ref();
    if let Some(located) = controller {
        for name in &located.value.uplinks {
            let names = document.uplinks.iter().map(|uplink| uplink.value.name.as_str());
            if names.clone().any(|known| known == name) {
                continue;
            }
            errors.note(|| Error {
                file: located.file.clone(),
                line: located.line,
                column: 0,
                key: "controller.uplinks".into(),
                message: format!("there is no uplink {name:?}{}", did_you_mean(name, names)),
                excerpt: None,
            });
        }
    }
    let gives_keys = |controller: &Controller| matches!(controller.identity, Identity::Certificate { .. });
    for keys in document.segments.iter().filter(|keys| keys.value.key_file.is_none()) {
        let message = match controller.map(|located| &located.value) {
            None => "no controller is asked: write [controller], or key-file = FILE",
            Some(asked) if !gives_keys(asked) => {
                "the controller gives keys to certificates alone: write ca, certificate and key in [controller], or \
                 key-file = FILE"
            }
            Some(_) => continue,
        };
        errors.note(|| error_at(keys, "key", message.to_owned()));
    }
    let serves = |uplink: &str| controller.is_some_and(|located| located.value.serves(uplink));
    let served = || document.uplinks.iter().filter(|uplink| serves(&uplink.value.name));
    let peers: HashMap<&str, &str> = served()
        .flat_map(|uplink| {
            uplink.value.peers.iter().map(|peer| (peer.name.as_str(), uplink.value.name.as_str()))
        })
        .collect();
    let remotes: HashMap<&str, &str> =
        document.remotes.iter().map(|r| (r.value.name.as_str(), r.value.peer.as_str())).collect();
    let vnics: HashSet<&str> = document.vnics.iter().map(|vnic| vnic.value.name.as_str()).collect();
    let asks = |vnic: &Vnic, to: &str| match to {
        UPLINK => served().next().is_some(),
        name => match remotes.get(name) {
            Some(peer) => peers.contains_key(peer),
            None => !vnics.contains(name) && may_come(controller.is_some(), vnic),
        },
    };
    for located in &document.vnics {
        let vnic = &located.value;
        let keys =
            [("on-refused", vnic.on_refused.is_some()), ("on-unreachable", vnic.on_unreachable.is_some())];
        let Some((key, _)) = keys.iter().find(|(_, is_given)| *is_given) else { continue };
        if !vnic.to.iter().any(|to| asks(vnic, to)) {
            errors.note(|| {
                let message = if controller.is_none() {
                    "no controller is asked for paths: write [controller], or remove this key".to_owned()
                } else {
                    "no remote in `to` is behind an uplink of [controller], so no path is asked for; add the uplink to \
                     controller.uplinks, or remove this key"
                        .to_owned()
                };
                error_at(located, key, message)
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{check_set, parse};

    const NET: &str = "\
[controller]
url = [\"http://127.0.0.1:6654\"]
host = \"h1\"
token-file = \"/etc/token\"
uplinks = [\"net0\"]

[uplink.net0]
local = \"192.0.2.1\"
rate = \"10gbit\"
peer.host2.address = \"192.0.2.2\"

[remote.plc9]
mac = \"52:54:00:00:00:09\"
segment = 42
peer = \"host2\"

[vnic.plc1]
attach = { vhost-user = \"/run/tidegate/vm/plc1.sock\" }
mac = \"52:54:00:00:00:01\"
segment = 42
tx = { max = \"10mbit\", burst = \"4kB\" }
deadline = \"2ms\"
to = [\"plc9\"]
on-refused = \"best-effort\"
on-unreachable = \"wait\"
mtu = 1418
";

    #[test]
    fn keys_about_paths_need_a_path() {
        let said = |from: &str, to: &str| {
            assert!(NET.contains(from), "{from}");
            let document =
                parse(&NET.replacen(from, to, 1), "n.toml").map_err(|errors| errors.to_string())?;
            check_set(&document).map_err(|errors| errors.to_string())
        };
        assert_eq!(said("", ""), Ok(()));
        assert_eq!(said("[\"plc9\"]", "[\"uplink\"]"), Ok(()));
        // Where a vNIC of another host is, the controller may still say.
        assert_eq!(said("[\"plc9\"]", "[\"plc7\"]"), Ok(()));
        assert_eq!(
            said(
                "peer.host2.address = \"192.0.2.2\"\n\n[remote.plc9]",
                "peer.host2.address = \"192.0.2.2\"\n\n[remote.plc8]"
            ),
            Ok(())
        );
        for (from, to, wanted) in [
            ("[\"plc9\"]", "[\"net0\"]", "vnic.plc1.to: net0 is an uplink; write \"uplink\" for every host"),
            (
                "[\"net0\"]",
                "[\"net\"]",
                "n.toml:1: controller.uplinks: there is no uplink \"net\"; did you mean \"net0\"?",
            ),
            (
                "[\"net0\"]",
                "[\"net\"]",
                "vnic.plc1.on-refused: no remote in `to` is behind an uplink of [controller]",
            ),
            ("deadline = \"2ms\"\n", "", "vnic.plc1.on-refused: it is about a deadline's path"),
            (
                "\"best-effort\"",
                "\"never\"",
                "vnic.plc1.on-refused: \"never\" is unknown; \"fail\" or \"best-effort\"",
            ),
            (
                "\"wait\"",
                "\"fail\"",
                "vnic.plc1.on-unreachable: \"fail\" is unknown; \"best-effort\" or \"wait\"",
            ),
            ("on-refused", "on-refuse", "vnic.plc1.on-refuse: unknown key; did you mean \"on-refused\"?"),
        ] {
            let text = said(from, to).expect_err(wanted);
            assert!(text.contains(wanted), "{wanted}: {text}");
        }
        let keys = "[segment.42]\nkey = \"controller\"\n\n[remote.plc9]";
        let text = said("[remote.plc9]", keys).expect_err("a token");
        assert!(text.contains("segment.42.key: the controller gives keys to certificates alone"), "{text}");
        let (_, without) = NET.split_once("\n\n").expect("a table");
        let text =
            check_set(&parse(without, "n.toml").expect("parses")).expect_err("no controller").to_string();
        assert!(text.contains("on-refused: no controller is asked for paths: write [controller]"), "{text}");
    }
}
