//! One path in words.
//!
//! ```text
//!  Path ──▶ what was asked for, what was granted, its links in order, why it is as it is
//! ```

use crate::format::{count, duration, rate, size};
use std::fmt::Write;
use tidegate_controller_api::{Key, Path, PathState};

/// Returns the name of a state.
pub fn state(state: PathState) -> &'static str {
    match state {
        PathState::Installing => "installing",
        PathState::Active => "active",
        PathState::Moving => "moving",
        PathState::Broken => "broken",
        PathState::Violated => "violated",
    }
}

pub fn text(path: &Path) -> String {
    let request = &path.request;
    let (from, to, mark, misses) = match &request.key {
        Key::Udp(key) => (
            format!("{}, UDP port {}", key.source, key.source_port),
            format!("{}, UDP port {}", key.target, key.target_port),
            format!("DSCP {}", request.dscp),
            count(path.misses),
        ),
        Key::Ethernet(key) => (
            format!("{}, VLAN {}", key.source_mac, key.vlan),
            format!("{}, VLAN {}", key.target_mac, key.vlan),
            format!("priority {} in the tag", key.priority),
            "not measured: frames of a plain NIC have no stamp".into(),
        ),
    };
    let meaning = match path.state {
        PathState::Installing => "switches do not have all of it yet",
        PathState::Active => "its frames take it",
        PathState::Moving => "its frames take it, and soon another way",
        PathState::Broken => "no way fits, its frames are best effort",
        PathState::Violated => "its frames are late, and nothing helps",
    };
    let facts = [
        ("state", format!("{}: {meaning}", state(path.state))),
        ("from", format!("{} on {} ({from})", request.vnic, request.source)),
        ("to", format!("{} on {} ({to})", request.remote, request.target)),
        ("mark", mark),
        ("rate", rate(request.rate as f64)),
        ("burst", format!("{}, {} at the far host", size(request.burst), size(path.far_burst))),
        ("frames", format!("{} to {}", size(request.smallest_frame), size(request.largest_frame))),
        (
            "bound",
            format!("{} of {} that the network may take", duration(path.bound), duration(request.budget)),
        ),
        ("level", format!("{}{}", path.level, if path.level == 0 { ", the most urgent" } else { "" })),
        ("tag", format!("VLAN {}, generation {}", path.tag, path.generation)),
        ("misses", misses),
    ];
    let mut out = format!("{}\n", path.name);
    for (key, value) in facts {
        let _ = writeln!(out, "  {key:<7}  {value}");
    }
    for (n, link) in path.links.iter().enumerate() {
        let _ = writeln!(out, "  {:<7}  {link}", if n == 0 { "links" } else { "" });
    }
    for (n, reason) in path.reasons.iter().enumerate() {
        let _ = writeln!(out, "  {:<7}  {reason}", if n == 0 { "because" } else { "" });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::tests::path;
    use super::*;

    #[test]
    fn a_path_is_explained() {
        let path = Path { state: PathState::Violated, reasons: vec!["12 frames late".into()], ..path() };
        assert_eq!(
            text(&path),
            "\
a1>b1
  state    violated: its frames are late, and nothing helps
  from     a1 on h1 (10.1.0.1, UDP port 49156)
  to       b1 on h2 (10.1.0.2, UDP port 4789)
  mark     DSCP 46
  rate     47.0 Mbit/s
  burst    7.10 kB, 9.00 kB at the far host
  frames   110 B to 1.55 kB
  bound    600 us of 900 us that the network may take
  level    0, the most urgent
  tag      VLAN 7, generation 1
  misses   0
  links    h1>s1:2
           s1:1>s2:1
           s2:2>h2
  because  12 frames late
"
        );
    }

    #[test]
    fn a_path_of_a_plain_nic_has_no_misses() {
        let mut path = path();
        path.request.key = Key::Ethernet(tidegate_controller_api::EthernetKey {
            vlan: 42,
            priority: 5,
            source_mac: "02:00:00:00:0a:01".into(),
            target_mac: "02:00:00:00:0b:01".into(),
        });
        path.state = PathState::Broken;
        let text = text(&path);
        for line in [
            "state    broken: no way fits, its frames are best effort",
            "from     a1 on h1 (02:00:00:00:0a:01, VLAN 42)",
            "to       b1 on h2 (02:00:00:00:0b:01, VLAN 42)",
            "mark     priority 5 in the tag",
            "misses   not measured: frames of a plain NIC have no stamp",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
    }
}
