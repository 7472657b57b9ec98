//! The rules of `[host.cores]` and `[host.flow.NAME]`.

use super::rules::Rules;
use super::vnic::{interface_name, table_name};
use crate::cores::PORT_PROTOCOLS;
use crate::{Cores, Flow, Host, Tunnel};
use std::collections::{BTreeSet, HashMap};
use std::ops::RangeInclusive;
use tidegate_cores::cpus::{Cpus, list};

/// Most flows of `[host.flow.NAME]`.
pub const FLOWS: usize = 1_000;
/// Most sets of fields that flows state, beside that of all fields: each is one more look-up for each received frame. A table has eight,
/// and two are left for the flows of contracts.
pub const MASKS: usize = 6;
/// Most NICs in `steer`.
const STEERED: usize = 64;

/// Returns the numbers that a tunnel of this kind can have.
pub(crate) fn id_range(tunnel: Tunnel) -> RangeInclusive<u32> {
    match tunnel {
        // A VNI has 24 bits (RFC 7348, 5; RFC 8926, 3.4).
        Tunnel::Vxlan | Tunnel::Geneve => 0..=(1 << 24) - 1,
        Tunnel::Gre | Tunnel::None => 0..=u32::MAX,
        // No packet has the SPI 0 (RFC 4303, 2.1).
        Tunnel::Esp => 1..=u32::MAX,
    }
}

/// Checks both tables of `host`. Problems have its keys.
pub(super) fn check(rules: &mut Rules, host: &Host) {
    let Cores { cpus, housekeeping, steer, .. } = &host.cores;
    for (key, set) in [("cores.cpus", cpus), ("cores.housekeeping", housekeeping)] {
        if set.as_ref().is_some_and(Cpus::is_empty) {
            rules.add_problem(key, "an empty list; name at least one CPU, or leave the key out");
        }
    }
    if let (Some(cpus), Some(housekeeping)) = (cpus, housekeeping) {
        let both: Cpus = cpus.intersection(housekeeping).copied().collect();
        if !both.is_empty() {
            let message =
                format!("CPU {} is in cpus, too; a CPU is for frames or for all other work", list(&both));
            rules.add_problem("cores.housekeeping", message);
        }
    }
    for device in steer.iter().take(STEERED) {
        if let Err(message) = interface_name(device) {
            rules.add_problem("cores.steer", message);
        }
    }
    rules.check_distinct("cores.steer", steer, STEERED);
    if host.flow.len() > FLOWS {
        rules.add_problem("flow", format!("{} are listed; at most {FLOWS}", host.flow.len()));
        return;
    }
    for (name, flow) in &host.flow {
        check_flow(rules, &host.cores, name, flow);
    }
    check_distinct(rules, host);
}

fn check_flow(rules: &mut Rules, cores: &Cores, name: &str, flow: &Flow) {
    let key = |key: &str| format!("flow.{name}.{key}");
    if let Err(message) = table_name(name, "a flow") {
        rules.add_problem(&format!("flow.{name}"), message);
    }
    if !cores.steer.contains(&flow.device) {
        let message = format!(
            "{:?} is not in [host.cores] steer; add it there, or name a NIC of that list",
            flow.device
        );
        rules.add_problem(&key("device"), message);
    }
    if let Some(id) = flow.id {
        match flow.tunnel {
            Tunnel::None => rules.add_problem(
                &key("id"),
                "a frame without a tunnel has no number; write tunnel, or remove id",
            ),
            tunnel => rules.check_range(&key("id"), id, id_range(tunnel)),
        }
    }
    if let (Some(from), Some(to)) = (flow.from, flow.to)
        && from.is_ipv4() != to.is_ipv4()
    {
        rules.add_problem(
            &key("to"),
            format!("{to} is not of the family of from, {from}; write two IPv4 or two IPv6 addresses"),
        );
    }
    let hidden = [
        ("mac", flow.mac.is_some()),
        ("protocol", flow.protocol.is_some()),
        ("from-port", flow.from_port.is_some()),
        ("to-port", flow.to_port.is_some()),
    ];
    let is_esp = flow.tunnel == Tunnel::Esp;
    for (field, _) in hidden.iter().filter(|(_, stated)| *stated && is_esp) {
        rules.add_problem(&key(field), "ESP encrypts it; write id (the SPI), from, to and vlan alone");
    }
    for (field, _) in hidden.iter().skip(2).filter(|(_, stated)| *stated && !is_esp) {
        if !flow.protocol.is_some_and(|protocol| PORT_PROTOCOLS.contains(&protocol)) {
            rules.add_problem(&key(field), "a port needs protocol = \"tcp\", \"udp\" or \"sctp\"");
        }
    }
    if flow.fields().is_empty() && flow.tunnel == Tunnel::None {
        rules.add_problem(
            &format!("flow.{name}"),
            "it would take all frames of the NIC; write at least one field, such as to",
        );
    }
    if let (Some(cpu), Some(cpus)) = (flow.cpu, &cores.cpus)
        && !cpus.contains(&cpu)
    {
        rules.add_problem(
            &key("cpu"),
            format!("CPU {cpu} is not in [host.cores] cpus, which are {}", list(cpus)),
        );
    }
}

/// Requires that no two flows take the same frames, and that a few look-ups find all.
fn check_distinct(rules: &mut Rules, host: &Host) {
    let mut first: HashMap<Flow, &str> = HashMap::new();
    let mut masks: BTreeSet<Vec<&str>> = BTreeSet::new();
    for (name, flow) in &host.flow {
        if let Some(other) = first.insert(Flow { cpu: None, ..flow.clone() }, name) {
            rules.add_problem(
                &format!("flow.{name}"),
                format!("it has the same fields as flow {other}; keep one of them"),
            );
        }
        let fields = flow.fields();
        if fields.len() == Flow::FIELDS || masks.contains(&fields) {
            continue;
        }
        if masks.len() == MASKS {
            let message = format!(
                "it states {}, which is one more set of fields; all flows together state at most {MASKS} sets of fields, \
                 since each is one more look-up for each frame, and contracts' flows need two of eight",
                fields.join(", ")
            );
            rules.add_problem(&format!("flow.{name}"), message);
            return;
        }
        masks.insert(fields);
    }
}
