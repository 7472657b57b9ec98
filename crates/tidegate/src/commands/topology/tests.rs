//! Drawings of known networks, compared with files; networks that no controller should answer.
//!
//! After a change on purpose: `TIDEGATE_DRAW=1 cargo test -p tidegate topology` writes the files anew; look at them.

use super::*;
use std::path::Path;
use tidegate_controller_api::{Host, LinkUse, Switch};

fn topology(name: &str) -> Topology {
    let file = samples().join(format!("{name}.json"));
    serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap()
}

fn samples() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/commands/topology/samples")
}

#[track_caller]
fn is_as_in(file: &str, text: &str) {
    let file = samples().join(file);
    if std::env::var_os("TIDEGATE_DRAW").is_some() {
        std::fs::write(&file, text).unwrap();
    }
    assert_eq!(text, std::fs::read_to_string(&file).unwrap(), "{file:?}");
}

#[test]
fn a_line_a_ring_and_a_fat_tree_are_drawn() {
    for name in ["line", "ring", "tree"] {
        is_as_in(&format!("{name}.txt"), &text(&topology(name), false));
    }
}

#[test]
fn a_table_has_all_links_and_faults() {
    is_as_in("ring-table.txt", &text(&topology("ring"), true));
}

#[test]
fn a_drawing_fits_a_screen() {
    for name in ["line", "ring", "tree"] {
        let text = text(&topology(name), false);
        assert!(text.lines().all(|line| line.chars().count() <= 120), "{name}");
        assert!(!text.contains("no line"), "{name}");
    }
}

#[test]
fn each_direction_is_in_the_drawing_of_its_switch() {
    let topology = topology("tree");
    let graph = graph::Graph::new(&topology);
    let sent: usize =
        graph.nodes.iter().flat_map(|node| &node.rows).filter(|row| row.sends.is_some()).count();
    let received =
        graph.nodes.iter().flat_map(|node| &node.rows).filter(|row| row.receives.is_some()).count();
    // Each of 16 hosts sends in one direction, which no switch sends.
    assert_eq!((sent, received, graph.unplaced), (topology.links.len() - 16, topology.links.len() - 16, 0));
}

#[test]
fn hundreds_of_switches_are_a_table() {
    let mut topology = topology("line");
    let first = topology.switches[0].clone();
    topology.switches.extend((10..300).map(|n| Switch { name: format!("s{n}"), ..first.clone() }));
    let text = text(&topology, false);
    assert!(text.starts_with("293 switches, ") && text.contains("for paths"), "{text}");
}

#[test]
fn an_empty_network_says_so() {
    let empty = Topology { switches: vec![], links: vec![], hosts: vec![] };
    assert!(text(&empty, false).contains("There are no switches"));
    text(&empty, true);
}

fn link(name: &str, source: &str, target: &str) -> LinkUse {
    LinkUse {
        name: name.into(),
        source: source.into(),
        target: target.into(),
        up: true,
        capacity: u64::MAX,
        reservable: 1,
        reserved: u64::MAX,
        levels: vec![],
    }
}

#[test]
fn networks_that_contradict_themselves_are_drawn_all_the_same() {
    let switch = |name: &str| Switch {
        name: name.into(),
        datapath: String::new(),
        connected: false,
        database: true,
        error: Some("e".into()),
    };
    let host = Host {
        name: "s1".into(),
        port: "nowhere".into(),
        address: "::1".parse().unwrap(),
        registered: false,
        lease_left: u64::MAX,
        vnics: u64::MAX,
    };
    let links = vec![
        link("s1:1>s2:1", "s1", "s2"),
        // Twice, to itself, with one direction only, without ports, with other ends than its name, at no switch.
        link("s1:1>s2:1", "s1", "s2"),
        link("s1:2>s1:2", "s1", "s1"),
        link("s1:3>s1:4", "s1", "s1"),
        link("s1:1>s3:1", "s1", "s3"),
        link(">", "s2", "s1"),
        link("", "s1", "s2"),
        link("x>y>z", "s2", "s2"),
        link("p>q", "p", "q"),
    ];
    let topology = Topology {
        switches: vec![switch("s1"), switch("s2"), switch("s1"), switch("")],
        links,
        hosts: vec![host],
    };
    let text = [text(&topology, false), text(&topology, true)].concat();
    assert!(text.contains("1 direction is at no switch"), "{text}");
}
