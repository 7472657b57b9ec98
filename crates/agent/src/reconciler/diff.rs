//! The changes between two sets of contracts, key by key. Pure.

use crate::store::Contracts;
use crate::views::{ChangeAction, KeyChange, VnicChange};
use serde::Serialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use tidegate_contract::{FlowQueueing, Queueing, Vnic};

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
    keys(&flat(&old.host()), &flat(&new.host()))
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
    use tidegate_contract::{Document, Located};
    use tidegate_testkit::contract::{tap, vnic};

    fn contracts(vnics: &[Vnic]) -> Contracts {
        let vnics = vnics.iter().map(|v| Located::without_line(v.clone(), "test")).collect();
        Contracts { api: Document { host: None, vnics }, ..Contracts::default() }
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
        assert!(got[0].changes.is_empty() && got[3].changes.iter().any(|c| c.key == "mac"));
    }
}
