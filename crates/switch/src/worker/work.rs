//! A worker's work: its busy time, and how much ports sent to each other.

use super::Worker;
use crate::port::talk::PairTraffic;

/// A worker's work since the last question.
#[derive(Debug, Default)]
pub struct Work {
    /// Busy time (ns).
    pub busy: u64,
    /// Its ports' traffic.
    pub traffic: Vec<PairTraffic>,
}

impl Worker {
    /// Returns the work since the last call; `traffic` has room for all ports.
    pub fn work_done(&mut self, mut traffic: Vec<PairTraffic>) -> Work {
        for index in &self.owned {
            if let Some(port) = &mut self.ports[*index as usize] {
                traffic.extend(port.talk.take().map(|(to, cost)| (*index, to, cost)));
            }
        }
        Work { busy: std::mem::take(&mut self.busy), traffic }
    }
}
