//! The counters of the PFs that one conversation with NICs has read so far.

use super::{Counted, Counting};
use crate::device::{Nic, NicError, Pf};
use std::collections::BTreeMap;

/// Totals of every PF that was read, by the PF's name.
#[derive(Debug, Default)]
pub struct Meter(BTreeMap<String, Counting>);

impl Meter {
    /// Reads the counters of a PF; what each VF sent and received since its first reading, by VF. Read at least every
    /// [`longest_interval`](super::longest_interval), or counters wrap unseen ([`Doubts`](super::Doubts)).
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn read(&mut self, nic: &mut Nic, pf: &Pf) -> Result<BTreeMap<u16, Counted>, NicError> {
        Ok(self.0.entry(pf.name.clone()).or_default().read(nic, pf)?)
    }
}
