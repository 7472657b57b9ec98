//! The keys of contracts, per table.

pub(crate) const ROOT: &[&str] = &["host", "vnic", "uplink", "remote", "segment", "controller"];
pub(crate) const CONTROLLER: &[&str] = &["url", "host", "ca", "certificate", "key", "token-file", "uplinks"];
pub(crate) const HOST: &[&str] = &[
    "host-latency",
    "host_latency",
    "busy-poll",
    "busy_poll",
    "flood",
    "flood-burst",
    "flood_burst",
    "nic",
    "cores",
    "flow",
];
pub(crate) const CORES: &[&str] = &["placement", "cpus", "housekeeping", "adopt", "steer"];
pub(crate) const FLOW: &[&str] =
    &["device", "tunnel", "id", "vlan", "mac", "from", "to", "protocol", "from-port", "to-port", "cpu"];
pub(crate) const NIC: &[&str] = &["capacity", "control", "period", "segment"];
pub(crate) const AGGREGATE: &[&str] = &["max", "min"];
pub(crate) const VNIC: &[&str] = &[
    "attach",
    "mac",
    "segment",
    "tx",
    "rx",
    "queueing",
    "weight",
    "deadline",
    "to",
    "allowed",
    "mtu",
    "queues",
    "guest",
    "on-refused",
    "on-unreachable",
    "transport",
    "zero-copy",
];
pub(crate) const UPLINK: &[&str] = &[
    "kind",
    "local",
    "device",
    "port",
    "notice-port",
    "rate",
    "mtu",
    "latency",
    "arrival-budget",
    "rdma",
    "peer",
];
pub(crate) const PEER: &[&str] = &["address", "segments", "latency", "arrival-budget", "stamps"];
pub(crate) const REMOTE: &[&str] = &["mac", "segment", "peer", "addresses", "tx", "deadline", "to"];
pub(crate) const REMOTE_TX: &[&str] = &["max", "burst"];
pub(crate) const SEGMENT: &[&str] = &["key", "key-file", "next-key-file"];
pub(crate) const TX: &[&str] = &["max", "min", "burst", "method"];
pub(crate) const RX: &[&str] = &["max", "burst", "discipline", "queue"];
pub(crate) const QUEUEING: &[&str] = &["target", "interval", "per-host"];
pub(crate) const ALLOWED: &[&str] =
    &["macs", "prefixes", "shared", "vlans", "control", "router", "dhcp-server"];
/// The kinds of attachment; a contract has exactly one.
pub(crate) const ATTACH_KINDS: &[&str] = &["vhost-user", "tap", "netdev", "vf"];
/// Keys beside the kind, with the kind that each belongs to.
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
