//! What a worker did: for how long it was busy, and who sent whom how much.

use super::Worker;
use crate::port::talk::Said;

/// What a worker did since it was last asked.
#[derive(Debug, Default)]
pub struct Work {
    /// For how long it was busy, ns.
    pub busy: u64,
    /// What its ports sent.
    pub said: Vec<Said>,
}

impl Worker {
    /// What it did since this was last asked; `said` has room for all ports.
    pub fn work_done(&mut self, mut said: Vec<Said>) -> Work {
        for index in &self.owned {
            if let Some(port) = &mut self.ports[*index as usize] {
                said.extend(port.talk.take().map(|(to, cost)| (*index, to, cost)));
            }
        }
        Work { busy: std::mem::take(&mut self.busy), said }
    }
}
