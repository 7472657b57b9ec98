//! The keys a contract may have, per table.

pub(crate) const ROOT: &[&str] = &["host", "vnic"];
pub(crate) const HOST: &[&str] = &[
    "host-latency",
    "host_latency",
    "busy-poll",
    "busy_poll",
    "uplink",
    "flood",
    "flood-burst",
    "flood_burst",
    "nic",
];
pub(crate) const NIC: &[&str] = &["capacity", "control", "period", "segment"];
pub(crate) const AGGREGATE: &[&str] = &["max", "min"];
pub(crate) const VNIC: &[&str] = &[
    "attach", "mac", "segment", "tx", "rx", "queueing", "weight", "deadline", "to", "allowed", "mtu",
    "queues", "guest",
];
pub(crate) const TX: &[&str] = &["max", "min", "burst", "method"];
pub(crate) const RX: &[&str] = &["max", "burst", "discipline", "queue"];
pub(crate) const QUEUEING: &[&str] = &["target", "interval", "per-host"];
pub(crate) const ALLOWED: &[&str] =
    &["macs", "prefixes", "shared", "vlans", "control", "router", "dhcp-server"];
/// Kinds of attachment; a contract has exactly one.
pub(crate) const ATTACH_KINDS: &[&str] = &["vhost-user", "tap", "netdev", "vf"];
/// Options of an attachment, with the kind each belongs to.
pub(crate) const ATTACH_OPTIONS: &[(&str, &str)] = &[
    ("mode", "vhost-user"),
    ("owner", "vhost-user"),
    ("group", "vhost-user"),
    ("socket-mode", "vhost-user"),
    ("netns", "tap"),
    ("qos", "vf"),
    ("trust", "vf"),
    ("link-state", "vf"),
];

/// Returns every key of a vNIC, dotted.
pub(crate) fn vnic_keys() -> Vec<String> {
    let below = |table: &str, keys: &[&str]| keys.iter().map(|k| format!("{table}.{k}")).collect::<Vec<_>>();
    let options: Vec<&str> = ATTACH_OPTIONS.iter().map(|(key, _)| *key).collect();
    let mut all: Vec<String> = VNIC.iter().map(|key| (*key).into()).collect();
    for (table, keys) in [
        ("tx", TX),
        ("rx", RX),
        ("queueing", QUEUEING),
        ("allowed", ALLOWED),
        ("attach", ATTACH_KINDS),
        ("attach", &options),
    ] {
        all.extend(below(table, keys));
    }
    all
}
