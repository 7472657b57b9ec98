//! The wanted state of one netdev.

use crate::ebpf::mark::Marks;
use crate::ebpf::police::Bucket;
use crate::limit::Limit;
use crate::tc::queueing::{Flows, Host, Waiting};
use serde::{Deserialize, Serialize};

/// The limits of one netdev, and its segment. Directions are the VM's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shaping {
    /// Interface name.
    pub netdev: String,
    /// Limit of the frames that the VM sends; frames above it wait.
    pub tx: Option<Limit>,
    /// Limit of the frames that the VM sends; frames above it are dropped. Ignored if `tx` is set.
    pub tx_police: Option<Bucket>,
    /// Priority marks of the frames that the VM sends; `None` leaves them unchanged. A macvtap cannot set them.
    pub marks: Option<Marks>,
    /// Frames that the VM sends go before those of other VMs.
    pub realtime: bool,
    /// A receiver has a share for the frames that this VM sends.
    pub promises: bool,
    /// Limit of the frames that the VM receives.
    pub rx: Option<Limit>,
    /// The shares of `rx` by sender. Ignored without `rx`.
    pub rx_shares: Vec<Share>,
    /// Queueing by flow of frames without a deadline; `None` is one queue for all.
    pub flows: Option<Flows>,
    /// Received frames wait in one queue for all, also if `flows` is set.
    pub rx_in_order: bool,
    /// The VLAN that its bridge port is an access port of, 1 to [`LAST`](crate::tc::vlan::LAST); `None` leaves the port as it is.
    pub segment: Option<u16>,
    /// The parts in force before, or taken over: foreign objects in their place are replaced. Foreign qdiscs, filters and VLANs
    /// elsewhere are left alone, and the shaping is refused.
    pub owned: Ways,
}

/// One sender's share of the rate at which a VM receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// The sender's netdev.
    pub from: String,
    /// Guaranteed rate; `None` guarantees none, and the sender gets only its part of the rest.
    pub guaranteed: Option<Limit>,
    /// 0 goes first; [`Share::LAST`] is for senders without a deadline.
    pub priority: u8,
    /// Its weight in the rest, 1 to 1000; all senders without a share together have weight 1.
    pub weight: u32,
}

impl Share {
    /// Priority of senders without a deadline.
    pub const LAST: u8 = tidegate_contract::admission::LEVELS;
}

/// The parts of a netdev that a contract may set: the two directions of its VM, and the VLANs of its bridge port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ways {
    /// Frames that the VM sends.
    pub tx: bool,
    /// Frames that the VM receives.
    pub rx: bool,
    /// Its VLANs.
    #[serde(default)]
    pub segment: bool,
}

impl Ways {
    /// None of it.
    pub const NONE: Self = Self { tx: false, rx: false, segment: false };
    /// Both directions, and the VLANs.
    pub const BOTH: Self = Self { tx: true, rx: true, segment: true };

    /// Returns the parts of either.
    pub fn or(self, other: Self) -> Self {
        Self { tx: self.tx || other.tx, rx: self.rx || other.rx, segment: self.segment || other.segment }
    }

    /// The ends of a device of this kind; `None` if no VM can be behind such a device.
    pub fn ends(self, kind: Option<&str>) -> Option<Ends> {
        by_end(kind, self.tx, self.rx).map(|(egress, ingress)| Ends { egress, ingress })
    }
}

/// Returns the settings of a device's egress and ingress, from those of its VM's tx and rx; `None` for a
/// kind without a VM behind it.
///
/// A tap's egress is the VM's rx; a physical device's, the rx of the network outside. A macvtap is the VM's
/// own device on the lower one: its egress is the VM's tx.
fn by_end<T>(kind: Option<&str>, tx: T, rx: T) -> Option<(T, T)> {
    match kind {
        Some("tun" | "veth") => Some((rx, tx)),
        Some("macvtap") => Some((tx, rx)),
        // Frames sent into the network outside are those that it receives.
        None | Some("bond" | "team" | "vlan") => Some((rx, tx)),
        _ => None,
    }
}

/// The two ends of a device, by its own view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ends {
    /// Its root qdisc: frames that the host sends into it.
    pub egress: bool,
    /// Its ingress qdisc: frames that the host receives from it.
    pub ingress: bool,
}

impl Ends {
    /// Both.
    pub const BOTH: Self = Self { egress: true, ingress: true };

    /// Returns each of them by itself.
    pub fn each(self) -> impl Iterator<Item = Self> {
        let none = Self::default();
        let each = [Self { egress: self.egress, ..none }, Self { ingress: self.ingress, ..none }];
        each.into_iter().filter(move |end| *end != none)
    }

    /// Returns the ends that `other` lacks.
    pub fn without(self, other: Self) -> Self {
        Self { egress: self.egress && !other.egress, ingress: self.ingress && !other.ingress }
    }
}

/// A refusal to shape a netdev. The netdev stays as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetdevRefusal {
    /// Interface name.
    pub netdev: String,
    /// The obstacle, and what to do.
    pub reason: String,
    /// The foreign object there, if it is the only obstacle: it can be taken over.
    pub foreign: Option<String>,
}

impl NetdevRefusal {
    /// Returns a refusal that no take-over ends.
    pub fn new(netdev: &str, reason: String) -> Self {
        Self { netdev: netdev.to_owned(), reason, foreign: None }
    }
}

/// The limits of one device, by the device's own view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sides<'a> {
    /// Limit of frames that the host sends into it.
    pub egress: Option<Limit>,
    /// The shares of that.
    pub shares: &'a [Share],
    /// Limit of frames that the host receives from it.
    pub ingress: Option<Limit>,
    /// The same, by a policer.
    pub police: Option<Bucket>,
    /// Frames that the host receives from it precede those from others.
    pub realtime: bool,
    /// Priority marks of frames that the host receives from it.
    pub marks: Option<Marks>,
    /// Flow settings of frames that the host sends into it, and receives from it.
    pub flows: (Option<Flows>, Option<Flows>),
    /// Addresses that identify hosts in frames that the host sends into it, and receives from it.
    pub hosts: (Host, Host),
}

impl Sides<'_> {
    /// Whether the ingress is limited in either way.
    pub fn limits_ingress(self) -> bool {
        self.ingress.is_some() || self.police.is_some()
    }

    /// Returns the objects below the egress class of a device with this MTU.
    pub fn waiting_at_egress(self, limit: Limit, mtu: u32) -> Waiting {
        Waiting::new(limit, self.flows.0, self.hosts.0, mtu)
    }

    /// Returns the same for its ingress.
    pub fn waiting_at_ingress(self, limit: Limit, mtu: u32) -> Waiting {
        Waiting::new(limit, self.flows.1, self.hosts.1, mtu)
    }

    /// Whether a filter of ours belongs to the ingress.
    pub fn filters_ingress(self) -> bool {
        self.limits_ingress() || self.marks.is_some()
    }
}

impl Shaping {
    /// The ends of a device of this kind that are limited; `None` where no VM can be behind one.
    pub fn uses(&self, kind: Option<&str>) -> Option<Ends> {
        self.sides(kind).map(|s| Ends { egress: s.egress.is_some(), ingress: s.limits_ingress() })
    }

    /// Whether what a device of this kind receives waits on our IFB.
    pub fn redirects(&self, kind: Option<&str>) -> bool {
        self.sides(kind).is_some_and(|sides| sides.ingress.is_some())
    }

    /// On a device of this kind; `None` where a VM cannot be behind one.
    pub(crate) fn sides(&self, kind: Option<&str>) -> Option<Sides<'_>> {
        let (egress, ingress) = by_end(kind, self.tx, self.rx)?;
        // What a macvtap sends does not come in anywhere: the plan refuses that.
        let comes_in = by_end(kind, true, false) == Some((false, true));
        // Marks of what comes from the network outside are that network's.
        let is_vm = matches!(kind, Some("tun" | "veth"));
        Some(Sides {
            egress,
            shares: if comes_in { &self.rx_shares } else { &[] },
            ingress,
            police: self.tx_police.filter(|_| comes_in && self.tx.is_none()),
            realtime: self.realtime,
            marks: self.marks.filter(|_| is_vm),
            flows: by_end(
                kind,
                self.flows.filter(|_| !self.realtime),
                self.flows.filter(|_| !self.rx_in_order),
            )?,
            hosts: by_end(kind, Host::Source, Host::Destination)?,
        })
    }
}
