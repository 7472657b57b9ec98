//! The sources of a NIC's counters of its VFs.

use std::fmt;

/// The source of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// Statistics of VFs by the PF's driver (`IFLA_VF_STATS`), 64 bits.
    VfStatistics,
    /// Registers of the NIC, read by mapping a file of the PF, 32 or 36 bits.
    Registers,
    /// The VF's representor in switchdev mode, 64 bits.
    Representor,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::VfStatistics => "VF statistics",
            Self::Registers => "registers",
            Self::Representor => "representor",
        })
    }
}
