//! The drawing: switches below each other, a row for each port, links as lanes at the left.
//!
//! ```text
//!     s1
//!  ╭──┼─ 1  s2:1  1.00 Gbit/s  ▕████    ▏  50 %  ▕        ▏   0 %
//!  │  └─ 2  h1    1.00 Gbit/s  ▕██      ▏  25 %  ▕██      ▏  25 %
//!  │
//!  │  s2
//!  ╰──┴─ 1  s1:1  ...
//! ```

use super::graph::{Graph, Node, Row};
use super::lanes::{Edge, Lanes};
use super::order;
use super::share::{self, share};
use crate::format::{plural, plural_of, rate};
use std::collections::HashMap;
use tidegate_controller_api::{Switch, Topology};

/// Most lanes: more make no line that an eye can follow.
const MOST_LANES: usize = 24;

/// A row of the text, without what is left of it.
enum Line<'a> {
    Switch(&'a Switch),
    Port { row: &'a Row<'a>, is_last: bool },
    Empty,
}

pub fn text(topology: &Topology) -> String {
    let graph = Graph::new(topology);
    if graph.nodes.is_empty() {
        return "There are no switches: none is in the controller's configuration.\n".into();
    }
    let neighbours: Vec<Vec<usize>> =
        graph.nodes.iter().map(|node| node.rows.iter().filter_map(|row| row.neighbour).collect()).collect();
    let nodes: Vec<&Node> = order::order(&neighbours).into_iter().map(|n| &graph.nodes[n]).collect();
    let lines = lines(&nodes);
    let lanes = Lanes::new(edges(&lines), MOST_LANES);
    let width =
        |of: fn(&Row) -> usize| nodes.iter().flat_map(|node| node.rows.iter().map(of)).max().unwrap_or(0);
    let widths = (width(|row| row.port.chars().count()), width(|row| peer(row).chars().count()));
    let margin = lanes.before(usize::MAX).0.chars().count();
    let mut out = heading(margin, widths);
    for (n, line) in lines.iter().enumerate() {
        let (left, has_link) = lanes.before(n);
        out += format!("{left}{}", shown(line, has_link, widths)).trim_end();
        out.push('\n');
    }
    out + &notes(&graph, &lanes)
}

fn lines<'a>(nodes: &[&'a Node<'a>]) -> Vec<Line<'a>> {
    let mut lines = vec![];
    for node in nodes {
        if !lines.is_empty() {
            lines.push(Line::Empty);
        }
        lines.push(Line::Switch(node.switch));
        let last = node.rows.len().wrapping_sub(1);
        lines.extend(node.rows.iter().enumerate().map(|(n, row)| Line::Port { row, is_last: n == last }));
    }
    lines
}

/// Returns the links between two rows of known switches.
fn edges(lines: &[Line]) -> Vec<Edge> {
    // By the own end and the other one: rows whose other end has not come yet.
    let mut open: HashMap<(&str, &str), usize> = HashMap::new();
    let mut edges = vec![];
    for (n, line) in lines.iter().enumerate() {
        let Line::Port { row, .. } = line else { continue };
        if row.neighbour.is_none() {
            continue;
        }
        match open.remove(&(row.peer, row.own)) {
            Some(from) => {
                let up = [row.sends, row.receives].into_iter().flatten().all(|link| link.up);
                edges.push(Edge { from, to: n, up });
            }
            None => drop(open.insert((row.own, row.peer), n)),
        }
    }
    edges
}

fn heading(margin: usize, (port, peer): (usize, usize)) -> String {
    let share = share::WIDTH;
    let left = margin + 3 + port;
    format!("{:left$}  {:<peer$}  {:>12}  {:<share$}  {:<share$}", "", "", "", "sends", "receives")
        .trim_end()
        .to_owned()
        + "\n"
}

fn shown(line: &Line, has_link: bool, (port_width, peer_width): (usize, usize)) -> String {
    match line {
        Line::Empty => String::new(),
        Line::Switch(switch) => {
            let mut text = switch.name.clone();
            if !switch.connected {
                text += "  not connected";
            }
            if !switch.database {
                text += "  queues not in force";
            }
            if let Some(error) = &switch.error {
                text = text + "  " + error;
            }
            text
        }
        Line::Port { row, is_last } => {
            let corner = match (has_link, is_last) {
                (true, true) => '┴',
                (true, false) => '┼',
                (false, true) => '└',
                (false, false) => '├',
            };
            let capacity =
                row.sends.or(row.receives).map(|link| rate(link.capacity as f64)).unwrap_or_default();
            let (sends, receives) = (share(row.sends), share(row.receives));
            let (port, peer, width) = (row.port, peer(row), share::WIDTH);
            format!(
                "{corner}─ {port:>port_width$}  {peer:<peer_width$}  {capacity:>12}  {sends:<width$}  {receives:<width$}"
            )
        }
    }
}

/// Returns the other end, and how a host is.
fn peer(row: &Row) -> String {
    match row.host {
        Some(host) if host.registered => format!("{}, {}", row.peer, plural(host.vnics, "vNIC")),
        Some(_) => format!("{}, not registered", row.peer),
        None => row.peer.to_owned(),
    }
}

fn notes(graph: &Graph, lanes: &Lanes) -> String {
    let mut out = String::from("\nBars: what is reserved of what paths may have.\n");
    if lanes.omitted > 0 {
        let links = plural_of(lanes.omitted as u64, "link has", "links have");
        out += &format!("{links} no line: there are too many side by side. Rows name both ends.\n");
    }
    if graph.unplaced > 0 {
        let links = plural_of(graph.unplaced as u64, "direction is", "directions are");
        out += &format!("{links} at no switch of the configuration; --table has all.\n");
    }
    out
}
