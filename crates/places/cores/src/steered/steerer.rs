//! Tables at devices: attached, changed, repaired, taken away.

use crate::steered::repairs::{Fate, Repairs};
use crate::steered::tables::{NicTable, PlacedFlow, words};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;
use tidegate_cores::stage::Handle;
use tidegate_durable::{Damage, DurableError, Journal, cut};
use tidegate_evidence::{FlowReport, SpreadReport, SteeringReport};
use tidegate_netlink::NetlinkError;
use tidegate_steering::steering::detach_left;
use tidegate_steering::{Counters, Options, Steering};

/// Steers frames of NICs.
pub struct Steerer {
    /// Devices with a program of ours, and the CPUs of its flows by name, on disk before it is attached or changed.
    record: Journal<String, BTreeMap<String, usize>>,
    nics: BTreeMap<String, Nic>,
}

/// One steered NIC.
#[derive(Default)]
struct Nic {
    table: NicTable,
    steering: Option<Steering>,
    repairs: Repairs,
    /// Why its frames are not steered.
    missing: Option<String>,
}

impl Steerer {
    /// Makes it with the record in `state`. The second value describes damage.
    ///
    /// # Errors
    /// The record cannot be read, or a newer release wrote it.
    pub fn new(state: &Path) -> Result<(Self, Option<Damage>), DurableError> {
        let (record, damage) = Journal::load(state.join("steered-nics.json"))?;
        Ok((Self { record, nics: BTreeMap::new() }, damage.map(|what| ("state of steered NICs", what))))
    }

    /// Whether no NIC has a program of ours, and none shall have one.
    pub fn is_clean(&self) -> bool {
        self.record.entries().is_empty() && self.nics.is_empty()
    }

    /// Brings these tables about, and takes the programs away from all other NICs.
    pub fn apply(&mut self, wanted: &BTreeMap<String, NicTable>) {
        let unwanted: Vec<String> =
            self.record.entries().keys().filter(|device| !wanted.contains_key(*device)).cloned().collect();
        for device in unwanted {
            let steering = self.nics.remove(&device).and_then(|nic| nic.steering);
            let done = steering.map_or_else(|| detach_left(&device).map(drop), Steering::detach);
            match done {
                Ok(()) => _ = self.record.set(device, None),
                Err(why) => tracing::warn!(device, "its XDP program stays, to be removed later: {why}"),
            }
            cut::point();
        }
        self.nics.retain(|device, _| wanted.contains_key(device));
        let cpus = |table: &NicTable| {
            table.flows.iter().map(|(name, placed)| (name.clone(), placed.cpu)).collect::<BTreeMap<_, _>>()
        };
        let entries = wanted.iter().map(|(device, table)| (device.clone(), cpus(table)));
        if let Err(e) = self.record.change(|all| all.extend(entries)) {
            tracing::warn!("no NIC is steered anew: {e}");
        }
        cut::point();
        // A program is attached only where the record on disk says so.
        for (device, table) in wanted.iter().filter(|(device, _)| self.record.get(*device).is_some()) {
            let nic = self.nics.entry(device.clone()).or_default();
            let missing = nic.settle(device, table).err();
            if missing != nic.missing
                && let Some(why) = &missing
            {
                tracing::warn!(device, "its frames are not steered: {why}");
            }
            nic.missing = missing;
            cut::point();
        }
    }

    /// Returns the CPUs of flows on record.
    pub fn flows(&self) -> BTreeMap<Handle, usize> {
        let flow = |device: &String, (name, cpu): (&String, &usize)| {
            (Handle::Flow { device: device.clone(), name: name.clone() }, *cpu)
        };
        let nics = self.record.entries().iter();
        nics.flat_map(|(device, flows)| flows.iter().map(move |of| flow(device, of))).collect()
    }

    /// Returns what readers see of each NIC.
    pub fn reports(&self) -> Vec<SteeringReport> {
        self.nics.iter().map(|(device, nic)| nic.report(device)).collect()
    }
}

impl Nic {
    /// Brings its table about.
    fn settle(&mut self, device: &str, wanted: &NicTable) -> Result<(), String> {
        let table = wanted.table().map_err(|e| e.to_string())?;
        let now = Instant::now();
        let answer = self.steering.as_ref().map(Steering::is_there);
        let judge =
            |answer: Result<bool, NetlinkError>| self.repairs.judge(now, answer.map_err(|e| e.errno()));
        match answer.map(judge) {
            Some(Fate::Taken) => {
                self.steering = None;
                tracing::warn!(device, "drift: its XDP program was taken away; attaching it again");
            }
            Some(Fate::Gone) => self.steering = None,
            Some(Fate::There) | None => {}
        }
        if self.repairs.are_vain(now) {
            return Err(
                "another program takes its XDP program away after each repair; the agent leaves it without"
                    .into(),
            );
        }
        match &mut self.steering {
            Some(steering) => steering.update(&table).map_err(|e| e.to_string())?,
            none => {
                let attached = Steering::attach(device, &Options::default(), &table);
                *none = Some(attached.map_err(|e| e.to_string())?);
            }
        }
        self.table = wanted.clone();
        Ok(())
    }

    fn report(&self, device: &str) -> SteeringReport {
        let counters = self.steering.as_ref().map(Steering::counters);
        let (counters, unread) = match counters {
            Some(Ok(counters)) => (counters, None),
            Some(Err(e)) => (Counters::default(), Some(format!("its counters cannot be read: {e}"))),
            None => (Counters::default(), None),
        };
        SteeringReport {
            device: device.into(),
            mode: self.steering.is_some().then(|| "native".into()),
            chained: self.steering.as_ref().is_some_and(Steering::is_chained),
            missing: self.missing.clone().or(unread),
            flows: self.flows(&counters),
            spread: self.spread(&counters),
            passed: passed(&counters),
            dropped: counters
                .dropped
                .iter()
                .flat_map(BTreeMap::values)
                .fold(0, |sum, n| sum.saturating_add(*n)),
        }
    }

    fn flows(&self, counters: &Counters) -> Vec<FlowReport> {
        let report = |(name, placed): (&String, &PlacedFlow)| {
            let PlacedFlow { flow, cpu, .. } = placed;
            let count = counters.entries.get(name).map(|entry| entry.total()).unwrap_or_default();
            let matches = words(flow);
            FlowReport { flow: name.clone(), matches, cpu: *cpu, frames: count.frames, bytes: count.bytes }
        };
        self.table.flows.iter().map(report).collect()
    }

    /// Returns the frames that each CPU got besides those of flows.
    fn spread(&self, counters: &Counters) -> Vec<SpreadReport> {
        let report = |cpu: &usize| {
            let frames = counters.spread_to.get(cpu).map_or(0, |count| count.frames);
            SpreadReport { cpu: *cpu, frames }
        };
        self.table.spread.iter().map(report).collect()
    }
}

/// Returns the frames that stayed on the CPU of their interrupt.
fn passed(counters: &Counters) -> u64 {
    let outcomes = &counters.outcomes;
    let stayed = [
        &outcomes.unmatched,
        &outcomes.no_target,
        &outcomes.fragment,
        &outcomes.truncated,
        &outcomes.unknown,
    ];
    stayed.iter().flat_map(|by_cpu| by_cpu.values()).fold(0, |sum, count| sum.saturating_add(count.frames))
}

#[cfg(test)]
mod deaths;
#[cfg(test)]
mod tests {
    use super::*;

    /// No such device is there, so each one that is tried has its reason.
    #[test]
    fn a_record_that_cannot_be_saved_stops_new_nics_alone() {
        let folder = tempfile::tempdir().unwrap();
        let (mut steerer, _) = Steerer::new(folder.path()).unwrap();
        let wanted = |names: &[&str]| -> BTreeMap<String, NicTable> {
            names.iter().map(|name| ((*name).to_owned(), NicTable::default())).collect()
        };
        let tried = |steerer: &Steerer| {
            let reports = steerer.reports().into_iter();
            reports.filter(|nic| nic.missing.is_some()).map(|nic| nic.device).collect::<Vec<_>>()
        };
        steerer.apply(&wanted(&["tidegate-none0"]));
        assert_eq!(tried(&steerer), ["tidegate-none0"]);
        steerer.nics.clear();
        // Its new file cannot be made where a folder is.
        std::fs::create_dir(folder.path().join("steered-nics.json.new")).unwrap();
        steerer.apply(&wanted(&["tidegate-none0", "tidegate-none1"]));
        assert_eq!(tried(&steerer), ["tidegate-none0"]);
    }
}
