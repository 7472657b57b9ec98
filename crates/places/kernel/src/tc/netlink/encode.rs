//! Encodes the message of a step.

use super::attribute::Attributes;
use super::bridge::{port_header, put_vlans};
use super::constants::*;
use super::link_header;
use crate::ebpf::congestion::VirtualQueue;
use crate::ebpf::mark::Marks;
use crate::ebpf::police::Bucket;
use crate::handle::Handle;
use crate::tc::class::HtbClass;
use crate::tc::network::{ANY_PROTOCOL, Filter, Setting};
use crate::tc::object::Layer;
use crate::tc::owner;
use crate::tc::queueing::{Host, codel_micros};
use crate::tc::step::{Device, Step};

const NLM_F_REPLACE: u16 = 0x100;
const NLM_F_EXCL: u16 = 0x200;
const NLM_F_CREATE: u16 = 0x400;

/// Queue of the IFB until it has a qdisc (frames).
const IFB_QUEUE: u32 = 1000;

/// A request, without its header.
#[derive(Clone, Debug)]
pub struct Request {
    /// Message type.
    pub kind: u16,
    /// Flags beside the common ones.
    pub flags: u16,
    /// The body after the header.
    pub body: Vec<u8>,
}

/// Numbers in a request that only the kernel knows.
pub trait Names {
    /// The reason why a number is not known.
    type Error;

    /// Returns the interface index of a device; our IFB may be new.
    ///
    /// # Errors
    /// It is gone.
    fn index(&mut self, device: &Device) -> Result<u32, Self::Error>;

    /// Returns a policer's program, owned until the request is sent: its descriptor and the number of its
    /// map. It continues the counters of another map.
    ///
    /// # Errors
    /// It cannot be loaded.
    fn policer(&mut self, bucket: Bucket, former_map: Option<u32>) -> Result<(u32, u32), Self::Error>;

    /// Returns a classifier's program for a device, owned until the request is sent: its descriptor and the
    /// number of its map.
    ///
    /// # Errors
    /// It cannot be loaded.
    fn classifier(&mut self, device: &Device) -> Result<(u32, u32), Self::Error>;

    /// The same for a marking program.
    ///
    /// # Errors
    /// It cannot be loaded.
    fn marker(&mut self, marks: Marks, former_map: Option<u32>) -> Result<(u32, u32), Self::Error>;

    /// The same for a program that marks congestion.
    ///
    /// # Errors
    /// It cannot be loaded.
    fn congestion_marker(
        &mut self,
        queue: VirtualQueue,
        former_map: Option<u32>,
    ) -> Result<(u32, u32), Self::Error>;
}

/// Returns the request of a step; `None` for a step that changes a map.
///
/// # Errors
/// Errors of `names`.
pub fn request<N: Names>(step: &Step, names: &mut N) -> Result<Option<Request>, N::Error> {
    let made = |kind, flags, body: Attributes| Ok(Some(Request { kind, flags, body: body.0 }));
    match step {
        Step::AddIfb => {
            let mut body = link_header(0, 0, 0);
            body.put_str(IFLA_IFNAME, owner::IFB);
            body.put_u32(IFLA_GROUP, owner::IFB_GROUP);
            body.put_u32(IFLA_TXQLEN, IFB_QUEUE);
            body.nest(IFLA_LINKINFO, |info| info.put_str(IFLA_INFO_KIND, "ifb"));
            made(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, body)
        }
        Step::DeleteIfb => made(RTM_DELLINK, 0, link_header(names.index(&Device::Ifb)?, 0, 0)),
        Step::RaiseIfb => made(RTM_NEWLINK, 0, link_header(names.index(&Device::Ifb)?, IFF_UP, IFF_UP)),
        Step::SetQdisc { device, parent, handle, setting, replace } => {
            let mut body = header(names.index(device)?, *handle, *parent, 0);
            body.put_str(TCA_KIND, setting.kind());
            options(&mut body, setting);
            made(RTM_NEWQDISC, NLM_F_CREATE | if *replace { NLM_F_REPLACE } else { NLM_F_EXCL }, body)
        }
        Step::DeleteQdisc { device, parent, handle } => {
            made(RTM_DELQDISC, 0, header(names.index(device)?, *handle, *parent, 0))
        }
        Step::SetClass { device, id, parent, class } => {
            let mut body = header(names.index(device)?, *id, *parent, 0);
            body.put_str(TCA_KIND, "htb");
            body.nest(TCA_OPTIONS, |options| put_class(options, class));
            made(RTM_NEWTCLASS, NLM_F_CREATE | NLM_F_REPLACE, body)
        }
        Step::DeleteClass { device, id } => {
            made(RTM_DELTCLASS, 0, header(names.index(device)?, *id, Handle::default(), 0))
        }
        Step::Redirect { device, cookie } => {
            let to = names.index(&Device::Ifb)?;
            let info = filter_info(owner::PREFERENCE, ANY_PROTOCOL);
            let mut body = header(names.index(device)?, Handle::default(), Handle::INGRESS, info);
            body.put_str(TCA_KIND, "u32");
            body.nest(TCA_OPTIONS, |options| {
                options.put(TCA_U32_SEL, &select_everything());
                options.nest(TCA_U32_ACT, |list| list.nest(1, |action| put_redirect(action, to, *cookie)));
            });
            made(RTM_NEWTFILTER, NLM_F_CREATE | NLM_F_EXCL, body)
        }
        Step::Police { device, bucket, cookie, instead } => {
            let index = names.index(device)?;
            let (program, map) = names.policer(*bucket, instead.map(|(_, map)| map))?;
            let name = owner::police_name(*cookie, *bucket, map);
            let handle = instead.map(|(handle, _)| handle);
            let place = (Handle::INGRESS, owner::PREFERENCE);
            let (flags, body) = direct_action(index, place, handle, program, &name);
            made(RTM_NEWTFILTER, flags, body)
        }
        Step::Mark { device, marks, cookie, instead } => {
            let index = names.index(device)?;
            let (program, map) = names.marker(*marks, instead.map(|(_, map)| map))?;
            let name = owner::mark_name(*cookie, *marks, map);
            let handle = instead.map(|(handle, _)| handle);
            let place = (Handle::INGRESS, owner::MARK_PREFERENCE);
            let (flags, body) = direct_action(index, place, handle, program, &name);
            made(RTM_NEWTFILTER, flags, body)
        }
        Step::MarkCongestion { device, parent, queue, cookie, instead } => {
            let index = names.index(device)?;
            let (program, map) = names.congestion_marker(*queue, instead.map(|(_, map)| map))?;
            let name = owner::congestion_name(*cookie, *queue, map);
            let handle = instead.map(|(handle, _)| handle);
            let place = (*parent, owner::MARK_PREFERENCE);
            let (flags, body) = direct_action(index, place, handle, program, &name);
            made(RTM_NEWTFILTER, flags, body)
        }
        Step::AddClassifier { device } => {
            let info = filter_info(owner::PREFERENCE, ANY_PROTOCOL);
            let mut body = header(names.index(device)?, Handle::default(), owner::ROOT_QDISC, info);
            let (program, map) = names.classifier(device)?;
            body.put_str(TCA_KIND, "bpf");
            body.nest(TCA_OPTIONS, |options| {
                // Its major is that of every class that the program chooses.
                options.put_u32(TCA_BPF_CLASSID, owner::ROOT_QDISC.0);
                options.put_u32(TCA_BPF_FD, program);
                options.put_str(TCA_BPF_NAME, &owner::classifier_name(map));
                options.put_u32(TCA_BPF_FLAGS, TCA_BPF_FLAG_ACT_DIRECT);
            });
            made(RTM_NEWTFILTER, NLM_F_CREATE | NLM_F_EXCL, body)
        }
        Step::Classify { .. } | Step::Unclassify { .. } => Ok(None),
        Step::DeleteFilter { device, filter } => {
            let Filter { parent, preference, protocol, kind, handle, chain, .. } = filter;
            let info = filter_info(*preference, *protocol);
            let mut body = header(names.index(device)?, Handle(*handle), *parent, info);
            body.put_str(TCA_KIND, kind);
            if *chain != 0 {
                body.put_u32(TCA_CHAIN, *chain);
            }
            made(RTM_DELTFILTER, 0, body)
        }
        Step::SetVlans { device, vlans } => {
            let mut body = port_header(names.index(device)?);
            put_vlans(&mut body, vlans);
            made(RTM_SETLINK, 0, body)
        }
        Step::DeleteVlans { device, vlans } => {
            let mut body = port_header(names.index(device)?);
            put_vlans(&mut body, vlans);
            made(RTM_DELLINK, 0, body)
        }
        Step::Restore { device, object } => {
            let kind = match object.layer {
                Layer::Qdisc => RTM_NEWQDISC,
                Layer::Class => RTM_NEWTCLASS,
                Layer::Filter => RTM_NEWTFILTER,
            };
            let mut body = header(names.index(device)?, object.handle, object.parent, object.info);
            body.put_str(TCA_KIND, &object.kind);
            if let Some(options) = &object.options {
                body.put(TCA_OPTIONS, options);
            }
            if let Some(chain) = object.chain {
                body.put_u32(TCA_CHAIN, chain);
            }
            made(kind, NLM_F_CREATE | NLM_F_EXCL, body)
        }
    }
}

/// Returns flags and message for a filter at a parent, with a preference, whose eBPF program decides; it
/// replaces the filter with the handle `instead`, if any.
fn direct_action(
    index: u32,
    (parent, preference): (Handle, u16),
    instead: Option<u32>,
    program: u32,
    name: &str,
) -> (u16, Attributes) {
    let info = filter_info(preference, ANY_PROTOCOL);
    let mut body = header(index, Handle(instead.unwrap_or_default()), parent, info);
    body.put_str(TCA_KIND, "bpf");
    body.nest(TCA_OPTIONS, |options| {
        options.put_u32(TCA_BPF_FD, program);
        options.put_str(TCA_BPF_NAME, name);
        options.put_u32(TCA_BPF_FLAGS, TCA_BPF_FLAG_ACT_DIRECT);
    });
    (NLM_F_CREATE | if instead.is_some() { 0 } else { NLM_F_EXCL }, body)
}

/// Returns `struct tcmsg`, the beginning of every message of traffic control.
pub fn header(index: u32, handle: Handle, parent: Handle, info: u32) -> Attributes {
    let mut bytes = vec![0; 4];
    for field in [index, handle.0, parent.0, info] {
        bytes.extend(field.to_ne_bytes());
    }
    Attributes(bytes)
}

/// Returns preference, and protocol in network byte order.
fn filter_info(preference: u16, protocol: u16) -> u32 {
    u32::from(preference) << 16 | u32::from(protocol.to_be())
}

fn options(body: &mut Attributes, setting: &Setting) {
    match setting {
        Setting::Htb { default } => body.nest(TCA_OPTIONS, |options| {
            // struct tc_htb_glob: version, rate2quantum, defcls, debug, direct_pkts.
            let glob = [HTB_VERSION, 10, *default, 0, 0];
            options.put(TCA_HTB_INIT, &glob.map(u32::to_ne_bytes).concat());
            options.put_u32(TCA_HTB_DIRECT_QLEN, IFB_QUEUE);
        }),
        Setting::Bfifo { limit } => body.put(TCA_OPTIONS, &limit.to_ne_bytes()),
        Setting::Cut { largest } => body.nest(TCA_OPTIONS, |options| {
            // struct tc_tbf_qopt: rate, peakrate, limit, buffer, mtu. At this rate the queue has one frame
            // until ours is below.
            let mut parameters = [ratespec(CUT_RATE), [0; 12]].concat();
            for field in [*largest, 0, 0] {
                parameters.extend(field.to_ne_bytes());
            }
            options.put(TCA_TBF_PARMS, &parameters);
            options.put_u64(TCA_TBF_RATE64, CUT_RATE + u64::from(*largest));
            options.put_u32(TCA_TBF_BURST, *largest);
        }),
        Setting::FqCodel { target, interval, memory } => body.nest(TCA_OPTIONS, |options| {
            options.put_u32(TCA_CODEL_TARGET, codel_micros(*target));
            options.put_u32(TCA_CODEL_INTERVAL, codel_micros(*interval));
            options.put_u32(TCA_FQ_CODEL_LIMIT, FQ_CODEL_LIMIT);
            options.put_u32(TCA_FQ_CODEL_QUANTUM, FQ_CODEL_QUANTUM);
            options.put_u32(TCA_FQ_CODEL_ECN, 1);
            options.put_u32(TCA_FQ_CODEL_MEMORY_LIMIT, *memory);
        }),
        Setting::Cake { target, interval, memory, hosts, split } => body.nest(TCA_OPTIONS, |options| {
            options.put_u64(TCA_CAKE_BASE_RATE64, 0);
            options.put_u32(TCA_CAKE_DIFFSERV_MODE, CAKE_DIFFSERV_BESTEFFORT);
            let flows = match hosts {
                None => CAKE_FLOW_FLOWS,
                Some(Host::Source) => CAKE_FLOW_DUAL_SRC,
                Some(Host::Destination) => CAKE_FLOW_DUAL_DST,
            };
            options.put_u32(TCA_CAKE_FLOW_MODE, flows);
            options.put_u32(TCA_CAKE_RTT, *interval);
            options.put_u32(TCA_CAKE_TARGET, *target);
            options.put_u32(TCA_CAKE_MEMORY, *memory);
            options.put_u32(TCA_CAKE_SPLIT_GSO, u32::from(*split));
        }),
        Setting::Clsact | Setting::Other(_) => {}
    }
}

fn put_class(options: &mut Attributes, class: &HtbClass) {
    let HtbClass { rate, ceil, burst, cburst, quantum, priority } = *class;
    let mut parameters = [ratespec(rate), ratespec(ceil)].concat();
    // struct tc_htb_opt goes on: buffer, cbuffer, quantum, level, prio.
    for field in [burst, cburst, quantum, 0, priority] {
        parameters.extend(field.to_ne_bytes());
    }
    options.put(TCA_HTB_PARMS, &parameters);
    for (kind, rate) in [(TCA_HTB_RATE64, rate), (TCA_HTB_CEIL64, ceil)] {
        if rate > u64::from(u32::MAX) {
            options.put_u64(kind, rate);
        }
    }
}

/// Returns `struct tc_ratespec`: with a link layer, the kernel needs no rate tables.
fn ratespec(rate: u64) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[1] = TC_LINKLAYER_ETHERNET;
    bytes[8..].copy_from_slice(&u32::try_from(rate).unwrap_or(u32::MAX).to_ne_bytes());
    bytes
}

/// Returns `struct tc_u32_sel` with one key that every packet matches: it compares no bit.
fn select_everything() -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes[0] = TC_U32_TERMINAL;
    bytes[2] = 1;
    bytes
}

fn put_redirect(action: &mut Attributes, to: u32, cookie: owner::Cookie) {
    action.put_str(TCA_ACT_KIND, "mirred");
    action.nest(TCA_ACT_OPTIONS, |options| {
        // struct tc_mirred: index, capab, action, refcnt, bindcnt, eaction, ifindex.
        let mirred = [0, 0, TC_ACT_STOLEN, 0, 0, TCA_EGRESS_REDIR, to];
        options.put(TCA_MIRRED_PARMS, &mirred.map(u32::to_ne_bytes).concat());
    });
    action.put(TCA_ACT_COOKIE, &cookie.bytes());
}
