//! A fabric: what connects devices, and what a test has it do to datagrams.
//!
//! ```text
//!  test ─ lose, hold, release, forge ─▶ Fabric ─▶ Network ◀─ devices
//! ```

use super::datagram::Datagram;
use super::fate::{Fate, Fates};
use super::network::{Network, Order};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A fabric. Its copies are the same fabric.
#[derive(Clone, Debug, Default)]
pub struct Fabric {
    network: Arc<Mutex<Network>>,
}

impl Fabric {
    /// Returns a fabric without devices.
    pub fn new() -> Self {
        Self::default()
    }

    /// Loses one of the next datagrams of all devices: 0 is the next.
    pub fn lose(&self, after: u64) {
        self.order(after, Order::Lose);
    }

    /// Holds one of the next datagrams until [`release`](Self::release); later ones pass.
    pub fn delay(&self, after: u64) {
        self.order(after, Order::Hold);
    }

    fn order(&self, after: u64, order: Order) {
        let mut network = self.lock();
        let number = network.sent + after;
        network.orders.insert(number, order);
    }

    /// Holds all datagrams from now on, or no more. Those that wait go on waiting.
    pub fn hold(&self, holds: bool) {
        self.lock().holds_all = holds;
    }

    /// Brings at most so many of the held datagrams to their devices, oldest first, and returns what became of each.
    pub fn release(&self, most: usize) -> Vec<Fate> {
        let mut network = self.lock();
        let most = most.min(network.held.len());
        let released: Vec<Datagram> = network.held.drain(..most).collect();
        released.into_iter().map(|datagram| network.arrive(datagram)).collect()
    }

    /// Returns how many datagrams are held.
    pub fn held(&self) -> usize {
        self.lock().held.len()
    }

    /// Brings a datagram of the test's to its device, past all orders, and returns what became of it.
    pub fn forge(&self, datagram: Datagram) -> Fate {
        self.lock().arrive(datagram)
    }

    /// Returns what became of all datagrams, the forged with them. One that was held and released counts twice.
    pub fn fates(&self) -> Fates {
        self.lock().fates
    }

    /// Whether both are the same fabric.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.network, &other.network)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Network> {
        self.network.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
