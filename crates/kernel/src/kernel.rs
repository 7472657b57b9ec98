//! The kernel of a network namespace: look at it, and change it step by step.

use crate::handle::Handle;
use crate::netlink::attribute::Attributes;
use crate::netlink::constants::{
    IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS, RTM_GETLINK, RTM_GETQDISC, RTM_GETTCLASS, RTM_GETTFILTER,
};
use crate::netlink::{self, Names, NetlinkError, Socket, bridge, header, link_header};
use crate::network::{Link, Network};
use crate::owner;
use crate::plan::{Plan, plan};
use crate::police::{Bucket, Policed, Policer};
use crate::shaping::{Ends, Shaping};
use crate::step::{Device, Step};
use crate::theirs::{self, Theirs};
use crate::vlan::Vlans;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::AsRawFd;

/// Why a step failed. It was not done; those before it were.
#[derive(Debug, thiserror::Error)]
#[error("cannot {step}: {why}")]
pub struct StepError {
    /// What was to be done.
    pub step: String,
    /// What is wrong, and what to do.
    pub why: String,
}

/// The kernel, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Kernel {
    socket: Socket,
    /// Interface index of our IFB, as last seen.
    ifb: Option<u32>,
}

impl Kernel {
    /// Opens the conversation. Looking needs no rights, changes need CAP_NET_ADMIN.
    ///
    /// # Errors
    /// The operating system said no.
    pub fn open() -> io::Result<Self> {
        Ok(Self { socket: Socket::open()?, ifb: None })
    }

    /// What is there. Classes and filters are asked for where they may concern us: two requests for the whole
    /// namespace, and a few for each device that is shaped or has an ingress qdisc.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn observe(&mut self) -> Result<Network, NetlinkError> {
        self.look(None)
    }

    /// As [`Self::observe`], with classes and filters of some interfaces and our IFB only: what a change of few netdevs
    /// needs to know, however many there are.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn observe_near(&mut self, names: &BTreeSet<String>) -> Result<Network, NetlinkError> {
        self.look(Some(names))
    }

    /// Adds the VLANs of bridge ports to what was observed: one request for all of them.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn read_vlans(&mut self, network: &mut Network) -> Result<(), NetlinkError> {
        let ports = self.socket.dump(RTM_GETLINK, &bridge::ports(), |_, body| bridge::port(body))?;
        let mut ports: BTreeMap<u32, Vlans> = ports.into_iter().collect();
        let is_bridge = |index: u32| network.links.get(&index).is_some_and(|link| link.bridge.is_some());
        let on_bridges: Vec<u32> = network
            .links
            .iter()
            .filter(|(_, link)| link.master.is_some_and(is_bridge))
            .map(|(index, _)| *index)
            .collect();
        for index in on_bridges {
            if let Some(link) = network.links.get_mut(&index) {
                link.vlans = Some(ports.remove(&index).unwrap_or_default());
            }
        }
        Ok(())
    }

    fn look(&mut self, near: Option<&BTreeSet<String>>) -> Result<Network, NetlinkError> {
        let links = self.socket.dump(RTM_GETLINK, &links(), |_, body| netlink::link(body))?;
        let mut links: BTreeMap<u32, Link> = links.into_iter().collect();
        let names: BTreeMap<String, u32> = links.iter().map(|(i, l)| (l.name.clone(), *i)).collect();
        let qdiscs = self.socket.dump(RTM_GETQDISC, &on(0, Handle::default()), |_, body| {
            let message = netlink::traffic_control(body)?;
            Some((message.index, message.qdisc()))
        })?;
        for (index, qdisc) in qdiscs {
            // One that came in between is seen next time.
            if let Some(link) = links.get_mut(&index) {
                link.qdiscs.push(qdisc);
            }
        }
        for (index, link) in &mut links {
            if near.is_some_and(|names| !names.contains(&link.name)) && !link.is_our_ifb() {
                link.unread = true;
                continue;
            }
            if link.root_is_ours() {
                link.classes = unless_gone(self.socket.dump(
                    RTM_GETTCLASS,
                    &on(*index, Handle::default()),
                    |_, body| Some(netlink::traffic_control(body)?.class()),
                ))?;
            }
            let at_ingress = link.ingress().map(|_| Handle::INGRESS);
            let at_root = link.has_leaves().then_some(owner::ROOT_QDISC);
            for parent in at_ingress.into_iter().chain(at_root) {
                let filters = self.socket.dump(RTM_GETTFILTER, &on(*index, parent), |_, body| {
                    netlink::traffic_control(body)?.filter(parent, |name| names.get(name).copied())
                });
                link.filters.extend(unless_gone(filters)?);
            }
        }
        self.ifb = links.iter().find(|(_, link)| link.is_our_ifb()).map(|(index, _)| *index);
        Ok(Network { links })
    }

    /// Does one step.
    ///
    /// # Errors
    /// The kernel refused, or the device is gone.
    pub fn apply(&mut self, step: &Step) -> Result<(), StepError> {
        // Held until the filter holds its program.
        let mut names = KernelNames { ifb: self.ifb, policer: None };
        let done = netlink::request(step, &mut names)
            .and_then(|request| {
                match self.socket.change(request.kind, request.flags, &request.body) {
                    // Of a filter that is made again, this was left: tables of u32 are not seen among the filters.
                    Err(e) if e.errno() == Some(EEXIST) && is_filter_again(step) => Ok(()),
                    done => done.map_err(|e| explain(&e)),
                }
            })
            .and_then(|()| if *step == Step::AddIfb { self.find_ifb() } else { Ok(()) });
        done.map_err(|why| StepError { step: step.to_string(), why })
    }

    /// Observes, and does what leads to `wanted`; what was done.
    ///
    /// # Errors
    /// A step failed; those before it are done, and the next plan goes on from there.
    pub fn settle(&mut self, wanted: &[Shaping]) -> Result<Plan, StepError> {
        let mut network = self.observe();
        if wanted.iter().any(|s| s.segment.is_some()) {
            network = network.and_then(|mut n| self.read_vlans(&mut n).map(|()| n));
        }
        let network =
            network.map_err(|e| StepError { step: "observe what is in force".into(), why: e.to_string() })?;
        let plan = plan(wanted, &network);
        for step in &plan.steps {
            self.apply(step)?;
        }
        Ok(plan)
    }

    /// What others made at these ends of a device, to be remembered.
    ///
    /// # Errors
    /// The kernel does not answer, or there is something that cannot be remembered; the text names it.
    pub fn theirs(&mut self, index: u32, ends: Ends) -> Result<Theirs, String> {
        theirs::read(&mut self.socket, index, ends)
    }

    fn find_ifb(&mut self) -> Result<(), String> {
        let ours = |_, body: &[u8]| netlink::link(body).filter(|(_, link)| link.is_our_ifb());
        let found = self.socket.dump(RTM_GETLINK, &links(), ours).map_err(|e| e.to_string())?;
        self.ifb = found.first().map(|(index, _)| *index);
        Ok(())
    }
}

struct KernelNames {
    ifb: Option<u32>,
    policer: Option<Policer>,
}

impl Names for KernelNames {
    type Error = String;

    fn index(&mut self, device: &Device) -> Result<u32, String> {
        match device {
            Device::Ifb => {
                self.ifb.ok_or_else(|| format!("interface {} is gone: somebody deleted it", owner::IFB))
            }
            Device::Netdev { index, .. } => Ok(*index),
        }
    }

    fn policer(&mut self, bucket: Bucket, before: Option<u32>) -> Result<(u32, u32), String> {
        // One that is gone has nothing to go on with.
        let counted = before.and_then(|map| Policed::read(map).ok()).unwrap_or_default();
        let policer = Policer::load(bucket, counted).map_err(|e| e.to_string())?;
        let program = policer.with_program(|fd| fd.as_raw_fd());
        let number = policer.number().map_err(|e| e.to_string())?;
        self.policer = Some(policer);
        Ok((program.cast_unsigned(), number))
    }
}

/// All links.
fn links() -> Vec<u8> {
    let mut body = link_header(0, 0, 0);
    body.put_u32(IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS);
    body.0
}

/// What hangs on a device, at a parent.
fn on(index: u32, parent: Handle) -> Vec<u8> {
    let Attributes(body) = header(index, Handle::default(), parent, 0);
    body
}

/// A device or qdisc that went while it was looked at has nothing.
fn unless_gone<T>(found: Result<Vec<T>, NetlinkError>) -> Result<Vec<T>, NetlinkError> {
    match found {
        Err(e) if matches!(e.errno(), Some(ENODEV | EINVAL | ENOENT)) => Ok(vec![]),
        other => other,
    }
}

fn is_filter_again(step: &Step) -> bool {
    matches!(step, Step::Again { object, .. } if object.layer == theirs::Layer::Filter)
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
        Some(EEXIST) => "; somebody made one since this was looked at",
        _ => "",
    };
    format!("{error}{hint}")
}
