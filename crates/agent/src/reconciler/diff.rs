//! The changes between two sets of contracts, key by key. Pure.

use crate::store::Contracts;
use crate::views::{ChangeAction, KeyChange, TableChange, VnicChange};
use serde::Serialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use tidegate_contract::cores::cpus::list;
use tidegate_contract::{FlowQueueing, Host, Located, Queueing, Remote, SegmentKeys, Uplink, Vnic};

/// Returns the changes of the vNICs in `named`, and of those that go.
pub fn vnics(old: &Contracts, new: &Contracts, named: &BTreeSet<String>) -> Vec<VnicChange> {
    let (old, new) = (old.by_name(), new.by_name());
    let gone = old.keys().copied().filter(|name| !new.contains_key(name));
    let names: BTreeSet<&str> = gone.chain(named.iter().map(String::as_str)).collect();
    names
        .into_iter()
        .map(|name| {
            let (before, after) = (old.get(name).copied(), new.get(name).copied());
            let action = match (before, after) {
                (None, None) => ChangeAction::None,
                (None, Some(_)) => ChangeAction::Create,
                (Some(_), None) => ChangeAction::Remove,
                (Some(b), Some(a)) if a == b => ChangeAction::None,
                (Some(_), Some(_)) => ChangeAction::Change,
            };
            let changes = match action {
                ChangeAction::Remove => vec![],
                _ => keys(
                    &before.map(vnic_keys).unwrap_or_default(),
                    &after.map(vnic_keys).unwrap_or_default(),
                ),
            };
            VnicChange { vnic: name.to_owned(), action, changes, not_in_force: None }
        })
        .collect()
}

pub fn host(old: &Contracts, new: &Contracts) -> Vec<KeyChange> {
    keys(&host_keys(&old.host()), &host_keys(&new.host()))
}

/// Returns the keys of `[host]` as a user writes them. Those of `[host.cores]` that have a default are always among them.
fn host_keys(host: &Host) -> BTreeMap<String, String> {
    let mut keys = flat(host);
    keys.extend(flat(&host.cores).into_iter().map(|(key, value)| (format!("cores.{key}"), value)));
    for (key, cpus) in [("cpus", &host.cores.cpus), ("housekeeping", &host.cores.housekeeping)] {
        if let Some(cpus) = cpus {
            keys.insert(format!("cores.{key}"), list(cpus));
        }
    }
    keys
}

/// Returns the uplinks, remotes and keys of segments that change, by path.
pub fn tables(old: &Contracts, new: &Contracts) -> Vec<TableChange> {
    let (old, new) = (all_tables(old), all_tables(new));
    let paths: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let change = |path: &String| {
        let (before, after) = (old.get(path), new.get(path));
        let action = match (before, after) {
            (None, _) => ChangeAction::Create,
            (_, None) => ChangeAction::Remove,
            (before, after) if before == after => return None,
            _ => ChangeAction::Change,
        };
        let none = BTreeMap::new();
        let changes = match action {
            ChangeAction::Remove => vec![],
            _ => keys(before.unwrap_or(&none), after.unwrap_or(&none)),
        };
        Some(TableChange { table: path.clone(), action, changes })
    };
    paths.into_iter().filter_map(change).collect()
}

/// Returns the keys of each uplink, remote and segment, as a user writes them.
fn all_tables(contracts: &Contracts) -> BTreeMap<String, BTreeMap<String, String>> {
    let mut tables = BTreeMap::new();
    if let Some(controller) = contracts.controller() {
        tables.insert("controller".into(), flat(&controller));
    }
    for (_, uplink) in contracts.uplinks() {
        let mut keys = flat(&Uplink { peers: vec![], controlled: false, ..uplink.clone() });
        for peer in &uplink.peers {
            let of_it = flat(peer).into_iter().filter(|(key, _)| key != "name");
            keys.extend(of_it.map(|(key, value)| (format!("peer.{}.{key}", peer.name), value)));
        }
        keys.remove("name");
        tables.insert(format!("uplink.{}", uplink.name), keys);
    }
    for (_, Located { value: remote, .. }) in contracts.all::<Remote>() {
        let mut keys = flat(remote);
        keys.remove("name");
        tables.insert(format!("remote.{}", remote.name), keys);
    }
    for (_, Located { value: segment, .. }) in contracts.all::<SegmentKeys>() {
        let mut keys = flat(segment);
        keys.remove("segment");
        tables.insert(format!("segment.{}", segment.segment), keys);
    }
    tables
}

fn keys(old: &BTreeMap<String, String>, new: &BTreeMap<String, String>) -> Vec<KeyChange> {
    let all: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    all.into_iter()
        .filter(|key| old.get(*key) != new.get(*key))
        .map(|key| KeyChange { key: key.clone(), from: old.get(key).cloned(), to: new.get(key).cloned() })
        .collect()
}

/// Returns the keys as a user writes them, without the name, which is no key.
fn vnic_keys(vnic: &Vnic) -> BTreeMap<String, String> {
    let mut keys = flat(vnic);
    keys.remove("name");
    // In a file this is a value of `allowed.macs`.
    if keys.remove("allowed.any-mac").is_some_and(|any| any == "true") {
        keys.insert("allowed.macs".into(), "any".into());
    }
    keys.retain(|key, _| !key.starts_with("attach.") && !key.starts_with("queueing"));
    let word = match vnic.queueing {
        Queueing::Fifo => "fifo",
        Queueing::Flows(_) => "flows",
    };
    keys.insert("queueing".into(), word.into());
    if let Queueing::Flows(FlowQueueing { target, interval, per_host }) = vnic.queueing {
        let default = FlowQueueing::default();
        let settings = [
            ("target", (target != default.target).then(|| target.to_string())),
            ("interval", (interval != default.interval).then(|| interval.to_string())),
            ("per-host", per_host.then(|| "true".into())),
        ];
        let stated =
            settings.into_iter().filter_map(|(key, value)| Some((format!("queueing.{key}"), value?)));
        keys.extend(stated);
    }
    keys.extend(vnic.attach.keys().into_iter().map(|(key, value)| (format!("attach.{key}"), value)));
    keys
}

fn flat(value: &impl Serialize) -> BTreeMap<String, String> {
    let mut keys = BTreeMap::new();
    if let Ok(value) = serde_json::to_value(value) {
        flatten("", &value, &mut keys);
    }
    keys
}

fn flatten(prefix: &str, value: &Value, into: &mut BTreeMap<String, String>) {
    let text = match value {
        Value::Null => return,
        Value::Object(map) => {
            for (key, value) in map {
                let key = key.replace('_', "-");
                let path = if prefix.is_empty() { key } else { format!("{prefix}.{key}") };
                flatten(&path, value, into);
            }
            return;
        }
        Value::Array(items) if items.is_empty() => return,
        Value::Array(items) => {
            let words: Vec<String> =
                items.iter().map(|i| i.as_str().map_or_else(|| i.to_string(), Into::into)).collect();
            words.join(",")
        }
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    into.insert(prefix.to_owned(), text);
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_contract::Document;
    use tidegate_testkit::contract::{tap, vnic};

    fn contracts(vnics: &[Vnic]) -> Contracts {
        let vnics = vnics.iter().map(|v| Located::without_line(v.clone(), "test")).collect();
        Contracts { api: Document { vnics, ..Document::default() }, ..Contracts::default() }
    }

    #[test]
    fn names_the_keys_that_change() {
        let old = contracts(&[vnic("a", 1), vnic("b", 2), vnic("c", 3), vnic("other", 9)]);
        let mut changed = vnic("b", 2);
        changed.tx.max = Some("500mbit".parse().unwrap());
        changed.to = vec!["a".into(), "uplink".into()];
        changed.allowed.any_mac = true;
        changed.allowed.dhcp_server = true;
        changed.attach = tap("tg0");
        changed.queueing = Queueing::Flows(FlowQueueing {
            target: "2ms".parse().unwrap(),
            per_host: true,
            ..FlowQueueing::default()
        });
        let new = contracts(&[vnic("a", 1), changed, vnic("d", 4), vnic("other", 9)]);
        let named = ["a", "b", "d"].map(String::from).into();
        let got = vnics(&old, &new, &named);
        let actions: Vec<_> = got.iter().map(|c| (c.vnic.as_str(), c.action)).collect();
        use ChangeAction::{Change, Create, None, Remove};
        assert_eq!(actions, [("a", None), ("b", Change), ("c", Remove), ("d", Create)]);
        let change = |key: &str, from: Option<&str>, to: Option<&str>| KeyChange {
            key: key.into(),
            from: from.map(Into::into),
            to: to.map(Into::into),
        };
        assert_eq!(
            got[1].changes,
            [
                change("allowed.dhcp-server", Option::None, Some("true")),
                change("allowed.macs", Option::None, Some("any")),
                change("attach.mode", Some("server"), Option::None),
                change("attach.tap", Option::None, Some("tg0")),
                change("attach.vhost-user", Some("/run/tidegate/vm/b.sock"), Option::None),
                change("queueing.per-host", Option::None, Some("true")),
                change("queueing.target", Option::None, Some("2ms")),
                change("to", Option::None, Some("a,uplink")),
                change("tx.max", Option::None, Some("500mbit")),
            ]
        );
        assert!(got[3].changes.contains(&change("queueing", Option::None, Some("flows"))));
        let net = |rate: &str, peers: &str| {
            let text = format!("[uplink.net0]\nlocal = \"192.0.2.1\"\nrate = \"{rate}\"\n{peers}");
            Contracts { api: tidegate_contract::parse(&text, "test").unwrap(), ..Contracts::default() }
        };
        let peer = "peer.b = { address = \"192.0.2.2\", segments = [7, 8] }\n[segment.7]\nkey-file = \"/k\"";
        let table = |table: &str, action, changes| TableChange { table: table.into(), action, changes };
        let to = [
            change("peer.b.address", Option::None, Some("192.0.2.2")),
            change("peer.b.segments", Option::None, Some("7,8")),
            change("peer.b.stamps", Option::None, Some("true")),
            change("rate", Some("1gbit"), Some("2gbit")),
        ];
        let key_file = change("key-file", Option::None, Some("/k"));
        assert_eq!(
            tables(&net("1gbit", ""), &net("2gbit", peer)),
            [table("segment.7", Create, vec![key_file]), table("uplink.net0", Change, to.into())]
        );
        assert_eq!(tables(&net("1gbit", ""), &contracts(&[])), [table("uplink.net0", Remove, vec![])]);
        assert_eq!(tables(&net("1gbit", ""), &net("1gbit", "")), []);
        let host = |text: &str| {
            let text = format!("[host.cores]\n{text}");
            Contracts { api: tidegate_contract::parse(&text, "test").unwrap(), ..Contracts::default() }
        };
        let plan = "placement = \"plan\"\ncpus = \"2-4,6\"\nsteer = [\"eth1\"]\n[host.flow.a]\ndevice = \"eth1\"\nfrom-port = 7\nprotocol = 17";
        let flow = |key: &str, to: &str| change(&format!("flow.a.{key}"), Option::None, Some(to));
        let wanted = [
            change("cores.cpus", Option::None, Some("2-4,6")),
            change("cores.placement", Some("off"), Some("plan")),
            change("cores.steer", Option::None, Some("eth1")),
            flow("device", "eth1"),
            flow("from-port", "7"),
            flow("protocol", "17"),
            flow("tunnel", "none"),
        ];
        assert_eq!(super::host(&contracts(&[]), &host(plan)), wanted);
        assert!(got[0].changes.is_empty() && got[3].changes.iter().any(|c| c.key == "mac"));
    }
}
