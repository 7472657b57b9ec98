//! A device of a fabric, and what a test has it do; a library that has some of them.
//!
//! ```text
//!  Fabric, addresses ─▶ Device ─▶ Library ─ open ─▶ Device (the same)
//!              ▲ pause, fail_next_send, break_queue_pair, set_active, unplug, refuse
//! ```

use super::fabric::Fabric;
use super::fate::Fates;
use super::network::{Counters, Machine};
use crate::{Error, Gid, Link, Port, Status};
use std::net::IpAddr;

/// A device. Its copies are the same device.
#[derive(Clone, Debug)]
pub struct Device {
    fabric: Fabric,
    index: usize,
    name: String,
}

/// Devices that can be opened.
#[derive(Debug)]
pub(crate) struct Library {
    devices: Vec<Device>,
}

impl Library {
    pub(crate) fn new(devices: Vec<Device>) -> Self {
        Self { devices }
    }

    pub(crate) fn devices(&self) -> Result<Vec<String>, Error> {
        Ok(self.devices.iter().map(|device| device.name.clone()).collect())
    }

    pub(crate) fn open(&self, name: &str) -> Result<Device, Error> {
        let Some(device) = self.devices.iter().find(|device| device.name == name) else {
            return Err(Error::NoDevice { name: name.to_owned(), there: self.devices()? });
        };
        device.check("ibv_open_device")?;
        Ok(device.clone())
    }
}

impl Device {
    /// Adds an active RoCE device with these addresses and an MTU of 4,096 bytes to a fabric. An address that two devices
    /// have is the older one's.
    pub fn new(fabric: &Fabric, name: &str, addresses: &[IpAddr]) -> Self {
        let mut network = fabric.lock();
        network.machines.push(Machine::new(addresses.to_vec()));
        let index = network.machines.len() - 1;
        drop(network);
        Self { fabric: fabric.clone(), index, name: name.to_owned() }
    }

    pub(super) fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    pub(super) fn index(&self) -> usize {
        self.index
    }

    /// Whether both are the same device.
    pub(super) fn is(&self, other: &Self) -> bool {
        self.index == other.index && self.fabric.is(&other.fabric)
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn pieces(&self) -> u32 {
        self.with(|machine| machine.pieces)
    }

    pub(crate) fn port(&self) -> Result<Port, Error> {
        self.check("ibv_query_port")?;
        Ok(self.with(|machine| Port { is_active: machine.is_active, mtu: machine.mtu, link: machine.link }))
    }

    pub(crate) fn gids(&self) -> Result<Vec<Gid>, Error> {
        self.check("ibv_query_gid_table")?;
        let addresses = self.with(|machine| machine.addresses.clone());
        let both = addresses.into_iter().flat_map(|address| [(address, false), (address, true)]);
        let gid = |(index, (address, is_roce_v2))| Gid { index, address, is_roce_v2 };
        Ok((0..=u8::MAX).zip(both).map(gid).collect())
    }

    /// Returns an error if the device is gone, or refuses this call.
    pub(super) fn check(&self, call: &'static str) -> Result<(), Error> {
        self.fabric.lock().check_call(self.index, call).map_err(|error| Error::Call { call, error })
    }

    fn with<R>(&self, work: impl FnOnce(&mut Machine) -> R) -> R {
        work(&mut self.fabric.lock().machines[self.index])
    }

    /// Sets the port's MTU (bytes): it does not send longer datagrams. Those that arrive are not compared with it.
    pub fn set_mtu(&self, mtu: u32) {
        self.with(|machine| machine.mtu = mtu);
    }

    /// Sets the most pieces of a request. Queue pairs that have more keep them.
    pub fn set_pieces(&self, pieces: u32) {
        self.with(|machine| machine.pieces = pieces);
    }

    /// Sets what the port's link is.
    pub fn set_link(&self, link: Link) {
        self.with(|machine| machine.link = link);
    }

    /// Replaces the addresses. Handles that leave from an old one keep it.
    pub fn set_addresses(&self, addresses: &[IpAddr]) {
        self.with(|machine| machine.addresses = addresses.to_vec());
    }

    /// Brings the port up or down. While it is down, sends succeed and vanish.
    pub fn set_active(&self, is_active: bool) {
        self.with(|machine| machine.is_active = is_active);
    }

    /// Has the device leave posted sends where they are until [`run`](Self::run) or [`resume`](Self::resume).
    pub fn pause(&self) {
        self.with(|machine| machine.is_paused = true);
    }

    /// Has a paused device send at most so many datagrams, and returns how many it came to. Queue pairs take turns.
    pub fn run(&self, most: usize) -> usize {
        self.fabric.lock().run(self.index, most)
    }

    /// Has the device send all that is posted, and from now on at once.
    pub fn resume(&self) {
        let mut network = self.fabric.lock();
        network.machines[self.index].is_paused = false;
        network.run(self.index, usize::MAX);
    }

    /// Has the next send of a queue pair fail with `status`: the queue pair then is in the error state. Said twice, a
    /// second one waits, since the first is of no queue pair that sends on. Returns false without such a queue pair.
    pub fn fail_next_send(&self, queue_pair: u32, status: Status) -> bool {
        self.with(|machine| {
            machine.pairs.get_mut(&queue_pair).map(|pair| pair.failures.push_back(status)).is_some()
        })
    }

    /// Brings a queue pair into the error state, as after an error of its own. Returns false without such a queue pair.
    pub fn break_queue_pair(&self, queue_pair: u32) -> bool {
        let mut network = self.fabric.lock();
        let has = network.machines[self.index].pairs.contains_key(&queue_pair);
        network.fail(self.index, queue_pair);
        has
    }

    /// Has the next call of this name (`ibv_create_qp`, ...) fail with an error number. Several wait in turn.
    pub fn refuse(&self, call: &'static str, error: i32) {
        self.with(|machine| machine.refusals.push_back((call, error)));
    }

    /// Takes the device out: its queue pairs fail, and each call answers EIO.
    pub fn unplug(&self) {
        let mut network = self.fabric.lock();
        network.machines[self.index].is_gone = true;
        for number in self.numbers(&network.machines[self.index]) {
            network.fail(self.index, number);
        }
    }

    /// Returns the numbers of its queue pairs.
    pub fn queue_pairs(&self) -> Vec<u32> {
        self.with(|machine| self.numbers(machine))
    }

    fn numbers(&self, machine: &Machine) -> Vec<u32> {
        machine.pairs.keys().copied().collect()
    }

    /// Returns the key of a queue pair.
    pub fn q_key(&self, queue_pair: u32) -> Option<u32> {
        self.with(|machine| machine.pairs.get(&queue_pair).map(|pair| pair.q_key))
    }

    /// Returns how many sends and how many receives of a queue pair the device has.
    pub fn posted(&self, queue_pair: u32) -> Option<(usize, usize)> {
        self.with(|machine| {
            machine.pairs.get(&queue_pair).map(|pair| (pair.sends.posted(), pair.receives.posted()))
        })
    }

    /// Returns what it did.
    pub fn counters(&self) -> Counters {
        self.with(|machine| machine.counters)
    }

    /// Returns what became of datagrams that arrived at it.
    pub fn fates(&self) -> Fates {
        self.with(|machine| machine.fates)
    }
}
