//! The registers in which Intel's 82576 and 82599 count what each VF sent and received, as the PF sees them.
//!
//! | register | what | 82576 | 82599 |
//! |---|---|---|---|
//! | VFGPTC | good frames sent | 32 bits | 32 bits |
//! | VFGOTC | good octets sent, with FCS | 32 bits | 36 bits, in two |
//! | VFGPRC | good frames received | 32 bits | 32 bits |
//! | VFGORC | good octets received, with FCS | 32 bits | 36 bits, in two |
//! | VFMPRC | multicast frames received | 32 bits | 32 bits |
//!
//! They are not cleared by reading, and wrap. Offsets: Intel 82576 and 82599 data sheets (statistics registers of VFs); Linux has
//! the same in drivers/net/ethernet/intel/igb/e1000_regs.h (`E1000_PFVFGPRC` and the next) and ixgbe/ixgbe_type.h
//! (`IXGBE_PVFGPRC` and the next), but for VFMPRC of the 82576: Linux does not read it there, and what the data sheet has for the VF
//! itself (0F3Ch, like 0F10h for 10010h) and QEMU's igb agree on 3Ch. The VF's number is that of its pool.

use super::accumulator::{Count, Reading, Value};

/// Which NIC's registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// 82576, 1 Gbit/s, up to 8 pools.
    I82576,
    /// 82599, 10 Gbit/s, up to 64 pools.
    I82599,
}

const INTEL: u16 = 0x8086;
/// Device numbers of the data sheets' variants, as in e1000_hw.h and ixgbe_type.h.
const IDS_82576: [u16; 8] = [0x10c9, 0x10e6, 0x10e7, 0x10e8, 0x150a, 0x150d, 0x1518, 0x1526];
const IDS_82599: [u16; 14] = [
    0x10f7, 0x10f8, 0x10f9, 0x10fb, 0x10fc, 0x1507, 0x1514, 0x151c, 0x1529, 0x152a, 0x154a, 0x154d, 0x1557,
    0x1558,
];

/// A counter of octets.
enum Octets {
    Narrow(u32),
    /// The lower 32 bits, and the upper 4.
    Wide(u32, u32),
}

impl Layout {
    /// Returns the layout of a PCI vendor and device; `None` if it is unknown.
    pub fn of((vendor, device): (u16, u16)) -> Option<Self> {
        match vendor {
            INTEL if IDS_82576.contains(&device) => Some(Self::I82576),
            INTEL if IDS_82599.contains(&device) => Some(Self::I82599),
            _ => None,
        }
    }

    /// Returns the number of VFs that have registers.
    pub const fn functions(self) -> u16 {
        match self {
            Self::I82576 => 8,
            Self::I82599 => 64,
        }
    }

    /// Returns the number of values of the counters of octets.
    pub const fn octets_range(self) -> u64 {
        match self {
            Self::I82576 => 1 << 32,
            Self::I82599 => 1 << 36,
        }
    }

    /// Returns the counts of a VF; `None` where the NIC has no registers for it, or does not answer. `register` reads the one at
    /// an offset.
    pub fn read(self, vf: u16, register: impl Fn(u32) -> Option<u32>) -> Option<Reading> {
        if vf >= self.functions() {
            return None;
        }
        let n = u32::from(vf);
        let (tx_frames, tx_octets, rx_frames, rx_octets, rx_multicast) = match self {
            Self::I82576 => {
                let base = 0x1_0000 + 0x100 * n;
                let octets = |offset| Octets::Narrow(base + offset);
                (base + 0x14, octets(0x34), base + 0x10, octets(0x18), base + 0x3c)
            }
            Self::I82599 => (
                0x8300 + 4 * n,
                Octets::Wide(0x8400 + 8 * n, 0x8404 + 8 * n),
                0x101c + 0x40 * n,
                Octets::Wide(0x1020 + 0x40 * n, 0xd020 + 0x40 * n),
                0xd01c + 0x40 * n,
            ),
        };
        let narrow = |offset| Some(Value { now: register(offset)?.into(), width: 32 });
        let octets = |octets| match octets {
            Octets::Narrow(offset) => narrow(offset),
            Octets::Wide(low, high) => wide(&register, low, high),
        };
        let values = [
            (Count::TxFrames, narrow(tx_frames)?),
            (Count::TxBytes, octets(tx_octets)?),
            (Count::RxFrames, narrow(rx_frames)?),
            (Count::RxBytes, octets(rx_octets)?),
            (Count::RxMulticast, narrow(rx_multicast)?),
        ];
        // Of a device that is gone or asleep, all bits are read as one.
        if values.iter().all(|(_, value)| value.now & GONE == GONE) {
            return None;
        }
        Some(
            values
                .into_iter()
                .fold(Reading::default().with_fcs(), |reading, (count, value)| reading.with(count, value)),
        )
    }
}

const GONE: u64 = 0xffff_ffff;

/// Two registers, of which the upper may change while the lower is read.
fn wide(register: impl Fn(u32) -> Option<u32>, low: u32, high: u32) -> Option<Value> {
    let mut upper = register(high)?;
    // The lower one takes seconds to go round: a second try is enough.
    for _ in 0..2 {
        let lower = register(low)?;
        let high_again = register(high)?;
        if high_again == upper {
            return Some(Value { now: u64::from(upper & 0xf) << 32 | u64::from(lower), width: 36 });
        }
        upper = high_again;
    }
    None
}
