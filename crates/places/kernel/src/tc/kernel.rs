//! The kernel of a network namespace: observes it, and changes it step by step.

use crate::ebpf::classify::{Classes, Classifier, ClassifyError};
use crate::ebpf::congestion::{CongestionMarker, Marked, VirtualQueue};
use crate::ebpf::mark::{Dropped, Marker, Marks};
use crate::ebpf::police::{Bucket, Policed, Policer};
use crate::handle::Handle;
use crate::tc::foreign_programs;
use crate::tc::netlink::attribute::Attributes;
use crate::tc::netlink::constants::{
    IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS, RTM_GETLINK, RTM_GETQDISC, RTM_GETTCLASS, RTM_GETTFILTER,
};
use crate::tc::netlink::{
    self, Names, NetlinkError, QueueDrops, Socket, bridge, chains, header, link_header, link_named,
};
use crate::tc::network::{Class, Netdev, Network, Qdisc, Rule};
use crate::tc::nftables::IngressChains;
use crate::tc::object::Layer;
use crate::tc::owner;
use crate::tc::plan::{Plan, plan};
use crate::tc::shaping::Shaping;
use crate::tc::step::{Device, Step};
use crate::tc::vlan::Vlans;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::AsRawFd;

/// The failure of a step. It was not done; the steps before it were.
#[derive(Debug, thiserror::Error)]
#[error("cannot {step}: {why}")]
pub struct StepError {
    /// The step, in words.
    pub step: String,
    /// What is wrong, and what to do.
    pub why: String,
}

/// A failed observation.
#[derive(Debug, thiserror::Error)]
pub enum ObserveError {
    /// The kernel does not answer.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// A map cannot be read.
    #[error(transparent)]
    Classify(#[from] ClassifyError),
}

/// The kernel, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Kernel {
    pub(crate) socket: Socket,
    /// Interface index of our IFB, as last seen.
    ifb: Option<u32>,
    /// The map of each device's classifier, by interface index, as last seen.
    classifiers: BTreeMap<u32, Classes>,
    /// The program that clears marks, once needed: all netdevs share it.
    clearing: Option<Marker>,
    ingress_chains: IngressChains,
}

impl Kernel {
    /// Opens the conversation. Observing needs no rights, changes need CAP_NET_ADMIN.
    ///
    /// # Errors
    /// The operating system refused.
    pub fn open() -> io::Result<Self> {
        Ok(Self {
            socket: Socket::route()?,
            ifb: None,
            classifiers: BTreeMap::new(),
            clearing: None,
            ingress_chains: IngressChains::default(),
        })
    }

    /// Adds the VLANs of bridge ports to an observed network: one request for all.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn read_vlans(&mut self, network: &mut Network) -> Result<(), NetlinkError> {
        let ports = self.socket.dump(RTM_GETLINK, &bridge::ports(), |_, body| bridge::port(body))?;
        let mut ports: BTreeMap<u32, Vlans> = ports.into_iter().collect();
        let is_bridge = |index: u32| network.netdevs.get(&index).is_some_and(|link| link.bridge.is_some());
        let on_bridges: Vec<u32> = network
            .netdevs
            .iter()
            .filter(|(_, link)| link.master.is_some_and(is_bridge))
            .map(|(index, _)| *index)
            .collect();
        for index in on_bridges {
            if let Some(link) = network.netdevs.get_mut(&index) {
                link.vlans = Some(ports.remove(&index).unwrap_or_default());
            }
        }
        Ok(())
    }

    /// Adds foreign nftables rules at ingresses to an observed network. The first time, the kernel may load
    /// nftables for it.
    ///
    /// # Errors
    /// The kernel does not answer, or forbids the query: the last known rules are added.
    pub fn read_ingress_rules(&mut self, network: &mut Network) -> Result<(), NetlinkError> {
        let read = self.ingress_chains.read(network);
        network.ingress_chains = self.ingress_chains.known().to_vec();
        read
    }

    /// Reads the network. Classes and filters are read only where they may concern us: two requests for the
    /// whole namespace, and a few for each device with shaping or an ingress qdisc.
    ///
    /// # Errors
    /// The kernel does not answer, or forbids reading the map of a classifier (`CAP_SYS_ADMIN`).
    pub fn observe(&mut self) -> Result<Network, ObserveError> {
        let links = self.socket.dump(RTM_GETLINK, &links(), |_, body| netlink::link(body))?;
        let mut links: BTreeMap<u32, Netdev> = links.into_iter().collect();
        let qdiscs = self.socket.dump(RTM_GETQDISC, &on(0, Handle::default()), |_, body| {
            let message = netlink::traffic_control(body)?;
            Some((message.index, message.dropped(), message.qdisc()))
        })?;
        let mut dropped: BTreeMap<(u32, Handle), QueueDrops> = BTreeMap::new();
        for (index, counted, qdisc) in qdiscs {
            // A new one is seen next time.
            if let Some(link) = links.get_mut(&index) {
                dropped.insert((index, qdisc.parent), counted);
                link.qdiscs.push(qdisc);
            }
        }
        for (index, link) in &mut links {
            self.read_classes(*index, link)?;
            for class in &mut link.classes {
                count_dropped(class, |parent| dropped.get(&(*index, parent)).copied());
            }
            self.read_filters(*index, link)?;
        }
        let network = Network { netdevs: links, ..Network::default() };
        self.ifb = network.ifb().map(|(index, _)| index);
        self.classifiers.retain(|index, _| network.netdevs.contains_key(index));
        Ok(network)
    }

    /// Like [`Self::observe`], for the interfaces `names` and the devices with the indices `before`, which
    /// may be gone, with their objects on our IFB. The number of requests does not grow with the number of
    /// other devices. For other devices, those `existence_only`, bridges, and renamed ones of `before`, only their
    /// existence is read. The whole IFB is read if no other device uses it, since it may go with the last
    /// one.
    ///
    /// # Errors
    /// As for [`Self::observe`].
    pub fn observe_scope(
        &mut self,
        names: &BTreeSet<String>,
        existence_only: &BTreeSet<String>,
        before: &BTreeSet<u32>,
    ) -> Result<Network, ObserveError> {
        let mut scope = before.clone();
        let mut links = BTreeMap::new();
        for index in before {
            links.extend(self.link_at(*index)?);
        }
        for name in existence_only.difference(names) {
            links.extend(self.link(name)?);
        }
        for name in names {
            let Some((index, mut link)) = self.link(name)? else { continue };
            scope.insert(index);
            if let Some(master) = link.master {
                // It may be one of the observed ones.
                if let Some((index, bridge)) = self.link_at(master)? {
                    links.entry(index).or_insert(bridge);
                }
            }
            self.read_ends(index, &mut link)?;
            self.read_classes(index, &mut link)?;
            for class in &link.classes {
                link.qdiscs.extend(self.leaf(index, class.id)?);
            }
            self.read_filters(index, &mut link)?;
            links.insert(index, link);
        }
        self.ifb = None;
        if let Some((index, mut link)) = self.link(owner::IFB)? {
            self.read_ends(index, &mut link)?;
            self.read_filters(index, &mut link)?;
            let (leaves, others): (Vec<_>, Vec<_>) =
                link.classified().partition(|(from, _)| scope.contains(from));
            if link.is_our_ifb() && others.is_empty() {
                return self.observe();
            }
            for (_, id) in leaves {
                link.classes.extend(self.class(index, id)?);
                link.qdiscs.extend(self.leaf(index, id)?);
            }
            self.ifb = link.is_our_ifb().then_some(index);
            links.insert(index, link);
        }
        Ok(Network { netdevs: links, scope: Some(scope), ..Network::default() })
    }

    /// Returns the link with this name.
    fn link(&mut self, name: &str) -> Result<Option<(u32, Netdev)>, NetlinkError> {
        let found = self.socket.get(RTM_GETLINK, &link_named(name), |_, body| netlink::link(body));
        // The kernel may have found it by another of its names.
        Ok(unless_gone(found)?.filter(|(_, link)| link.name == name))
    }

    /// Returns the link with this interface index.
    fn link_at(&mut self, index: u32) -> Result<Option<(u32, Netdev)>, NetlinkError> {
        unless_gone(self.socket.get(RTM_GETLINK, &link_header(index, 0, 0).0, |_, body| netlink::link(body)))
    }

    /// Returns the qdisc at a parent, unless the kernel made it by itself below another.
    fn qdisc(&mut self, index: u32, parent: Handle) -> Result<Option<Qdisc>, NetlinkError> {
        let found = self
            .socket
            .get(RTM_GETQDISC, &on(index, parent), |_, body| Some(netlink::traffic_control(body)?.qdisc()));
        unless_gone(found)
    }

    /// Returns the qdisc of a class, and the one below a cutter.
    fn leaf(
        &mut self,
        index: u32,
        class: Handle,
    ) -> Result<impl Iterator<Item = Qdisc> + use<>, NetlinkError> {
        let leaf = self.qdisc(index, class)?;
        let cutter = leaf.as_ref().map(|q| q.handle).filter(|handle| *handle == owner::cutter(class));
        let below = cutter.map(|cutter| self.qdisc(index, owner::below(cutter))).transpose()?;
        Ok(leaf.into_iter().chain(below.flatten()))
    }

    fn class(&mut self, index: u32, id: Handle) -> Result<Option<Class>, NetlinkError> {
        let Attributes(body) = header(index, id, Handle::default(), 0);
        let found =
            self.socket.get(RTM_GETTCLASS, &body, |_, body| Some(netlink::traffic_control(body)?.class()));
        unless_gone(found)
    }

    /// Reads the qdiscs at the two ends of a device.
    fn read_ends(&mut self, index: u32, link: &mut Netdev) -> Result<(), NetlinkError> {
        for parent in [Handle::ROOT, Handle::CLSACT] {
            link.qdiscs.extend(self.qdisc(index, parent)?);
        }
        Ok(())
    }

    /// Reads the classes of a root qdisc of ours.
    fn read_classes(&mut self, index: u32, link: &mut Netdev) -> Result<(), NetlinkError> {
        if link.root_is_ours() {
            let class = |_, body: &[u8]| Some(netlink::traffic_control(body)?.class());
            // Classes of the root only: the kernel also lists the flows of a queue below as classes.
            let found = self.socket.dump(RTM_GETTCLASS, &on(index, owner::ROOT_QDISC), class);
            link.classes = unless_gone(found)?;
        }
        Ok(())
    }

    /// Reads the filters at its ingress, and those at a root qdisc of ours.
    fn read_filters(&mut self, index: u32, link: &mut Netdev) -> Result<(), ObserveError> {
        let at_ingress = link.ingress().map(|_| Handle::INGRESS);
        let at_root = link.may_have_root_filters().then_some(owner::ROOT_QDISC);
        for parent in at_ingress.into_iter().chain(at_root) {
            let filters = self.socket.dump(RTM_GETTFILTER, &on(index, parent), |_, body| {
                netlink::traffic_control(body)?.filter(parent)
            });
            link.filters.extend(unless_gone(filters)?);
        }
        chains::settle(&mut link.filters);
        if link.is_marked() {
            link.foreign_programs.extend(foreign_programs::tcx(index));
        }
        for filter in &mut link.filters {
            match &mut filter.rule {
                Rule::Classify { program, classes } if program.is_current() => {
                    *classes = self.read_map(index, program.map)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Reads the map of a device's classifier.
    fn read_map(&mut self, index: u32, number: u32) -> Result<BTreeMap<u32, Handle>, ClassifyError> {
        if self.classifiers.get(&index).is_none_or(|known| known.number() != number) {
            match Classes::open(number) {
                Ok(opened) => drop(self.classifiers.insert(index, opened)),
                // It went, with its filter, during the look.
                Err(e) if e.is_gone() => return Ok(BTreeMap::new()),
                Err(e) => return Err(e),
            }
        }
        self.classifiers[&index].read()
    }

    /// Does one step.
    ///
    /// # Errors
    /// The kernel refused, or the device is gone.
    pub fn apply(&mut self, step: &Step) -> Result<(), StepError> {
        self.try_step(step).map_err(|why| StepError { step: step.to_string(), why })
    }

    /// Does steps in order. A failed one stops only those that [must not follow](Step::must_not_follow) it.
    ///
    /// # Errors
    /// The first failed step.
    pub fn apply_all<'a>(&mut self, steps: impl IntoIterator<Item = &'a Step>) -> Result<(), StepError> {
        let (mut failed, mut first): (Vec<&Step>, _) = (Vec::new(), None);
        for step in steps {
            if failed.iter().any(|failed| step.must_not_follow(failed)) {
                continue;
            }
            if let Err(error) = self.apply(step) {
                failed.push(step);
                first.get_or_insert(error);
            }
        }
        first.map_or(Ok(()), Err)
    }

    fn try_step(&mut self, step: &Step) -> Result<(), String> {
        // Held until the filter holds its program.
        let clearing = &mut self.clearing;
        let mut names = KernelNames {
            ifb: self.ifb,
            policer: None,
            classifier: None,
            marker: None,
            congestion: None,
            clearing,
        };
        if let Some(request) = netlink::request(step, &mut names)? {
            match self.socket.change(request.kind, request.flags, &request.body) {
                // A recreated filter left this behind: tables of u32 do not appear among the filters.
                Err(e) if e.errno() == Some(EEXIST) && is_filter_again(step) => {}
                done => done.map_err(|e| explain(&e))?,
            }
        }
        let (ifb, classifier) = (names.ifb, names.classifier.take());
        let index = |device: &Device| index_of(ifb, device);
        match step {
            Step::AddIfb => {
                let found = self.link(owner::IFB).map_err(|e| e.to_string())?;
                self.ifb = found.filter(|(_, link)| link.is_our_ifb()).map(|(index, _)| index);
            }
            Step::AddClassifier { device } => {
                let classes = classifier.as_ref().map(Classifier::classes).transpose();
                let index = index(device)?;
                self.classifiers.extend(classes.map_err(|e| e.to_string())?.map(|c| (index, c)));
            }
            Step::Classify { device, from, to } => {
                self.classes_of(index(device)?)?.set(index(from)?, *to).map_err(|e| e.to_string())?;
            }
            Step::Unclassify { device, from } => {
                self.classes_of(index(device)?)?.remove(*from).map_err(|e| e.to_string())?;
            }
            _ => {}
        }
        Ok(())
    }

    fn classes_of(&self, index: u32) -> Result<&Classes, String> {
        self.classifiers
            .get(&index)
            .ok_or_else(|| "its classifier is gone: another program deleted it".into())
    }

    /// Observes, and does the steps to `wanted`; returns them.
    ///
    /// # Errors
    /// A step failed; independent ones are done, and the next plan continues from there.
    pub fn settle(&mut self, wanted: &[Shaping]) -> Result<Plan, StepError> {
        let mut network = self.observe();
        if wanted.iter().any(|s| s.segment.is_some()) {
            network = network.and_then(|mut n| Ok(self.read_vlans(&mut n).map(|()| n)?));
        }
        let network =
            network.map_err(|e| StepError { step: "observe what is in force".into(), why: e.to_string() })?;
        let plan = plan(wanted, &network);
        self.apply_all(&plan.steps)?;
        Ok(plan)
    }
}

struct KernelNames<'a> {
    ifb: Option<u32>,
    policer: Option<Policer>,
    classifier: Option<Classifier>,
    marker: Option<Marker>,
    congestion: Option<CongestionMarker>,
    clearing: &'a mut Option<Marker>,
}

impl Names for KernelNames<'_> {
    type Error = String;

    fn index(&mut self, device: &Device) -> Result<u32, String> {
        index_of(self.ifb, device)
    }

    fn policer(&mut self, bucket: Bucket, former_map: Option<u32>) -> Result<(u32, u32), String> {
        // A removed one has no counters to continue.
        let counted = former_map.and_then(|map| Policed::read(map).ok()).unwrap_or_default();
        let policer = Policer::load(bucket, counted).map_err(|e| e.to_string())?;
        let program = policer.with_program(|fd| fd.as_raw_fd());
        let number = policer.number().map_err(|e| e.to_string())?;
        self.policer = Some(policer);
        Ok((program.cast_unsigned(), number))
    }

    fn classifier(&mut self, device: &Device) -> Result<(u32, u32), String> {
        let classifier = match device {
            Device::Ifb => Classifier::for_ifb(),
            Device::Netdev { .. } => Classifier::for_egress(),
        };
        let classifier = classifier.map_err(|e| e.to_string())?;
        let program = classifier.with_program(|fd| fd.as_raw_fd());
        let number = classifier.classes().map_err(|e| e.to_string())?.number();
        self.classifier = Some(classifier);
        Ok((program.cast_unsigned(), number))
    }

    fn marker(&mut self, marks: Marks, former_map: Option<u32>) -> Result<(u32, u32), String> {
        let owned = if marks == Marks::Clear { &mut *self.clearing } else { &mut self.marker };
        let marker = match owned {
            Some(marker) => marker,
            None => {
                let counted = former_map.and_then(|map| Dropped::read(map).ok()).unwrap_or_default();
                owned.insert(Marker::load(marks, counted).map_err(|e| e.to_string())?)
            }
        };
        let number = marker.number().map_err(|e| e.to_string())?;
        Ok((marker.with_program(|fd| fd.as_raw_fd()).cast_unsigned(), number))
    }

    fn congestion_marker(
        &mut self,
        queue: VirtualQueue,
        former_map: Option<u32>,
    ) -> Result<(u32, u32), String> {
        let marked = former_map.and_then(|map| Marked::read(map).ok()).unwrap_or_default();
        let marker = CongestionMarker::load(queue, marked).map_err(|e| e.to_string())?;
        let number = marker.number().map_err(|e| e.to_string())?;
        let marker = self.congestion.insert(marker);
        Ok((marker.with_program(|fd| fd.as_raw_fd()).cast_unsigned(), number))
    }
}

/// Returns the interface index of a device; `ifb` is that of our IFB.
fn index_of(ifb: Option<u32>, device: &Device) -> Result<u32, String> {
    match device {
        Device::Ifb => {
            ifb.ok_or_else(|| format!("interface {} is gone: another program deleted it", owner::IFB))
        }
        Device::Netdev { index, .. } => Ok(*index),
    }
}

/// Returns a request for all links.
fn links() -> Vec<u8> {
    let mut body = link_header(0, 0, 0);
    body.put_u32(IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS);
    body.0
}

/// Returns a request for the objects of a device at a parent.
fn on(index: u32, parent: Handle) -> Vec<u8> {
    let Attributes(body) = header(index, Handle::default(), parent, 0);
    body
}

/// Counts drops of a class: its queue tells more about them than the class.
fn count_dropped(class: &mut Class, at: impl Fn(Handle) -> Option<QueueDrops>) {
    let Some(leaf) = at(class.id) else { return };
    let below = at(owner::below(owner::cutter(class.id))).unwrap_or(leaf);
    // A cutter counts frames dropped below it, and those that it cannot cut.
    class.counters.drops = leaf.all.max(below.all);
    class.counters.full = class.counters.drops.saturating_sub(below.all.saturating_sub(below.full));
    class.counters.marked = below.marked;
    class.counters.flows = below.flows;
}

/// Returns nothing for a device or qdisc that went during the look.
fn unless_gone<T: Default>(found: Result<T, NetlinkError>) -> Result<T, NetlinkError> {
    match found {
        Err(e) if matches!(e.errno(), Some(ENODEV | EINVAL | ENOENT)) => Ok(T::default()),
        other => other,
    }
}

fn is_filter_again(step: &Step) -> bool {
    matches!(step, Step::Restore { object, .. } if object.layer == Layer::Filter)
}

const EPERM: i32 = 1;
const ENOENT: i32 = 2;
const EEXIST: i32 = 17;
const ENODEV: i32 = 19;
const EINVAL: i32 = 22;

fn explain(error: &NetlinkError) -> String {
    let hint = match error.errno() {
        Some(EPERM) => "; it needs CAP_NET_ADMIN",
        Some(ENODEV) => "; the device is gone",
        Some(EEXIST) => "; another program made one after our last observation",
        _ => "",
    };
    format!("{error}{hint}")
}
