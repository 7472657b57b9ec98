//! Frames between hosts by RDMA: one unreliable datagram (UD) for each frame.
//!
//! ```text
//!  frame ─▶ Header (32 bytes) ─▶ datagram, Q_Key of the segment ─▶ network ─▶ Header read and checked ─▶ frame
//!                                                                                │
//!                                                              sequence ─▶ Gaps ─┴▶ how many were lost
//! ```
//!
//! A device drops what finds no receive buffer, and tells neither side: numbers in the datagrams show the loss.
//!
//! - [`header`]: what stands before each frame
//! - [`gaps`]: counts lost datagrams of one sending queue pair

pub mod gaps;
pub mod header;

pub use gaps::{Gaps, Step};
pub use header::{Checksum, Header, HeaderError};

use crate::stamp::Key;

/// What the derived key is for.
const PURPOSE: &[u8; 16] = b"tidegate: Q_Keys";
/// The top bit makes a Q_Key a controlled one, which only privileged processes may use: Linux answers others with EPERM.
const UNCONTROLLED: u32 = u32::MAX >> 1;

/// Returns the Q_Key of segment `vni` under one of its keys: 31 bits.
///
/// A Q_Key separates segments, and authenticates no sender: it travels in each datagram, readable, and 31 bits can be
/// guessed. The number of the segment is part of it, since two segments may have been given the same key.
pub fn q_key(key: &Key, vni: u32) -> u32 {
    key.derived(PURPOSE).hash(&vni.to_be_bytes()) as u32 & UNCONTROLLED
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_q_key_needs_no_privilege_and_follows_key_and_segment(bytes: [u8; 16], vni in 0..1u32 << 24) {
            let key = Key::new(bytes);
            prop_assert!(q_key(&key, vni) < 1 << 31);
            prop_assert_eq!(q_key(&key, vni), q_key(&Key::new(bytes), vni));
        }
    }

    /// Two of some thousand are equal by chance with a probability of 2^-31 each.
    #[test]
    fn other_keys_and_segments_have_other_q_keys() {
        let of = |key: u8, vni| q_key(&Key::new([key; 16]), vni);
        assert_eq!((0..=255).filter(|key| of(*key, 42) == of(7, 42)).count(), 1);
        assert_eq!((0..4096).filter(|vni| of(7, *vni) == of(7, 42)).count(), 1);
    }

    /// Computed by another program. A change of the derivation would part the hosts of two releases.
    #[test]
    fn the_q_key_of_a_known_key() {
        assert_eq!(q_key(&Key::new([0; 16]), 42), 803_718_578);
    }
}
