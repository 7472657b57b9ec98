//! Which port of which switch leads where.
//!
//! ```text
//!  Topology ─ directions s1:2>s2:1, s2:1>s1:2 ──▶ s1: port 2 ↔ s2:1 (sends, receives)    s2: port 1 ↔ s1:2
//! ```
//!
//! Names are the controller's: whatever they are, each direction is in a row of a known switch, or counted as unplaced.

use crate::format::natural;
use std::collections::HashMap;
use tidegate_controller_api::{Host, LinkUse, Switch, Topology};

/// A switch and its ports.
pub struct Node<'a> {
    pub switch: &'a Switch,
    /// In order of ports.
    pub rows: Vec<Row<'a>>,
}

/// A port of a switch.
pub struct Row<'a> {
    /// This end, such as `s1:2`.
    pub own: &'a str,
    /// Its number, or what stands for it.
    pub port: &'a str,
    /// The other end: `s2:1`, or a host's name.
    pub peer: &'a str,
    /// The known switch of the other end.
    pub neighbour: Option<usize>,
    pub host: Option<&'a Host>,
    pub sends: Option<&'a LinkUse>,
    pub receives: Option<&'a LinkUse>,
}

pub struct Graph<'a> {
    pub nodes: Vec<Node<'a>>,
    /// Directions of which no end is at a known switch.
    pub unplaced: usize,
}

impl<'a> Graph<'a> {
    pub fn new(topology: &'a Topology) -> Self {
        let hosts: HashMap<&str, &Host> =
            topology.hosts.iter().map(|host| (host.name.as_str(), host)).collect();
        let mut switches: Vec<&Switch> = topology.switches.iter().collect();
        switches.sort_by(|a, b| natural(&a.name).cmp(&natural(&b.name)));
        switches.dedup_by(|a, b| a.name == b.name);
        let index: HashMap<&str, usize> =
            switches.iter().enumerate().map(|(n, switch)| (switch.name.as_str(), n)).collect();
        // By switch, its end and the other end.
        let mut rows: HashMap<(usize, &str, &str), Row<'a>> = HashMap::new();
        let mut unplaced = 0;
        for link in &topology.links {
            let (from, to) = link.name.split_once('>').unwrap_or((&link.source, &link.target));
            let ends = [(&link.source, from, &link.target, to), (&link.target, to, &link.source, from)];
            let mut is_placed = false;
            for (n, (owner, own, other, far)) in ends.into_iter().enumerate() {
                let Some(&switch) = index.get(owner.as_str()) else { continue };
                is_placed = true;
                let row = rows.entry((switch, own, far)).or_insert_with(|| Row {
                    own,
                    port: own
                        .strip_prefix(owner.as_str())
                        .and_then(|rest| rest.strip_prefix(':'))
                        .unwrap_or(own),
                    peer: far,
                    neighbour: index.get(other.as_str()).copied(),
                    host: hosts.get(other.as_str()).copied(),
                    sends: None,
                    receives: None,
                });
                if n == 0 { row.sends = Some(link) } else { row.receives = Some(link) }
            }
            unplaced += usize::from(!is_placed);
        }
        let mut nodes: Vec<Node<'a>> =
            switches.into_iter().map(|switch| Node { switch, rows: vec![] }).collect();
        for ((switch, ..), row) in rows {
            nodes[switch].rows.push(row);
        }
        for node in &mut nodes {
            node.rows
                .sort_by(|a, b| (natural(a.port), natural(a.peer)).cmp(&(natural(b.port), natural(b.peer))));
        }
        Self { nodes, unplaced }
    }
}
