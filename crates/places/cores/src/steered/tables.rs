//! Where the frames of steered NICs go: each flow to its CPU, all others to CPUs that no flow and no real-time stage has. Pure.

use crate::steered::flows::{NamedFlow, Vxlan};
use std::collections::BTreeMap;
use tidegate_contract::{Flow, Tunnel};
use tidegate_cores::cpus::Cpus;
use tidegate_cores::stage::Handle;
use tidegate_place::Network;
use tidegate_steering::key::Pattern;
use tidegate_steering::{Entry, Table, TableError};

/// The table of one NIC.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NicTable {
    /// Flows by name.
    pub flows: BTreeMap<String, PlacedFlow>,
    /// CPUs for frames of no flow; on the CPU of the interrupt if empty.
    pub spread: Cpus,
    /// Port and peers.
    pub vxlan: Vxlan,
}

/// A flow, and where it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedFlow {
    /// Which frames.
    pub flow: Flow,
    /// The CPU.
    pub cpu: usize,
    /// Whether a contract asks for it: then frames of VXLAN count from peers alone.
    pub is_of_contract: bool,
}

impl PlacedFlow {
    fn pattern(&self) -> Pattern {
        let pattern = Pattern::from(&self.flow);
        if self.is_of_contract && self.flow.tunnel == Tunnel::Vxlan { pattern.of_peers() } else { pattern }
    }
}

impl NicTable {
    /// Returns it as the steering has it.
    ///
    /// # Errors
    /// A device cannot have such a table; the reason.
    pub fn table(&self) -> Result<Table, TableError> {
        let entry = |(name, placed): (&String, &PlacedFlow)| Entry {
            name: name.clone(),
            pattern: placed.pattern(),
            cpu: placed.cpu,
        };
        let entries = self.flows.iter().map(entry).collect();
        Ok(Table::new(entries, self.spread.clone(), self.vxlan.port)?.with_peers(&self.vxlan.peers))
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
    network: &Network,
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
        let flows = here.map(|(named, cpu)| {
            let is_of_contract = named.vnic.is_some();
            (named.name.clone(), PlacedFlow { flow: named.flow.clone(), cpu: *cpu, is_of_contract })
        });
        let (spread, vxlan) = (spread.clone(), Vxlan::of(device, network));
        (device.clone(), NicTable { flows: flows.collect(), spread, vxlan })
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
    use tidegate_contract::Mac;
    use tidegate_contract::check::MASKS;

    fn flow(name: &str, id: u32, cpu: Option<usize>) -> NamedFlow {
        let flow = Flow { id: Some(id), to_port: Some(80), cpu, ..Flow::new("eth1", Tunnel::Vxlan) };
        NamedFlow { name: name.into(), flow, vnic: None, realtime: false, frames: 0 }
    }

    #[test]
    fn frames_of_no_flow_keep_off_the_cpus_of_flows_and_of_deadlines() {
        let flows = [flow("a", 1, Some(1)), flow("b", 2, None), flow("c", 3, None)];
        let cpus = [(flows[1].handle(), 2)].into();
        let (usable, own, realtime) = ((0..7).collect(), [5].into(), [5, 6].into());
        let room = Room { usable: &usable, own: &own, realtime: &realtime };
        let steer = ["eth1".to_owned(), "eth2".to_owned()];
        let tables = tables(&steer, &flows, &cpus, room, Network::NONE);
        let one = &tables["eth1"];
        let entries: Vec<(&str, usize)> =
            one.flows.iter().map(|(name, placed)| (&**name, placed.cpu)).collect();
        // The plan has no CPU for `c` yet: its frames are spread.
        assert_eq!((entries, &one.spread), (vec![("a", 1), ("b", 2)], &[0, 3, 4].into()));
        assert_eq!((tables["eth2"].flows.len(), &tables["eth2"].spread), (0, &[0, 3, 4].into()));
        one.table().unwrap();
        assert_eq!(words(&flows[0].flow), "vxlan, id 1, to port 80");
    }

    #[test]
    fn a_contracts_flow_in_vxlan_is_of_peers_and_an_administrators_is_of_all() {
        let placed = |is_of_contract, tunnel| PlacedFlow {
            flow: Flow { tunnel, ..flow("a", 1, None).flow },
            cpu: 1,
            is_of_contract,
        };
        for (is_of_contract, tunnel, of_peers) in
            [(true, Tunnel::Vxlan, true), (false, Tunnel::Vxlan, false), (true, Tunnel::None, false)]
        {
            let placed = placed(is_of_contract, tunnel);
            let pattern = placed.pattern();
            assert_eq!(pattern == Pattern::from(&placed.flow).of_peers(), of_peers, "{placed:?}");
        }
    }

    #[test]
    fn the_flows_of_contracts_fit_beside_all_that_the_administrator_may_state() {
        let sets = (0..MASKS as u32).map(|set| {
            let fields = Flow::new("eth1", Tunnel::Vxlan);
            let has = |bit: u32| (set + 1) & bit != 0;
            let flow = Flow {
                vlan: has(1).then_some(7),
                protocol: has(2).then_some(17),
                to: has(4).then_some([10, 0, 0, 1].into()),
                ..fields
            };
            (format!("set{set}"), PlacedFlow { flow, cpu: 1, is_of_contract: false })
        });
        let explicit: BTreeMap<String, PlacedFlow> = sets.collect();
        for tunnel in [Tunnel::Vxlan, Tunnel::None] {
            let of_contract = |(n, vlan): (u8, Option<u16>)| {
                let flow = Flow { mac: Some(Mac([2, 0, 0, 0, 0, n])), vlan, ..Flow::new("eth1", tunnel) };
                (format!("contract{n}"), PlacedFlow { flow, cpu: 1, is_of_contract: true })
            };
            let contracts = [(1, Some(1)), (2, None)].map(of_contract);
            let flows = explicit.clone().into_iter().chain(contracts).collect();
            NicTable { flows, ..NicTable::default() }.table().unwrap();
        }
    }

    #[test]
    fn more_flows_than_cpus_are_said() {
        let flows = [flow("a", 1, Some(0)), flow("b", 2, Some(1)), flow("c", 3, Some(1))];
        let (usable, own) = ([0, 1, 2].into(), [2].into());
        let room = Room { usable: &usable, own: &own, realtime: &own };
        let spread =
            &tables(&["eth1".to_owned()], &flows, &BTreeMap::new(), room, Network::NONE)["eth1"].spread;
        assert_eq!(*spread, [0, 1].into());
        assert!(crowded(&flows, room).unwrap().starts_with("3 flows with a priority share 2 CPUs"));
        assert_eq!(crowded(&flows[..2], room), None);
    }
}
