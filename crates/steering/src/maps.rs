//! The maps of the program at a device.

use crate::key::LENGTH;
use crate::settings::{SETTINGS, Settings};
use crate::table::PEER;
use libbpf_rs::libbpf_sys::bpf_map_create_opts;
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType, Object};
use serde::Serialize;
use std::fmt::Display;
use std::os::fd::{AsFd, AsRawFd};

/// Only key of a map with one value.
const ONLY: [u8; 4] = [0; 4];
/// Length of `struct target`, bytes.
const TARGET: usize = 8;
/// Entries per call.
const BATCH: u32 = 1024;

/// The kernel refused something.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what}: {why}")]
pub struct MapError {
    pub(crate) what: &'static str,
    pub(crate) why: String,
}

pub(crate) fn failed<E: Display>(what: &'static str) -> impl FnOnce(E) -> MapError {
    move |why| MapError { what, why: format!("{why:#}") }
}

/// Frames, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Count {
    /// Frames.
    pub frames: u64,
    /// Bytes, without the frame check sequence.
    pub bytes: u64,
}

impl std::iter::Sum for Count {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            frames: sum.frames.wrapping_add(one.frames),
            bytes: sum.bytes.wrapping_add(one.bytes),
        })
    }
}

/// What an entry of the kernel says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Value {
    /// The CPU that its frames go to.
    pub cpu: usize,
    /// Its counter.
    pub counter: u32,
}

impl Value {
    fn bytes(self) -> [u8; TARGET] {
        let mut bytes = [0; TARGET];
        for (to, number) in bytes.chunks_exact_mut(4).zip([self.cpu as u32, self.counter]) {
            to.copy_from_slice(&number.to_ne_bytes());
        }
        bytes
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let number = |at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        Some(Self { cpu: number(0)? as usize, counter: number(4)? })
    }
}

/// The maps of `decide.h`.
#[derive(Debug)]
pub(crate) struct Maps {
    flows: MapHandle,
    in_force: MapHandle,
    cpus: MapHandle,
    entries: MapHandle,
    sent: MapHandle,
    spread_to: MapHandle,
    outcomes: MapHandle,
    peers: MapHandle,
}

impl Maps {
    /// Takes those of a loaded object.
    pub fn of_object(object: &Object) -> Result<Self, MapError> {
        let all = object.maps().map(|map| MapHandle::try_from(&map));
        let all = all.collect::<Result<Vec<_>, _>>().map_err(failed("open the maps"))?;
        Self::named(all)
    }

    /// Opens those with these numbers.
    ///
    /// # Errors
    /// One is missing or of another form: another release's.
    pub fn of_numbers(numbers: &[u32]) -> Result<Self, MapError> {
        let all = numbers.iter().map(|number| MapHandle::from_map_id(*number));
        let all = all.collect::<Result<Vec<_>, _>>().map_err(failed("open the maps"))?;
        Self::named(all)
    }

    fn named(mut all: Vec<MapHandle>) -> Result<Self, MapError> {
        let mut take = |name: &'static str, key: u32, value: u32| {
            let at = all
                .iter()
                .position(|map| map.name() == name && (map.key_size(), map.value_size()) == (key, value));
            at.map(|at| all.swap_remove(at))
                .ok_or_else(|| failed("find a map")(format!("no {name} of this form")))
        };
        Ok(Self {
            flows: take("flows", LENGTH as u32, TARGET as u32)?,
            in_force: take("in_force", 4, 4)?,
            cpus: take("cpus", 4, 8)?,
            entries: take("entries", 4, 16)?,
            sent: take("sent", 4, 16)?,
            spread_to: take("spread_to", 4, 16)?,
            outcomes: take("outcomes", 4, 16)?,
            peers: take("peers", PEER as u32, 4)?,
        })
    }

    /// Returns how many entries there is room for.
    pub fn capacity(&self) -> u32 {
        self.entries.max_entries()
    }

    /// Returns the number of the map of CPUs' queues.
    pub fn cpus_number(&self) -> Result<u32, MapError> {
        Ok(self.cpus.info().map_err(failed("tell the number of a map"))?.info.id)
    }

    /// Reads all entries. A frame's look-up goes on meanwhile.
    pub fn read_entries(&self) -> Result<Vec<([u8; LENGTH], Value)>, MapError> {
        let all = self.flows.lookup_batch(BATCH, MapFlags::ANY, MapFlags::ANY);
        let all = all.map_err(failed("read the entries"))?;
        Ok(all.filter_map(|(key, value)| Some((key.try_into().ok()?, Value::parse(&value)?))).collect())
    }

    /// Adds an entry, or changes it.
    pub fn set_entry(&self, key: &[u8; LENGTH], value: Value) -> Result<(), MapError> {
        self.flows.update(key, &value.bytes(), MapFlags::ANY).map_err(failed("set an entry"))
    }

    /// Adds entries; the number of counters may be beyond their count, for a measurement.
    pub fn set_entries(&self, entries: &[([u8; LENGTH], Value)]) -> Result<(), MapError> {
        for part in entries.chunks(BATCH as usize) {
            let keys: Vec<u8> = part.iter().flat_map(|(key, _)| *key).collect();
            let values: Vec<u8> = part.iter().flat_map(|(_, value)| value.bytes()).collect();
            let set =
                self.flows.update_batch(&keys, &values, part.len() as u32, MapFlags::ANY, MapFlags::ANY);
            set.map_err(failed("set entries"))?;
        }
        Ok(())
    }

    /// Removes an entry.
    pub fn remove_entry(&self, key: &[u8; LENGTH]) -> Result<(), MapError> {
        self.flows.delete(key).map_err(failed("remove an entry"))
    }

    /// Reads the outer addresses of peers.
    pub fn read_peers(&self) -> Vec<[u8; PEER]> {
        self.peers.keys().filter_map(|key| key.try_into().ok()).collect()
    }

    /// Adds the outer addresses of a peer.
    pub fn add_peer(&self, peer: &[u8; PEER]) -> Result<(), MapError> {
        self.peers.update(peer, &ONLY, MapFlags::ANY).map_err(failed("add a peer"))
    }

    /// Removes the outer addresses of a peer.
    pub fn remove_peer(&self, peer: &[u8; PEER]) -> Result<(), MapError> {
        self.peers.delete(peer).map_err(failed("remove a peer"))
    }

    /// Reads the settings in force.
    pub fn read_settings(&self) -> Result<Option<Settings>, MapError> {
        let read = failed("read the settings");
        let Some(number) = self.in_force.lookup(&ONLY, MapFlags::ANY).map_err(failed("find the settings"))?
        else {
            return Ok(None);
        };
        let number = number.first_chunk().copied().map(u32::from_ne_bytes).unwrap_or_default();
        let map = MapHandle::from_map_id(number).map_err(failed("open the settings"))?;
        let bytes = map.lookup(&ONLY, MapFlags::ANY).map_err(read)?;
        Ok(bytes.as_deref().and_then(Settings::parse))
    }

    /// Puts settings in force. When this returns, no frame is looked up with the former ones: the kernel waits for that
    /// (`maybe_wait_bpf_programs`, kernel/bpf/syscall.c).
    pub fn set_settings(&self, settings: &Settings) -> Result<(), MapError> {
        let options = bpf_map_create_opts { sz: size_of::<bpf_map_create_opts>() as _, ..Default::default() };
        let inner = MapHandle::create(MapType::Array, Some("settings"), 4, SETTINGS as u32, 1, &options);
        let inner = inner.map_err(failed("make the settings"))?;
        inner.update(&ONLY, &settings.bytes(), MapFlags::ANY).map_err(failed("fill the settings"))?;
        let number = inner.as_fd().as_raw_fd().to_ne_bytes();
        self.in_force.update(&ONLY, &number, MapFlags::ANY).map_err(failed("put the settings in force"))
    }

    /// Returns the CPUs that have a queue.
    pub fn read_cpus(&self) -> Result<Vec<usize>, MapError> {
        let mut found = vec![];
        for cpu in 0..self.cpus.max_entries() {
            let queue =
                self.cpus.lookup(&cpu.to_ne_bytes(), MapFlags::ANY).map_err(failed("read CPUs' queues"))?;
            // An empty queue is none.
            if queue
                .and_then(|value| value.first_chunk().copied())
                .is_some_and(|size: [u8; 4]| size != [0; 4])
            {
                found.push(cpu as usize);
            }
        }
        Ok(found)
    }

    /// Gives a CPU a queue of so many frames, and a thread. A queue of before is emptied by its thread.
    pub fn set_cpu(&self, cpu: usize, queue: u32) -> Result<(), MapError> {
        let value = [queue.to_ne_bytes(), [0; 4]].concat();
        self.cpus
            .update(&(cpu as u32).to_ne_bytes(), &value, MapFlags::ANY)
            .map_err(failed("make a CPU's queue"))
    }

    /// Takes a CPU's queue away; its thread empties it first.
    pub fn remove_cpu(&self, cpu: usize) -> Result<(), MapError> {
        self.cpus.delete(&(cpu as u32).to_ne_bytes()).map_err(failed("remove a CPU's queue"))
    }

    /// Sets a counter to 0.
    pub fn clear_counter(&self, counter: u32) -> Result<(), MapError> {
        let cpus = libbpf_rs::num_possible_cpus().map_err(failed("count CPUs"))?;
        let zero = vec![vec![0; 16]; cpus];
        self.entries
            .update_percpu(&counter.to_ne_bytes(), &zero, MapFlags::ANY)
            .map_err(failed("clear a counter"))
    }

    /// Returns a counter of entries, by the CPU that looked frames up.
    pub fn read_counter(&self, counter: u32) -> Result<Vec<Count>, MapError> {
        counts(&self.entries, counter)
    }

    /// Returns what became of frames, by the CPU that looked them up.
    pub fn read_outcome(&self, outcome: u32) -> Result<Vec<Count>, MapError> {
        counts(&self.outcomes, outcome)
    }

    /// Returns frames that entries sent to this CPU, by the CPU that looked them up.
    pub fn read_sent(&self, cpu: usize) -> Result<Vec<Count>, MapError> {
        counts(&self.sent, cpu as u32)
    }

    /// Returns frames that went to this CPU by their hash, by the CPU that looked them up.
    pub fn read_spread_to(&self, cpu: usize) -> Result<Vec<Count>, MapError> {
        counts(&self.spread_to, cpu as u32)
    }
}

fn counts(map: &MapHandle, which: u32) -> Result<Vec<Count>, MapError> {
    let values = map.lookup_percpu(&which.to_ne_bytes(), MapFlags::ANY).map_err(failed("read a counter"))?;
    let number = |bytes: &[u8], at: usize| {
        bytes
            .get(at..at + 8)
            .and_then(|bytes| bytes.try_into().ok())
            .map(u64::from_ne_bytes)
            .unwrap_or_default()
    };
    let values = values.unwrap_or_default();
    Ok(values.iter().map(|value| Count { frames: number(value, 0), bytes: number(value, 8) }).collect())
}
