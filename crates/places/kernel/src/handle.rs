//! Names of qdiscs and classes: `major:minor`, 16 bits each (linux/pkt_sched.h).

use serde::{Deserialize, Serialize};
use std::fmt;

/// Major of our qdiscs: the bytes "td", as in the stamp of the uplink.
pub const MAJOR: u16 = 0x7464;

/// A qdisc is `major:0`, a class of it `major:minor`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Handle(pub u32);

impl Handle {
    /// Parent of the qdisc at the root of a device (`TC_H_ROOT`).
    pub const ROOT: Self = Self(0xffff_ffff);
    /// Parent of an ingress or clsact qdisc (`TC_H_CLSACT`).
    pub const CLSACT: Self = Self(0xffff_fff1);
    /// The ingress or clsact qdisc itself; a device has at most one.
    pub const INGRESS_QDISC: Self = Self(0xffff_0000);
    /// Parent of the filters for frames that a device receives.
    pub const INGRESS: Self = Self(0xffff_fff2);

    /// `major:minor`.
    pub const fn new(major: u16, minor: u16) -> Self {
        Self((major as u32) << 16 | minor as u32)
    }

    /// Returns the qdisc's part; 0 if the kernel made it by itself.
    pub const fn major(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// Returns the class's part.
    pub const fn minor(self) -> u16 {
        self.0 as u16
    }
}

impl fmt::Display for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (*self, self.minor()) {
            (Self::ROOT, _) => f.write_str("root"),
            (Self::CLSACT, _) => f.write_str("clsact"),
            (Self::INGRESS, _) => f.write_str("ingress"),
            (_, 0) => write!(f, "{:x}:", self.major()),
            (_, minor) => write!(f, "{:x}:{minor:x}", self.major()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_as_tc_does() {
        assert_eq!(Handle::new(0x7464, 0).to_string(), "7464:");
        assert_eq!(Handle::new(0x7464, 0x1f).to_string(), "7464:1f");
        assert_eq!(Handle::ROOT.to_string(), "root");
        assert_eq!(Handle::INGRESS_QDISC.to_string(), "ffff:");
        assert_eq!((Handle::new(0xabcd, 0x12).major(), Handle::new(0xabcd, 0x12).minor()), (0xabcd, 0x12));
    }
}
