//! What is wanted of one netdev.

use crate::limit::Limit;

/// The limits of one netdev. Directions are the VM's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shaping {
    /// Interface name.
    pub netdev: String,
    /// Of what the VM sends.
    pub tx: Option<Limit>,
    /// Of what the VM receives.
    pub rx: Option<Limit>,
    /// It was in force before: what others put in its place since is replaced. Otherwise others' qdiscs and
    /// filters are left alone, and the shaping is refused.
    pub held: bool,
}

/// Why a netdev cannot be shaped. Nothing of it is touched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Interface name.
    pub netdev: String,
    /// What is wrong, and what to do.
    pub reason: String,
}

/// The limits of one device, by the device's own view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sides {
    /// What the host sends into it.
    pub egress: Option<Limit>,
    /// What the host receives from it.
    pub ingress: Option<Limit>,
}

impl Shaping {
    /// Whether a device of this kind is limited at its egress and at its ingress; `None` where no VM can be
    /// behind one.
    pub fn uses(&self, kind: Option<&str>) -> Option<(bool, bool)> {
        self.sides(kind).map(|s| (s.egress.is_some(), s.ingress.is_some()))
    }

    /// On a device of this kind; `None` where a VM cannot be behind one.
    ///
    /// A tap's egress is what the VM receives. A macvtap is the VM's own device on the lower one: its egress is what the VM
    /// sends.
    pub(crate) fn sides(&self, kind: Option<&str>) -> Option<Sides> {
        match kind {
            Some("tun" | "veth") => Some(Sides { egress: self.rx, ingress: self.tx }),
            Some("macvtap") => Some(Sides { egress: self.tx, ingress: self.rx }),
            _ => None,
        }
    }
}
