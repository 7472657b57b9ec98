//! What becomes of a datagram. Its sender is told none of this, as by hardware.

/// What became of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fate {
    /// It is in a buffer of the receiving queue pair.
    Delivered,
    /// The fabric was told to lose it.
    Lost,
    /// It waits in the fabric, which was told to hold it.
    Held,
    /// It is longer than the sending port's MTU.
    TooLong,
    /// No device has its address.
    NoDevice,
    /// The sending or the receiving port is down.
    Down,
    /// The receiving device has no such queue pair.
    UnknownQueuePair,
    /// The receiving queue pair is in the error state.
    Failed,
    /// The receiving queue pair has another key.
    WrongKey,
    /// The receiving queue pair has no buffer posted.
    NoBuffer,
    /// The buffer was too short, or no memory of the receiver: the receive failed, and the queue pair with it.
    BadBuffer,
}

impl Fate {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Delivered,
        Self::Lost,
        Self::Held,
        Self::TooLong,
        Self::NoDevice,
        Self::Down,
        Self::UnknownQueuePair,
        Self::Failed,
        Self::WrongKey,
        Self::NoBuffer,
        Self::BadBuffer,
    ];
}

/// How many datagrams had which fate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fates([u64; Fate::ALL.len()]);

impl Fates {
    /// Returns how many had this fate.
    pub fn of(&self, fate: Fate) -> u64 {
        self.0[fate as usize]
    }

    /// Counts one.
    pub(super) fn count(&mut self, fate: Fate) {
        self.0[fate as usize] += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fate_has_a_count_of_its_own() {
        let mut fates = Fates::default();
        for (n, fate) in Fate::ALL.into_iter().enumerate() {
            for _ in 0..=n {
                fates.count(fate);
            }
        }
        for (n, fate) in Fate::ALL.into_iter().enumerate() {
            assert_eq!(fates.of(fate), n as u64 + 1, "{fate:?}");
        }
    }
}
