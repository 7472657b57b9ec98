//! All links as a table, for networks that no terminal can draw.

use super::share::share;
use crate::format::{duration, natural, rate};
use crate::table::{Align, Table};
use tidegate_controller_api::{LinkUse, Switch, Topology};

pub fn text(topology: &Topology) -> String {
    let mut out = String::new();
    let faulty: Vec<&Switch> =
        topology.switches.iter().filter(|s| !s.connected || !s.database || s.error.is_some()).collect();
    if !faulty.is_empty() {
        let mut table = Table::new(&[("switch", Align::Left), ("what is wrong", Align::Left)]);
        for switch in faulty {
            table.row([switch.name.clone(), wrong(switch)]);
        }
        out = table.render() + "\n";
    }
    let right = Align::Right;
    let mut table = Table::new(&[
        ("link", Align::Left),
        ("capacity", right),
        ("for paths", right),
        ("reserved", right),
        ("share", Align::Left),
        ("bounds of levels", Align::Left),
    ]);
    let mut links: Vec<&LinkUse> = topology.links.iter().collect();
    links.sort_by(|a, b| natural(&a.name).cmp(&natural(&b.name)));
    for link in links {
        // What is reached with today's paths, of the fixed delay.
        let levels =
            link.levels.iter().map(|level| format!("{} of {}", duration(level.bound), duration(level.delay)));
        table.row([
            link.name.clone(),
            rate(link.capacity as f64),
            rate(link.reservable as f64),
            rate(link.reserved as f64),
            share(Some(link)),
            levels.collect::<Vec<_>>().join(", "),
        ]);
    }
    out += &table.render();
    if topology.hosts.is_empty() {
        return out;
    }
    let mut table = Table::new(&[
        ("host", Align::Left),
        ("port", Align::Left),
        ("address", Align::Left),
        ("registered", Align::Left),
        ("vNICs", right),
    ]);
    for host in &topology.hosts {
        table.row([
            host.name.clone(),
            host.port.clone(),
            host.address.to_string(),
            if host.registered { format!("for {}", duration(host.lease_left)) } else { "no".into() },
            host.vnics.to_string(),
        ]);
    }
    out + "\n" + &table.render()
}

fn wrong(switch: &Switch) -> String {
    let faults = [
        (!switch.connected).then(|| "not connected".to_owned()),
        (!switch.database).then(|| "queues not in force".to_owned()),
        switch.error.clone(),
    ];
    faults.into_iter().flatten().collect::<Vec<_>>().join("; ")
}
