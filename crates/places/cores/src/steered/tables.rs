//! Where the frames of steered NICs go: each flow to its CPU, all others to CPUs that no flow and no real-time stage has. Pure.

use crate::steered::flows::NamedFlow;
use std::collections::BTreeMap;
use tidegate_contract::Flow;
use tidegate_cores::cpus::Cpus;
use tidegate_cores::stage::Handle;
use tidegate_steering::{Entry, Table, TableError, Target};

/// The table of one NIC.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NicTable {
    /// Flows by name, with their CPUs.
    pub flows: BTreeMap<String, (Flow, usize)>,
    /// CPUs for frames of no flow; on the CPU of the interrupt if empty.
    pub spread: Cpus,
    /// UDP port of VXLAN.
    pub vxlan_port: u16,
}

impl NicTable {
    /// Returns it as the steering has it.
    ///
    /// # Errors
    /// A device cannot have such a table; the reason.
    pub fn table(&self) -> Result<Table, TableError> {
        let entry = |(name, (flow, cpu)): (&String, &(Flow, usize))| Entry {
            name: name.clone(),
            pattern: flow.into(),
            target: Target::Cpu(*cpu),
        };
        Table::new(self.flows.iter().map(entry).collect(), self.spread.clone(), self.vxlan_port)
    }
}

/// CPUs for frames.
#[derive(Clone, Copy, Debug)]
pub struct Room<'a> {
    /// That are online, and may be used.
    pub usable: &'a Cpus,
    /// That one real-time stage has for itself.
    pub own: &'a Cpus,
    /// That real-time stages have, alone or not.
    pub realtime: &'a Cpus,
}

/// Returns the tables of NICs: flows that the plan gave a CPU which is usable still, and those of the administrator.
pub fn tables(
    steer: &[String],
    flows: &[NamedFlow],
    cpus: &BTreeMap<Handle, usize>,
    room: Room<'_>,
    vxlan_port: u16,
) -> BTreeMap<String, NicTable> {
    let cpu = |flow: &NamedFlow| flow.flow.cpu.or_else(|| cpus.get(&flow.handle()).copied());
    let placed: Vec<(&NamedFlow, usize)> = flows.iter().filter_map(|flow| Some((flow, cpu(flow)?))).collect();
    let of_flows: Cpus = placed.iter().map(|(_, cpu)| *cpu).collect();
    let free: Cpus = room.usable.difference(room.own).copied().collect();
    let taken = |cpu: &usize| of_flows.contains(cpu) || room.realtime.contains(cpu);
    let rest: Cpus = free.iter().copied().filter(|cpu| !taken(cpu)).collect();
    // With flows and deadlines on all CPUs the others share them.
    let spread = if rest.is_empty() { free } else { rest };
    let table = |device: &String| {
        let here = placed.iter().filter(|(flow, _)| flow.flow.device == *device);
        let flows = here.map(|(flow, cpu)| (flow.name.clone(), (flow.flow.clone(), *cpu)));
        (device.clone(), NicTable { flows: flows.collect(), spread: spread.clone(), vxlan_port })
    };
    steer.iter().map(table).collect()
}

/// Returns the remark on flows that are more than the CPUs; `None` if each can have its own.
pub fn crowded(flows: &[NamedFlow], room: Room<'_>) -> Option<String> {
    let free = room.usable.difference(room.own).count();
    (flows.len() > free).then(|| {
        format!(
            "{} flows with a priority share {free} CPUs that no real-time stage has: some wait for each other, and \
             all other frames run beside them",
            flows.len()
        )
    })
}

/// Returns a flow's fields in words.
pub fn words(flow: &Flow) -> String {
    let tunnel = format!("{:?}", flow.tunnel).to_lowercase();
    let text = |name: &str, value: Option<String>| value.map(|value| format!("{name} {value}"));
    let fields = [
        (tunnel != "none").then_some(tunnel),
        text("id", flow.id.map(|it| it.to_string())),
        text("vlan", flow.vlan.map(|it| it.to_string())),
        text("to MAC", flow.mac.map(|it| it.to_string())),
        text("from", flow.from.map(|it| it.to_string())),
        text("to", flow.to.map(|it| it.to_string())),
        text("protocol", flow.protocol.map(|it| it.to_string())),
        text("from port", flow.from_port.map(|it| it.to_string())),
        text("to port", flow.to_port.map(|it| it.to_string())),
    ];
    fields.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_contract::Tunnel;

    fn flow(name: &str, id: u32, cpu: Option<usize>) -> NamedFlow {
        let flow = Flow {
            device: "eth1".into(),
            tunnel: Tunnel::Vxlan,
            id: Some(id),
            vlan: None,
            mac: None,
            from: None,
            to: None,
            protocol: None,
            from_port: None,
            to_port: Some(80),
            cpu,
        };
        NamedFlow { name: name.into(), flow, vnic: None, realtime: false, frames: 0 }
    }

    #[test]
    fn frames_of_no_flow_keep_off_the_cpus_of_flows_and_of_deadlines() {
        let flows = [flow("a", 1, Some(1)), flow("b", 2, None), flow("c", 3, None)];
        let cpus = [(flows[1].handle(), 2)].into();
        let (usable, own, realtime) = ((0..7).collect(), [5].into(), [5, 6].into());
        let room = Room { usable: &usable, own: &own, realtime: &realtime };
        let steer = ["eth1".to_owned(), "eth2".to_owned()];
        let tables = tables(&steer, &flows, &cpus, room, 4789);
        let one = &tables["eth1"];
        let entries: Vec<(&str, usize)> = one.flows.iter().map(|(name, (_, cpu))| (&**name, *cpu)).collect();
        // The plan has no CPU for `c` yet: its frames are spread.
        assert_eq!((entries, &one.spread), (vec![("a", 1), ("b", 2)], &[0, 3, 4].into()));
        assert_eq!((tables["eth2"].flows.len(), &tables["eth2"].spread), (0, &[0, 3, 4].into()));
        one.table().unwrap();
        assert_eq!(words(&flows[0].flow), "vxlan, id 1, to port 80");
    }

    #[test]
    fn more_flows_than_cpus_are_said() {
        let flows = [flow("a", 1, Some(0)), flow("b", 2, Some(1)), flow("c", 3, Some(1))];
        let (usable, own) = ([0, 1, 2].into(), [2].into());
        let room = Room { usable: &usable, own: &own, realtime: &own };
        let spread = &tables(&["eth1".to_owned()], &flows, &BTreeMap::new(), room, 4789)["eth1"].spread;
        assert_eq!(*spread, [0, 1].into());
        assert!(crowded(&flows, room).unwrap().starts_with("3 flows with a priority share 2 CPUs"));
        assert_eq!(crowded(&flows[..2], room), None);
    }
}
