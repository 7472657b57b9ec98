//! The table in the kernel, changed step by step so that each frame meets the former table or the new one.
//!
//! ```text
//!  1. queues of CPUs that come      2. entries that come or change   3. settings (masks, CPUs of unmatched flows), as a whole
//!     and peers
//!  4. entries and peers that go     5. queues of CPUs that go: their threads empty them first
//! ```
//!
//! A mask has a number, and its entries bear it; a new mask gets a number that no entry has. So no frame meets a mask without its entries.

use crate::key::{EXACT, LENGTH, mask_of};
use crate::maps::{MapError, Maps, Value, failed};
use crate::settings::Settings;
use crate::table::{PEER, Table};
use std::collections::{BTreeSet, HashMap, HashSet};
use tidegate_cores::cpus::Cpus;

/// What the kernel has.
#[derive(Debug, Default)]
pub(crate) struct Live {
    /// `None`: none yet.
    settings: Option<Settings>,
    entries: HashMap<[u8; LENGTH], Value>,
    cpus: Cpus,
    peers: BTreeSet<[u8; PEER]>,
    /// Names of the entries, of the last table.
    names: HashMap<[u8; LENGTH], String>,
    /// The seed of new settings.
    seed: u64,
}

impl Live {
    /// Begins with an empty kernel.
    pub fn new(seed: u64) -> Self {
        Self { seed, ..Self::default() }
    }

    /// Reads what a former process left.
    pub fn read(maps: &Maps) -> Result<Self, MapError> {
        let settings = maps.read_settings()?;
        let seed = settings.as_ref().map(|settings| settings.seed).unwrap_or_default();
        Ok(Self {
            settings,
            entries: maps.read_entries()?.into_iter().collect(),
            cpus: maps.read_cpus()?.into_iter().collect(),
            peers: maps.read_peers().into_iter().collect(),
            names: HashMap::new(),
            seed,
        })
    }

    /// Makes the kernel's table this one; `online` are the CPUs that run, and queues have room for so many frames.
    pub fn update(&mut self, maps: &Maps, table: &Table, online: &Cpus, queue: u32) -> Result<(), MapError> {
        let settings = self.settings(table, online);
        let entries = keys(table, &settings);
        if entries.len() > maps.capacity() as usize {
            let most = format!("{} entries, and there is room for {}", entries.len(), maps.capacity());
            return Err(failed("set the entries")(most));
        }
        let wanted: Cpus = table.cpus().intersection(online).copied().collect();
        for cpu in wanted.difference(&self.cpus.clone()) {
            maps.set_cpu(*cpu, queue)?;
            self.cpus.insert(*cpu);
        }
        for peer in &table.peers {
            if self.peers.insert(*peer) {
                maps.add_peer(peer).inspect_err(|_| _ = self.peers.remove(peer))?;
            }
        }
        let gone: Vec<[u8; LENGTH]> =
            self.entries.keys().filter(|key| !entries.contains_key(*key)).copied().collect();
        let come = entries.keys().filter(|key| !self.entries.contains_key(*key)).count();
        let full = self.entries.len() + come > maps.capacity() as usize;
        if full {
            // Those that go make room first; their frames are without an entry for a moment.
            self.remove(maps, &gone)?;
        }
        let used: HashSet<u32> = self.entries.values().map(|value| value.counter).collect();
        let mut free = (0..maps.capacity()).filter(|counter| !used.contains(counter));
        for (key, (cpu, _)) in &entries {
            let value = match self.entries.get(key) {
                Some(value) if value.cpu == *cpu => continue,
                Some(value) => Value { cpu: *cpu, ..*value },
                None => {
                    let counter =
                        free.next().ok_or_else(|| failed("count an entry")("no counter is free"))?;
                    maps.clear_counter(counter)?;
                    Value { cpu: *cpu, counter }
                }
            };
            maps.set_entry(key, value)?;
            self.entries.insert(*key, value);
        }
        if self.settings.as_ref() != Some(&settings) {
            maps.set_settings(&settings)?;
            self.settings = Some(settings);
        }
        if !full {
            self.remove(maps, &gone)?;
        }
        for peer in self.peers.difference(&table.peers).copied().collect::<Vec<_>>() {
            maps.remove_peer(&peer)?;
            self.peers.remove(&peer);
        }
        for cpu in self.cpus.difference(&wanted).copied().collect::<Vec<_>>() {
            maps.remove_cpu(cpu)?;
            self.cpus.remove(&cpu);
        }
        self.names = entries.into_iter().map(|(key, (_, name))| (key, name.into())).collect();
        Ok(())
    }

    fn remove(&mut self, maps: &Maps, gone: &[[u8; LENGTH]]) -> Result<(), MapError> {
        for key in gone {
            maps.remove_entry(key)?;
            self.entries.remove(key);
        }
        Ok(())
    }

    /// Returns the settings for a table: masks that are there keep their numbers.
    fn settings(&self, table: &Table, online: &Cpus) -> Settings {
        let former = self.settings.clone().unwrap_or_default();
        // Entries of a mask that went may have been left by a process that died.
        let used = self.entries.keys().map(mask_of).chain(former.masks.iter().map(mask_of));
        let used: BTreeSet<u32> = used.collect();
        let mut free = (1..).filter(|number| !used.contains(number));
        let masks = table.masks.iter().map(|fields| {
            let number = former.number(fields).or_else(|| free.next()).unwrap_or(u32::MAX);
            Settings::mask(fields, number)
        });
        Settings {
            masks: masks.collect(),
            seed: self.seed,
            exact: table.entries.iter().any(|entry| entry.pattern.mask == EXACT),
            spread: table.spread.intersection(online).map(|cpu| *cpu as u32).collect(),
            vxlan_port: table.vxlan_port,
            peers: !table.peers.is_empty(),
        }
    }

    /// Returns the CPUs that have a queue.
    pub fn cpus(&self) -> &Cpus {
        &self.cpus
    }

    /// Returns the entries that have a name: name, CPU, counter.
    pub fn entries(&self) -> impl Iterator<Item = (&str, Value)> {
        self.names.iter().filter_map(|(key, name)| Some((&**name, *self.entries.get(key)?)))
    }
}

/// Returns the kernel's key of each entry.
fn keys<'t>(table: &'t Table, settings: &Settings) -> HashMap<[u8; LENGTH], (usize, &'t str)> {
    let keys = table.entries.iter().map(|entry| {
        let number = settings.number(&entry.pattern.mask).unwrap_or_default();
        (entry.pattern.flow.key(number), (entry.cpu, &*entry.name))
    });
    keys.collect()
}
