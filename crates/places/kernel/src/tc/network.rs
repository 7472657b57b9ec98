//! The observed state: the netdevs of a network namespace, with their qdiscs, classes and filters.

use crate::ebpf::congestion::VirtualQueue;
use crate::ebpf::mark::Marks;
use crate::ebpf::police::Bucket;
use crate::handle::Handle;
use crate::tc::class::HtbClass;
use crate::tc::foreign_programs::ForeignProgram;
use crate::tc::ingress_chain::IngressChain;
use crate::tc::owner::{self, Cookie, Program};
pub use crate::tc::qdisc::{Qdisc, Setting};
use crate::tc::vlan::Vlans;
use std::collections::{BTreeMap, BTreeSet};

/// The part of a network namespace that the plan needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Network {
    /// By interface index.
    pub netdevs: BTreeMap<u32, Netdev>,
    /// Set if only some devices were observed: their indices, gone ones too. Beside them only our IFB is here, with the
    /// objects that belong to these devices.
    pub scope: Option<BTreeSet<u32>>,
    /// Foreign nftables rules at ingresses; empty if they were not read.
    pub ingress_chains: Vec<IngressChain>,
}

/// A network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Netdev {
    /// At most 15 bytes.
    pub name: String,
    /// Kind of a virtual device, such as `tun`, `veth`, `ifb`; physical ones have none.
    pub kind: Option<String>,
    /// Device group (`ip link set group`), 0 by default.
    pub group: u32,
    /// Whether it is the loopback, which reaches no VM.
    pub loopback: bool,
    /// Whether it is administratively up.
    pub up: bool,
    /// MTU, bytes without the Ethernet header; 0 if the kernel did not report it.
    pub mtu: u32,
    /// Its qdiscs, without those that the kernel makes by itself below others.
    pub qdiscs: Vec<Qdisc>,
    /// The classes of a root qdisc of ours.
    pub classes: Vec<Class>,
    /// The filters at its ingress, and the filters of a root qdisc of ours.
    pub filters: Vec<Filter>,
    /// Interface index of the bridge or bond that it is a port of.
    pub master: Option<u32>,
    /// VLAN settings, if it is a Linux bridge.
    pub bridge: Option<Bridge>,
    /// VLANs of its bridge port; `None` if it is none, or they were not read.
    pub vlans: Option<Vlans>,
    /// Foreign eBPF programs that get its received frames before the filters at its ingress; tcx programs only if a filter is ours.
    pub foreign_programs: Vec<ForeignProgram>,
}

/// The VLAN settings of a Linux bridge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bridge {
    /// Whether ports pass frames of their own VLANs only (`vlan_filtering`).
    pub filters: bool,
    /// The VLAN of a new port (`vlan_default_pvid`).
    pub default_pvid: Option<u16>,
}

/// A class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Class {
    /// Its name.
    pub id: Handle,
    /// The class above; [`Handle::ROOT`] if there is none.
    pub parent: Handle,
    /// HTB parameters; `None` for a class of another kind.
    pub htb: Option<HtbClass>,
    /// What it counted.
    pub counters: Counters,
}

/// The counters of a class since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Wire bytes sent.
    pub bytes: u64,
    /// Frames sent; each segment of a super-frame is one.
    pub packets: u64,
    /// Frames dropped from the queue, because it was full or by CoDel; an uncut super-frame counts once.
    pub drops: u64,
    /// Of `drops`: because the queue was full.
    pub full: u64,
    /// Frames that CoDel marked (CE) instead.
    pub marked: u64,
    /// Flows with frames, if they are separate: the longest one makes room. The kernel may count one that
    /// has just become empty.
    pub flows: Option<u64>,
    /// Bytes that wait now.
    pub backlog: u64,
}

/// A filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// [`Handle::INGRESS`], or a qdisc.
    pub parent: Handle,
    /// The kernel tries lower preferences first.
    pub preference: u16,
    /// Ethernet protocol; 3 is all of them (`ETH_P_ALL`).
    pub protocol: u16,
    /// Such as `u32`.
    pub kind: String,
    /// Its number among the filters of its preference.
    pub handle: u32,
    /// Every frame passes the filters of chain 0, and another chain only if a filter leads there (`goto chain`).
    pub chain: u32,
    /// What it does.
    pub rule: Rule,
}

/// The action of a filter of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rule {
    /// All frames go to the egress of another device.
    Redirect {
        /// Its interface index; 0 if it is gone.
        to: u32,
        /// Our mark.
        cookie: Cookie,
    },
    /// Frames above a rate are dropped.
    Police {
        /// The rate.
        bucket: Bucket,
        /// The eBPF program; its counters are in its map.
        program: Program,
        /// Our mark.
        cookie: Cookie,
    },
    /// Priority marks are set or cleared.
    Mark {
        /// Set or clear.
        marks: Marks,
        /// The eBPF program; its counters are in its map.
        program: Program,
        /// Our mark.
        cookie: Cookie,
    },
    /// Frames that would wait for long in one queue for all are marked (CE).
    MarkCongestion {
        /// That queue.
        queue: VirtualQueue,
        /// The eBPF program; its counters are in its map.
        program: Program,
        /// Our mark.
        cookie: Cookie,
    },
    /// Frames from a device go to its class.
    Classify {
        /// The eBPF program with its map.
        program: Program,
        /// The map's classes, by interface index; devices may be gone. Empty for an older agent's program.
        classes: BTreeMap<u32, Handle>,
    },
    /// Any other action.
    Other,
}

/// Every protocol (`ETH_P_ALL`).
pub const ANY_PROTOCOL: u16 = 3;

impl Network {
    /// Returns a link with its index.
    pub fn by_name(&self, name: &str) -> Option<(u32, &Netdev)> {
        self.netdevs.iter().find(|(_, l)| l.name == name).map(|(i, l)| (*i, l))
    }

    /// Returns our IFB, with its index.
    pub fn ifb(&self) -> Option<(u32, &Netdev)> {
        self.netdevs.iter().find(|(_, l)| l.is_our_ifb()).map(|(i, l)| (*i, l))
    }

    /// Returns all netdevs with their indices, for many lookups.
    pub fn names(&self) -> BTreeMap<&str, (u32, &Netdev)> {
        self.netdevs.iter().map(|(i, l)| (l.name.as_str(), (*i, l))).collect()
    }

    /// Returns foreign rules for frames that a device receives, applied after the filters of its ingress.
    pub fn rules_at<'a>(&'a self, device: &'a str) -> impl Iterator<Item = &'a IngressChain> {
        self.ingress_chains.iter().filter(move |chain| chain.decides(device))
    }

    /// Whether this network includes a device, seen or gone.
    pub fn is_about(&self, index: u32) -> bool {
        self.scope.as_ref().is_none_or(|scope| scope.contains(&index))
    }
}

impl Netdev {
    /// Returns the root qdisc, unless the kernel made it by itself.
    pub fn root(&self) -> Option<&Qdisc> {
        self.qdiscs.iter().find(|q| q.parent == Handle::ROOT && q.handle.major() != 0)
    }

    /// Returns the ingress or clsact qdisc.
    pub fn ingress(&self) -> Option<&Qdisc> {
        self.qdiscs.iter().find(|q| q.parent == Handle::CLSACT)
    }

    /// Returns the qdisc of a class.
    pub fn leaf(&self, class: Handle) -> Option<&Qdisc> {
        self.qdiscs.iter().find(|q| q.parent == class)
    }

    /// Returns a class by its handle.
    pub fn class(&self, id: Handle) -> Option<&Class> {
        self.classes.iter().find(|c| c.id == id)
    }

    /// Returns the filters at one parent.
    pub fn filters_at(&self, parent: Handle) -> impl Iterator<Item = &Filter> + Clone {
        self.filters.iter().filter(move |f| f.parent == parent)
    }

    /// Returns the foreign filters at its ingress that every frame passes. Ours lead to no other chain.
    pub fn others_at_ingress(&self) -> impl Iterator<Item = &Filter> + Clone {
        self.filters_at(Handle::INGRESS).filter(|f| f.chain == 0 && f.cookie().is_none())
    }

    /// Returns our classifier at its root qdisc.
    pub fn classifier(&self) -> Option<&Filter> {
        self.filters_at(owner::ROOT_QDISC).find(|f| {
            matches!(f.rule, Rule::Classify { program, .. } if program.is_current())
                && f.place() == (0, owner::PREFERENCE, ANY_PROTOCOL)
        })
    }

    /// Returns the number of its classifier's map.
    pub fn classifier_map(&self) -> Option<u32> {
        match &self.classifier()?.rule {
            Rule::Classify { program, .. } => Some(program.map),
            _ => None,
        }
    }

    /// Returns its classifier's classes, by interface index.
    pub fn classified(&self) -> impl Iterator<Item = (u32, Handle)> {
        let classes = self.classifier().and_then(|f| match &f.rule {
            Rule::Classify { classes, .. } => Some(classes),
            _ => None,
        });
        classes.into_iter().flatten().map(|(from, to)| (*from, *to))
    }

    /// Whether its root qdisc has our mark.
    pub fn root_is_ours(&self) -> bool {
        self.root().is_some_and(|q| q.handle == owner::ROOT_QDISC)
    }

    /// Whether any object on it has our marks.
    pub fn is_marked(&self) -> bool {
        self.root_is_ours() || self.filters_at(Handle::INGRESS).any(|f| f.cookie().is_some())
    }

    /// Whether filters choose the classes of its root qdisc, which is ours.
    pub fn has_leaves(&self) -> bool {
        let all_in_one = Setting::Htb { default: owner::ROOT_CLASS.minor().into() };
        self.root_is_ours() && self.root().is_some_and(|q| q.setting != all_in_one)
    }

    /// Whether filters of ours may be at its root qdisc: a classifier, or congestion marks, which
    /// self-marking queues lack.
    pub fn may_have_root_filters(&self) -> bool {
        let marks = |q: &Qdisc| {
            matches!(q.setting, Setting::FqCodel { .. } | Setting::Cake { .. }) && q.parent != Handle::ROOT
        };
        self.has_leaves() || self.root_is_ours() && !self.qdiscs.iter().any(marks)
    }

    /// Returns the map number of the congestion filter before a qdisc of it, or at its ingress.
    pub fn congestion_map(&self, parent: Handle) -> Option<u32> {
        self.filters_at(parent).find_map(|f| match f.rule {
            Rule::MarkCongestion { program, .. } => Some(program.map),
            _ => None,
        })
    }

    /// Whether it is our IFB.
    pub fn is_our_ifb(&self) -> bool {
        self.name == owner::IFB && self.kind.as_deref() == Some("ifb") && self.group == owner::IFB_GROUP
    }
}

impl Filter {
    /// In a deletion: all filters of a preference.
    pub const ALL: u32 = 0;

    /// Returns chain, preference and protocol: filters with these in common are of one kind.
    pub fn place(&self) -> (u32, u16, u16) {
        (self.chain, self.preference, self.protocol)
    }

    /// Returns our mark, if it has one.
    pub fn cookie(&self) -> Option<Cookie> {
        match self.rule {
            Rule::Redirect { cookie, .. }
            | Rule::Police { cookie, .. }
            | Rule::Mark { cookie, .. }
            | Rule::MarkCongestion { cookie, .. } => Some(cookie),
            _ => None,
        }
    }

    /// Whether it is ours and marks priorities.
    pub fn marks(&self) -> bool {
        matches!(self.rule, Rule::Mark { .. })
    }

    /// Whether it is ours and marks congestion.
    pub fn marks_congestion(&self) -> bool {
        matches!(self.rule, Rule::MarkCongestion { .. })
    }
}
