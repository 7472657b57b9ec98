//! API answers for the tests of several texts.

use serde_json::{Value, json};
use tidegate_agent::views::{OwnWait, State, VnicView, WhyView};

/// A real-time vNIC that has missed deadlines.
pub fn voice() -> VnicView {
    view(
        r#"
        [vnic.voice]
        attach = { vhost-user = "/run/tidegate/vm/voice.sock" }
        mac = "52:54:00:00:00:01"
        segment = 42
        tx = { max = "4mbit", burst = "2kB" }
        deadline = "1ms"
        to = ["sink"]
        "#,
        json!({
            "owner": "file:/etc/tidegate/voice.toml",
            "connection": "up",
            "worker": 1,
            "tx_rate_bps": 1_600_000, "rx_rate_bps": 0,
            "stats": {
                "name": "voice", "index": 0,
                "tx": {"frames": 12_000, "wire_frames": 12_000, "wire_bytes": 2_400_000, "dropped": {"late": 1}},
                "rx": {"frames": 7, "wire_frames": 7, "wire_bytes": 420, "dropped": {}},
                "throttled_ns": 3_000_000, "throttled": false,
                "work": {
                    "take_ns": 720_000, "deliver_ns": 30_000, "delivered": 100, "buffers_ns": 0, "kicks_ns": 2_000
                },
                "delay": {
                    "count": 11_999, "p50": 42_000, "p99": 90_000, "p999": 300_000, "max": 1_120_000,
                    "buckets": [[42_000, 11_998], [1_120_000, 1]]
                },
                "realtime_delivered": 11_999,
                "misses": {"queue": 2, "dropped": 1}
            },
            "promises": [{
                "vnic": "voice", "egress": "sink",
                "deadline_ns": 1_000_000, "bound_ns": 278_144, "margin_ns": 721_856, "worst_seen_ns": 1_120_000,
                "derivation": {
                    "critical_t_ns": 1_000_000, "demand_bytes": 2_000, "blocking_bytes": 1_518,
                    "capacity_bps": 1_000_000_000, "host_latency_ns": 250_000, "text": ""
                },
                "holds_if": "", "host_latency_violations": 3
            }]
        }),
    )
}

/// `voice`, whose guest has lowered its limit.
pub fn lowered() -> VnicView {
    let mut view = voice();
    view.contract.as_mut().unwrap().guest = Some("/run/vm/voice.limit".into());
    view.soft = Some("3mbit".parse().unwrap());
    view.tx_in_force = view.soft;
    view
}

/// A vNIC that sent more than its limit in the last 10 s.
pub fn waiting() -> VnicView {
    view(
        r#"
        [vnic.web]
        attach = { tap = "tg-web" }
        mac = "52:54:00:00:00:04"
        segment = 42
        tx = { max = "20mbit" }
        "#,
        json!({
            "owner": "api", "connection": "up", "worker": 0,
            "window": {"asked_ns": 10_000_000_000u64, "covers_ns": 10_400_000_000u64},
            "stats": {
                "name": "web", "index": 0,
                "tx": {
                    "frames": 1_600, "wire_frames": 17_000, "wire_bytes": 26_000_000, "dropped": {"codel": 4},
                    "marked": 21, "flows_now": 2, "flows_most": 9
                },
                "rx": {"frames": 800, "wire_frames": 800, "wire_bytes": 52_800, "dropped": {}},
                "throttled_ns": 9_800_000_000u64, "throttled": true,
                "tokens_tx": {
                    "count": 1_600, "p50": 865_000_000, "p99": 1_050_000_000, "p999": 1_051_000_000,
                    "max": 1_051_000_000, "buckets": [[865_000_000, 800], [1_051_000_000, 800]]
                },
                "sparse_tx": {
                    "count": 900, "p50": 310_000, "p99": 1_200_000, "p999": 1_400_000,
                    "max": 1_400_000, "buckets": [[310_000, 890], [1_400_000, 10]]
                },
                "delay": {
                    "count": 1_600, "p50": 541_000, "p99": 800_000, "p999": 900_000, "max": 910_000,
                    "buckets": [[541_000, 1_599], [910_000, 1]]
                },
                "realtime_delivered": 0, "misses": {}
            }
        }),
    )
}

/// Why frames of `waiting` are late.
pub fn why_waiting() -> WhyView {
    let view = waiting();
    let stats = view.stats.unwrap();
    let mut why = why_idle();
    why.vnic = "web".into();
    why.window = view.window;
    why.tx_wait = Some(OwnWait {
        limit: "tx.max = 20mbit".into(),
        waited: stats.tokens_tx.unwrap(),
        sparse: stats.sparse_tx,
        marked: stats.tx.marked,
        flows_now: Some(stats.tx.flows_now),
        flows_most: Some(stats.tx.flows_most),
    });
    why.tx_dropped = stats.tx.dropped;
    why.throttled_ns = stats.throttled_ns;
    why
}

/// A vNIC without promises and without a front end.
pub fn idle() -> VnicView {
    view(
        r#"
        [vnic.idle]
        attach = { tap = "tg-idle" }
        mac = "52:54:00:00:00:02"
        segment = 42
        "#,
        json!({"owner": "api", "connection": "waiting"}),
    )
}

/// `voice`, whose deadline is not promised, and never was.
pub fn suspended() -> VnicView {
    let mut view = voice();
    let why = Some("guest memory is not preallocated: add prealloc=on".to_owned());
    view.deadline_suspended.clone_from(&why);
    view.promises[0].suspended = why;
    let stats = view.stats.as_mut().unwrap();
    stats.realtime_delivered = 0;
    stats.misses.clear();
    view
}

/// Two vNICs of a refused file: one with a readable contract, one without.
pub fn refused() -> [VnicView; 2] {
    let by =
        |line| json!({"file": "/etc/tidegate/cam.toml", "line": line, "reason": "egress sink refuses cam"});
    let refused = |mut view: VnicView, line| {
        view.state = State::Refused;
        view.owner = "file:/etc/tidegate/cam.toml".into();
        (view.connection, view.stats, view.promises) = (None, None, vec![]);
        view.refused = Some(from(by(line)));
        view.reason = view.refused.as_ref().map(ToString::to_string);
        view
    };
    let unreadable = VnicView { name: "dark".into(), contract: None, ..idle() };
    [refused(idle(), 4), refused(unreadable, 9)]
}

/// A vNIC of the kernel place, with few counters.
pub fn unknown() -> VnicView {
    let mut view = view(
        r#"
        [vnic.web]
        attach = { netdev = "vnet3" }
        mac = "52:54:00:00:00:03"
        segment = 0
        tx = { max = "50mbit" }
        "#,
        json!({
            "owner": "api", "connection": "up", "tx_rate_bps": 5_000_000,
            "stats": {
                "name": "web", "index": 0,
                "tx": {"frames": 900, "wire_frames": 900, "wire_bytes": 1_200_000, "dropped": {}},
                "rx": {"frames": 0, "wire_frames": 0, "wire_bytes": 0, "dropped": {}},
                "throttled_ns": 0, "throttled": false,
                "delay": {"count": 0, "p50": 0, "p99": 0, "p999": 0, "max": 0, "buckets": []},
                "realtime_delivered": 0, "misses": {}
            },
            "unknown": {
                "rx": "not limited, and so not counted",
                "super-frames": "the kernel counts their segments",
                "delay": "this kernel has no BTF",
                "throttled": "this kernel has no BTF"
            }
        }),
    );
    view.place = "kernel".into();
    view
}

/// Why `voice` misses deadlines.
pub fn why_voice() -> WhyView {
    from(json!({
        "vnic": "voice",
        "findings": [],
        "misses": {"queue": 2, "dropped": 1},
        "latest_misses": [
            {
                "number": 2, "at": 5_000_000_000u64, "egress": "sink", "cause": "queue", "dropped": null,
                "behind": "bulk1", "delay": 1_120_000, "delay_least": 1_120_000, "deadline": 1_000_000,
                "tokens": 0, "worker": 10_000, "queue": 800_000, "buffers": 0
            },
            {
                "number": 3, "at": 7_500_000_000u64, "egress": "sink", "cause": "dropped", "dropped": "late",
                "behind": null, "delay": 1_000_000, "deadline": 1_000_000,
                "tokens": 0, "worker": 0, "queue": 900_000, "buffers": 0
            }
        ],
        "tx_dropped": {"late": 1, "source_mac": 1_200},
        "rx_dropped": {},
        "throttled_ns": 3_000_000
    }))
}

/// Why nothing happens at `idle`.
pub fn why_idle() -> WhyView {
    from(json!({
        "vnic": "idle", "findings": [], "misses": {}, "latest_misses": [],
        "tx_dropped": {}, "rx_dropped": {}, "throttled_ns": 0
    }))
}

fn view(toml: &str, mut rest: Value) -> VnicView {
    let contract = tidegate_contract::parse(toml, "sample").unwrap().vnics.remove(0).value;
    rest["name"] = contract.name.clone().into();
    rest["contract"] = serde_json::to_value(contract).unwrap();
    rest["place"] = "switch".into();
    rest["state"] = "in force".into();
    rest["limits"] = json!({});
    from(rest)
}

fn from<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}
