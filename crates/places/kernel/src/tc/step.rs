//! One request to the kernel.

use crate::ebpf::congestion::VirtualQueue;
use crate::ebpf::mark::Marks;
use crate::ebpf::police::Bucket;
use crate::handle::Handle;
use crate::tc::class::HtbClass;
use crate::tc::network::{Filter, Netdev, Setting};
use crate::tc::object::Object;
use crate::tc::owner;
use crate::tc::vlan::Vlans;
use std::fmt;

/// A device that a step is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Device {
    /// Our IFB; it may not be there yet when the plan is made.
    Ifb,
    /// A netdev. The index decides: a device of the same name may be another one by now.
    Netdev {
        /// Interface index.
        index: u32,
        /// For messages.
        name: String,
    },
}

impl Device {
    /// An observed netdev.
    pub fn of(index: u32, netdev: &Netdev) -> Self {
        Self::Netdev { index, name: netdev.name.clone() }
    }
}

/// One request: the kernel does it wholly or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Makes our IFB, with its mark, down.
    AddIfb,
    /// Our IFB goes, with all that is on it.
    DeleteIfb,
    /// Brings our IFB up: while down it drops what it is given.
    RaiseIfb,
    /// Makes a qdisc, or gives the one of that parent another setting.
    SetQdisc {
        /// Where.
        device: Device,
        /// Root, clsact, or a class.
        parent: Handle,
        /// Its name; 0 lets the kernel choose.
        handle: Handle,
        /// What it is to be.
        setting: Setting,
        /// Whether it may take the place of another qdisc.
        replace: bool,
    },
    /// A qdisc goes, with its classes and filters.
    DeleteQdisc {
        /// Where.
        device: Device,
        /// Root or clsact.
        parent: Handle,
        /// Its name.
        handle: Handle,
    },
    /// Makes a class of our root qdisc, or changes it; what waits stays.
    SetClass {
        /// Where.
        device: Device,
        /// Its name.
        id: Handle,
        /// The class it is part of, or [`Handle::ROOT`].
        parent: Handle,
        /// What HTB is told.
        class: HtbClass,
    },
    /// A class goes, with its queue.
    DeleteClass {
        /// Where.
        device: Device,
        /// Its name.
        id: Handle,
    },
    /// At the ingress of a netdev: everything goes to our IFB.
    Redirect {
        /// Where.
        device: Device,
        /// Our mark.
        cookie: owner::Cookie,
    },
    /// At the ingress of a netdev: what is more than a rate is dropped.
    Police {
        /// Where.
        device: Device,
        /// The rate.
        bucket: Bucket,
        /// Our mark.
        cookie: owner::Cookie,
        /// The policer whose place it takes, and whose counters it goes on with: handle of the filter, number of the map.
        instead: Option<(u32, u32)>,
    },
    /// At the ingress of a netdev, before the two above: priority marks are set or cleared.
    Mark {
        /// Where.
        device: Device,
        /// Which.
        marks: Marks,
        /// Our mark.
        cookie: owner::Cookie,
        /// As for [`Step::Police`].
        instead: Option<(u32, u32)>,
    },
    /// Before a limit, whose frames wait in one queue for all: those that would wait for long are marked (CE).
    MarkCongestion {
        /// Where.
        device: Device,
        /// Its ingress, or our root qdisc.
        parent: Handle,
        /// The queue.
        queue: VirtualQueue,
        /// Our mark.
        cookie: owner::Cookie,
        /// As for [`Step::Police`].
        instead: Option<(u32, u32)>,
    },
    /// At our root qdisc of a device: what came in by a netdev goes to the class that a map says, which is empty yet.
    AddClassifier {
        /// Where.
        device: Device,
    },
    /// In the map of the classifier there: what came in by a netdev goes to a class.
    Classify {
        /// Where.
        device: Device,
        /// The netdev.
        from: Device,
        /// The class.
        to: Handle,
    },
    /// In the map of the classifier there: no class for a netdev.
    Unclassify {
        /// Where.
        device: Device,
        /// Interface index of the netdev, which may be gone.
        from: u32,
    },
    /// A filter goes.
    DeleteFilter {
        /// Where.
        device: Device,
        /// Which; with the handle [`Filter::ALL`] its preference, and all filters of that in its chain.
        filter: Filter,
    },
    /// A bridge port comes into VLANs, or belongs to them in another way. Of several, the kernel may do the first ones only.
    SetVlans {
        /// Where.
        device: Device,
        /// Which, and how.
        vlans: Vlans,
    },
    /// A bridge port leaves VLANs.
    DeleteVlans {
        /// Where.
        device: Device,
        /// Which.
        vlans: Vlans,
    },
    /// What others made is made again.
    Restore {
        /// Where.
        device: Device,
        /// What.
        object: Object,
    },
}

impl Step {
    /// The device that it changes.
    pub fn device(&self) -> Device {
        match self {
            Self::AddIfb | Self::DeleteIfb | Self::RaiseIfb => Device::Ifb,
            Self::SetQdisc { device, .. }
            | Self::DeleteQdisc { device, .. }
            | Self::SetClass { device, .. }
            | Self::DeleteClass { device, .. }
            | Self::Redirect { device, .. }
            | Self::Police { device, .. }
            | Self::AddClassifier { device }
            | Self::Classify { device, .. }
            | Self::Unclassify { device, .. }
            | Self::Mark { device, .. }
            | Self::MarkCongestion { device, .. }
            | Self::DeleteFilter { device, .. }
            | Self::SetVlans { device, .. }
            | Self::DeleteVlans { device, .. }
            | Self::Restore { device, .. } => device.clone(),
        }
    }
}

impl Step {
    /// Whether frames would be lost by it where one before it in the same plan failed. Else it is done all the same: what
    /// is wrong with one netdev is no reason to leave another as it is.
    pub fn must_not_follow(&self, failed: &Self) -> bool {
        match self {
            // Into an interface that drops them.
            Self::Redirect { .. } => *failed == Self::RaiseIfb,
            // To which something may lead still.
            Self::DeleteIfb => true,
            // That was to have others by now.
            Self::DeleteVlans { device, .. } => {
                matches!(failed, Self::SetVlans { device: other, .. } if other == device)
            }
            _ => false,
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ifb => owner::IFB,
            Self::Netdev { name, .. } => name,
        })
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AddIfb => write!(f, "make interface {}", owner::IFB),
            Self::DeleteIfb => write!(f, "delete interface {}", owner::IFB),
            Self::RaiseIfb => write!(f, "bring interface {} up", owner::IFB),
            Self::SetQdisc { device, parent, setting, .. } => {
                write!(f, "set qdisc {} at {parent} of {device}", setting.kind())
            }
            Self::DeleteQdisc { device, parent, handle } => {
                write!(f, "delete qdisc {handle} at {parent} of {device}")
            }
            Self::SetClass { device, id, class, .. } => {
                write!(f, "set class {id} of {device} to {} bytes/s", class.rate)
            }
            Self::DeleteClass { device, id } => write!(f, "delete class {id} of {device}"),
            Self::Redirect { device, .. } => write!(f, "redirect what {device} receives to {}", owner::IFB),
            Self::Police { device, bucket, .. } => {
                write!(f, "police what {device} receives to {} bytes/s", bucket.rate)
            }
            Self::AddClassifier { device } => write!(f, "classify what goes to {device} by where it came in"),
            Self::Classify { device, from, to } => {
                write!(f, "put what {from} receives into class {to} of {device}")
            }
            Self::Unclassify { device, from } => {
                write!(f, "put what interface {from} receives into no class of {device}")
            }
            Self::Mark { device, marks: Marks::Clear, .. } => {
                write!(f, "clear real-time marks in what {device} receives")
            }
            Self::Mark { device, marks: Marks::Set { .. }, .. } => {
                write!(f, "mark what {device} receives as real-time")
            }
            Self::MarkCongestion { device, parent: Handle::INGRESS, .. } => {
                write!(f, "mark congestion in what {device} receives")
            }
            Self::MarkCongestion { device, .. } => write!(f, "mark congestion in what goes to {device}"),
            Self::DeleteFilter { device, filter: Filter { kind, preference, parent, chain, .. } } => {
                let chain = if *chain == 0 { String::new() } else { format!(" in chain {chain}") };
                write!(
                    f,
                    "delete the {kind} filter of preference {preference}{chain} at {parent} of {device}"
                )
            }
            Self::SetVlans { device, vlans } => write!(f, "put {device} into VLAN {vlans}"),
            Self::DeleteVlans { device, vlans } => write!(f, "take {device} out of VLAN {vlans}"),
            Self::Restore { device, object } => write!(f, "make {object} of {device} again, as it was"),
        }
    }
}
