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

/// One request, which the kernel does wholly or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Makes our IFB, with its mark, down.
    AddIfb,
    /// Removes our IFB, with all on it.
    DeleteIfb,
    /// Brings our IFB up: while down it drops frames.
    RaiseIfb,
    /// Makes a qdisc, or changes the settings of the parent's one.
    SetQdisc {
        /// The device.
        device: Device,
        /// Root, clsact, a class, or the place below a qdisc that cuts.
        parent: Handle,
        /// Its handle; 0 lets the kernel choose.
        handle: Handle,
        /// Its settings.
        setting: Setting,
        /// Whether it may replace another qdisc.
        replace: bool,
    },
    /// Removes a qdisc, with its classes and filters.
    DeleteQdisc {
        /// The device.
        device: Device,
        /// Root, clsact, or a class.
        parent: Handle,
        /// Its handle.
        handle: Handle,
    },
    /// Makes a class of our root qdisc, or changes it; waiting frames stay.
    SetClass {
        /// The device.
        device: Device,
        /// Its handle.
        id: Handle,
        /// Its parent class, or [`Handle::ROOT`].
        parent: Handle,
        /// HTB's parameters.
        class: HtbClass,
    },
    /// Removes a class, with its queue.
    DeleteClass {
        /// The device.
        device: Device,
        /// Its handle.
        id: Handle,
    },
    /// At the ingress of a netdev: sends all frames to our IFB.
    Redirect {
        /// The netdev.
        device: Device,
        /// Our mark.
        cookie: owner::Cookie,
    },
    /// At the ingress of a netdev: drops frames above a rate.
    Police {
        /// The netdev.
        device: Device,
        /// The rate.
        bucket: Bucket,
        /// Our mark.
        cookie: owner::Cookie,
        /// The policer to replace, whose counters continue: handle of the filter, number of the map.
        instead: Option<(u32, u32)>,
    },
    /// At the ingress of a netdev, before the two above: sets or clears priority marks.
    Mark {
        /// The netdev.
        device: Device,
        /// Set or clear.
        marks: Marks,
        /// Our mark.
        cookie: owner::Cookie,
        /// As for [`Step::Police`].
        instead: Option<(u32, u32)>,
    },
    /// Before a limit with one queue for all: marks (CE) frames that would wait for long.
    MarkCongestion {
        /// The device.
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
    /// At our root qdisc of a device: sends frames to classes by their netdev of origin, through an empty
    /// map.
    AddClassifier {
        /// The device.
        device: Device,
    },
    /// In the map of the device's classifier: sends frames of a netdev to a class.
    Classify {
        /// The device.
        device: Device,
        /// The netdev.
        from: Device,
        /// The class.
        to: Handle,
    },
    /// In the map of the device's classifier: removes a netdev's class.
    Unclassify {
        /// The device.
        device: Device,
        /// Interface index of the netdev, which may be gone.
        from: u32,
    },
    /// Removes a filter.
    DeleteFilter {
        /// The device.
        device: Device,
        /// The filter; with the handle [`Filter::ALL`] all filters of its preference in its chain.
        filter: Filter,
    },
    /// Puts a bridge port into VLANs, or changes its membership. Of several, the kernel may do only the
    /// first ones.
    SetVlans {
        /// The port.
        device: Device,
        /// The VLANs with membership.
        vlans: Vlans,
    },
    /// Removes a bridge port from VLANs.
    DeleteVlans {
        /// The port.
        device: Device,
        /// The VLANs.
        vlans: Vlans,
    },
    /// Restores a foreign object.
    Restore {
        /// The device.
        device: Device,
        /// The object.
        object: Object,
    },
}

impl Step {
    /// Returns the device that it changes.
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
    /// Whether it would lose frames after a failed earlier step of the same plan. Otherwise it is done: a
    /// fault of one netdev must not affect others.
    pub fn must_not_follow(&self, failed: &Self) -> bool {
        match self {
            // It leads into an interface that drops frames.
            Self::Redirect { .. } => *failed == Self::RaiseIfb,
            // Filters may still lead to it.
            Self::DeleteIfb => true,
            // The port has not got the new VLANs.
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
