//! From messages to the observed state. An unknown object is a foreign object, never an error.

use super::attribute::{find, read, string, u16_at, u32_at, u64_at};
use super::constants::*;
use crate::handle::Handle;
use crate::tc::class::HtbClass;
use crate::tc::foreign_programs::ForeignProgram;
use crate::tc::network::{Bridge, Class, Counters, Filter, Netdev, Qdisc, Rule, Setting};
use crate::tc::owner::{self, Cookie};
use crate::tc::queueing::{Host, codel_units};
use std::collections::{BTreeMap, BTreeSet};
use tidegate_netlink::link;

/// Length of `struct tcmsg`.
const HEADER: usize = 20;

/// Returns interface index and interface of an `RTM_NEWLINK`.
pub fn link(body: &[u8]) -> Option<(u32, Netdev)> {
    let (index, flags) = (u32_at(body, 4)?, u32_at(body, 8)?);
    let mut link =
        Netdev { up: flags & IFF_UP != 0, loopback: flags & IFF_LOOPBACK != 0, ..Netdev::default() };
    for (kind, value) in read(body.get(link::HEADER..)?) {
        match kind {
            IFLA_IFNAME => link.name = string(value),
            IFLA_MTU => link.mtu = u32_at(value, 0).unwrap_or_default(),
            IFLA_GROUP => link.group = u32_at(value, 0).unwrap_or_default(),
            IFLA_MASTER => link.master = u32_at(value, 0),
            IFLA_XDP => link.foreign_programs = xdp(value),
            IFLA_LINKINFO => {
                link.kind = find(value, IFLA_INFO_KIND).map(string);
                let data = find(value, IFLA_INFO_DATA).unwrap_or_default();
                link.bridge = (link.kind.as_deref() == Some("bridge")).then(|| bridge(data));
            }
            _ => {}
        }
    }
    Some((index, link))
}

/// Each mode of attachment has an attribute of its own; a program may appear twice.
fn xdp(attributes: &[u8]) -> Vec<ForeignProgram> {
    let of_a_program = |kind: &u16| (IFLA_XDP_PROG_ID..=IFLA_XDP_HW_PROG_ID).contains(kind);
    let programs = read(attributes).filter(|(kind, _)| of_a_program(kind)).filter_map(|(_, v)| u32_at(v, 0));
    let programs: BTreeSet<u32> = programs.filter(|program| *program != 0).collect();
    programs.into_iter().map(|program| ForeignProgram::Xdp { program }).collect()
}

/// Both are absent on a kernel without bridge VLANs.
fn bridge(data: &[u8]) -> Bridge {
    let default_pvid = find(data, IFLA_BR_VLAN_DEFAULT_PVID).and_then(|value| u16_at(value, 0));
    Bridge {
        filters: find(data, IFLA_BR_VLAN_FILTERING).and_then(<[u8]>::first).is_some_and(|on| *on != 0),
        default_pvid: default_pvid.filter(|vid| *vid != 0),
    }
}

/// A message of traffic control.
pub struct TrafficControl<'a> {
    /// Interface index.
    pub index: u32,
    /// Its handle; for a filter, its number among the filters of its preference.
    pub handle: Handle,
    pub(crate) parent: Handle,
    pub(crate) info: u32,
    pub(crate) kind: String,
    pub(crate) attributes: &'a [u8],
    options: &'a [u8],
}

/// Reads the common part of qdiscs, classes and filters.
pub fn traffic_control(body: &[u8]) -> Option<TrafficControl<'_>> {
    let attributes = body.get(HEADER..)?;
    Some(TrafficControl {
        index: u32_at(body, 4)?,
        handle: Handle(u32_at(body, 8)?),
        parent: Handle(u32_at(body, 12)?),
        info: u32_at(body, 16)?,
        kind: find(attributes, TCA_KIND).map(string).unwrap_or_default(),
        attributes,
        options: find(attributes, TCA_OPTIONS).unwrap_or_default(),
    })
}

impl TrafficControl<'_> {
    /// Reads an `RTM_NEWQDISC`.
    pub fn qdisc(self) -> Qdisc {
        let setting = match self.kind.as_str() {
            "htb" => {
                // struct tc_htb_glob: version, rate2quantum, defcls.
                let default = find(self.options, TCA_HTB_INIT).and_then(|glob| u32_at(glob, 8));
                Setting::Htb { default: default.unwrap_or_default() }
            }
            "bfifo" => Setting::Bfifo { limit: u32_at(self.options, 0).unwrap_or_default() },
            "clsact" => Setting::Clsact,
            _ => short_queue(&self.kind, self.options).unwrap_or(Setting::Other(self.kind)),
        };
        Qdisc { handle: self.handle, parent: self.parent, setting }
    }

    /// Reads the drops of an `RTM_NEWQDISC`.
    pub fn dropped(&self) -> QueueDrops {
        dropped(&self.kind, self.attributes)
    }

    /// Reads an `RTM_NEWTCLASS`.
    pub fn class(self) -> Class {
        let htb = (self.kind == "htb").then(|| htb_class(self.options)).flatten();
        Class { id: self.handle, parent: self.parent, htb, counters: counters(self.attributes) }
    }

    /// Reads an `RTM_NEWTFILTER` of a dump at `parent`; `None` for the tables of u32, which are no filters.
    /// It does not contain the map of a classifier.
    pub fn filter(&self, parent: Handle) -> Option<Filter> {
        let rule = match self.kind.as_str() {
            "u32" => {
                find(self.options, TCA_U32_SEL)?;
                redirect_rule(self.options).unwrap_or(Rule::Other)
            }
            "bpf" => bpf_rule(self.options).unwrap_or(Rule::Other),
            _ => Rule::Other,
        };
        // The kernel also reports an empty preference.
        if self.handle == Handle::default() && self.options.is_empty() {
            return None;
        }
        let [high, low] = [self.info >> 16, self.info & 0xffff].map(|half| half as u16);
        Some(Filter {
            parent,
            preference: high,
            protocol: u16::from_be(low),
            kind: self.kind.clone(),
            handle: self.handle.0,
            chain: find(self.attributes, TCA_CHAIN).and_then(|v| u32_at(v, 0)).unwrap_or_default(),
            rule,
        })
    }
}

/// `struct tc_htb_opt`: rate, ceil (12 bytes each), buffer, cbuffer, quantum, level, prio.
fn htb_class(options: &[u8]) -> Option<HtbClass> {
    let parameters = find(options, TCA_HTB_PARMS)?;
    let rate = |offset: usize, wide| {
        let wide = find(options, wide).and_then(|value| u64_at(value, 0));
        wide.or_else(|| u32_at(parameters, offset + 8).map(u64::from))
    };
    Some(HtbClass {
        rate: rate(0, TCA_HTB_RATE64)?,
        ceil: rate(12, TCA_HTB_CEIL64)?,
        burst: u32_at(parameters, 24)?,
        cburst: u32_at(parameters, 28)?,
        quantum: u32_at(parameters, 32)?,
        priority: u32_at(parameters, 40)?,
    })
}

/// Returns a qdisc for short queues with our settings; `None` for foreign settings.
fn short_queue(kind: &str, options: &[u8]) -> Option<Setting> {
    let number = |kind| find(options, kind).and_then(|value| u32_at(value, 0));
    match kind {
        "tbf" => {
            let rate = find(options, TCA_TBF_RATE64).and_then(|value| u64_at(value, 0))?;
            let largest = u32::try_from(rate.checked_sub(CUT_RATE)?).ok()?;
            Some(Setting::Cut { largest })
        }
        "fq_codel" => {
            let as_ours =
                (number(TCA_FQ_CODEL_LIMIT)?, number(TCA_FQ_CODEL_QUANTUM)?, number(TCA_FQ_CODEL_ECN)?)
                    == (FQ_CODEL_LIMIT, FQ_CODEL_QUANTUM, 1);
            as_ours.then_some(Setting::FqCodel {
                target: codel_units(number(TCA_CODEL_TARGET)?),
                interval: codel_units(number(TCA_CODEL_INTERVAL)?),
                memory: number(TCA_FQ_CODEL_MEMORY_LIMIT)?,
            })
        }
        "cake" => {
            let hosts = match number(TCA_CAKE_FLOW_MODE)? {
                CAKE_FLOW_FLOWS => None,
                CAKE_FLOW_DUAL_SRC => Some(Host::Source),
                CAKE_FLOW_DUAL_DST => Some(Host::Destination),
                _ => return None,
            };
            let rate = find(options, TCA_CAKE_BASE_RATE64).and_then(|value| u64_at(value, 0))?;
            let as_ours = (rate, number(TCA_CAKE_DIFFSERV_MODE)?) == (0, CAKE_DIFFSERV_BESTEFFORT);
            as_ours.then_some(Setting::Cake {
                target: number(TCA_CAKE_TARGET)?,
                interval: number(TCA_CAKE_RTT)?,
                memory: number(TCA_CAKE_MEMORY)?,
                hosts,
                split: number(TCA_CAKE_SPLIT_GSO)? != 0,
            })
        }
        _ => None,
    }
}

/// Returns the drops of a queue of ours: all, those for lack of room, and marks. A cutter also counts drops
/// of the queue below it.
fn dropped(kind: &str, attributes: &[u8]) -> QueueDrops {
    let statistics = find(attributes, TCA_STATS2).unwrap_or_default();
    let all = find(statistics, TCA_STATS_QUEUE).and_then(|v| u32_at(v, 8)).unwrap_or_default().into();
    let own = find(statistics, TCA_STATS_APP).unwrap_or_default();
    match kind {
        // struct tc_fq_codel_xstats: type, maxpacket, drop_overlimit, ecn_mark, new_flow_count, new_flows_len, old_flows_len.
        "fq_codel" => {
            let [full, marked, new, old]: [u64; 4] =
                [8, 12, 20, 24].map(|at| u32_at(own, at).unwrap_or_default().into());
            QueueDrops { all, full, marked, flows: Some(new + old) }
        }
        "cake" => {
            let tins = find(own, TCA_CAKE_STATS_TIN_STATS).unwrap_or_default();
            let sum = |kind| {
                read(tins).filter_map(|(_, tin)| u32_at(find(tin, kind)?, 0)).map(u64::from).sum::<u64>()
            };
            // Recently active flows count among the sparse ones.
            let flows = sum(TCA_CAKE_TIN_STATS_SPARSE_FLOWS) + sum(TCA_CAKE_TIN_STATS_BULK_FLOWS);
            QueueDrops { all, full: 0, marked: sum(TCA_CAKE_TIN_STATS_ECN_MARKED), flows: Some(flows) }
        }
        _ => QueueDrops { all, full: all, ..QueueDrops::default() },
    }
}

/// Drops and marks of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueDrops {
    /// Frames.
    pub all: u64,
    /// Of these, for lack of room.
    pub full: u64,
    /// Frames that were marked.
    pub marked: u64,
    /// Flows with frames, if it separates flows.
    pub flows: Option<u64>,
}

fn counters(attributes: &[u8]) -> Counters {
    let statistics = find(attributes, TCA_STATS2).unwrap_or_default();
    let (basic, queue) = (find(statistics, TCA_STATS_BASIC), find(statistics, TCA_STATS_QUEUE));
    let wide = find(statistics, TCA_STATS_PKT64).and_then(|v| u64_at(v, 0));
    let drops = queue.and_then(|v| u32_at(v, 8)).unwrap_or_default().into();
    let narrow = basic.and_then(|v| u32_at(v, 8)).map(u64::from);
    Counters {
        bytes: basic.and_then(|v| u64_at(v, 0)).unwrap_or_default(),
        packets: wide.or(narrow).unwrap_or_default(),
        // struct gnet_stats_queue: qlen, backlog, drops.
        backlog: queue.and_then(|v| u32_at(v, 4)).unwrap_or_default().into(),
        drops,
        full: drops,
        ..Counters::default()
    }
}

/// Whether a u32 filter takes every packet: keys without a bit.
fn takes_everything(options: &[u8]) -> bool {
    let Some(select) = find(options, TCA_U32_SEL) else { return false };
    let (flags, keys) = (select.first(), select.get(2));
    let masks = select.get(16..).unwrap_or_default().chunks(16).map(|key| u32_at(key, 0));
    flags.is_some_and(|f| f & TC_U32_TERMINAL != 0)
        && keys.is_some()
        && masks.into_iter().all(|m| m == Some(0))
}

fn bpf_rule(options: &[u8]) -> Option<Rule> {
    let direct = find(options, TCA_BPF_FLAGS).and_then(|flags| u32_at(flags, 0))? & TCA_BPF_FLAG_ACT_DIRECT;
    let name = string(find(options, TCA_BPF_NAME)?);
    let major = find(options, TCA_BPF_CLASSID).and_then(|id| u32_at(id, 0)).map(|id| Handle(id).major());
    let police = owner::parse_police_name(&name);
    let police = police.map(|(cookie, bucket, program)| Rule::Police { bucket, program, cookie });
    let mark = owner::parse_mark_name(&name);
    let mark = mark.map(|(cookie, marks, program)| Rule::Mark { marks, program, cookie });
    let congestion = || owner::parse_congestion_name(&name);
    let congestion =
        || congestion().map(|(cookie, queue, program)| Rule::MarkCongestion { queue, program, cookie });
    let classes = || owner::parse_classifier_name(&name).filter(|_| major == Some(owner::MAJOR));
    let classify = || classes().map(|program| Rule::Classify { program, classes: BTreeMap::new() });
    police.or(mark).or_else(congestion).or_else(classify).filter(|_| direct != 0)
}

/// Reads the rule of a u32 filter that takes every packet.
fn redirect_rule(options: &[u8]) -> Option<Rule> {
    if !takes_everything(options) {
        return None;
    }
    let (_, action) = find(options, TCA_U32_ACT).and_then(|list| read(list).next())?;
    let cookie = Cookie::parse(find(action, TCA_ACT_COOKIE)?)?;
    let mirred = find(find(action, TCA_ACT_OPTIONS)?, TCA_MIRRED_PARMS);
    let to = mirred.filter(|m| u32_at(m, 20) == Some(TCA_EGRESS_REDIR)).and_then(|m| u32_at(m, 24));
    // Ours, but changed by another program: it has to be remade.
    Some(Rule::Redirect { to: to.unwrap_or(0), cookie })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ebpf::congestion::VirtualQueue;
    use crate::ebpf::mark::Marks;
    use crate::ebpf::police::Bucket;
    use crate::tc::netlink::attribute::Attributes;
    use crate::tc::netlink::encode::{Names, header, request};
    use crate::tc::netlink::link_header;
    use crate::tc::step::{Device, Step};
    use proptest::prelude::*;

    struct Numbers;

    impl Names for Numbers {
        type Error = ();

        fn index(&mut self, device: &Device) -> Result<u32, ()> {
            Ok(if *device == Device::Ifb { 9 } else { 7 })
        }

        fn policer(&mut self, _: Bucket, _: Option<u32>) -> Result<(u32, u32), ()> {
            Ok((5, 77))
        }

        fn classifier(&mut self, _: &Device) -> Result<(u32, u32), ()> {
            Ok((67, 78))
        }

        fn marker(&mut self, _: Marks, _: Option<u32>) -> Result<(u32, u32), ()> {
            Ok((6, 78))
        }

        fn congestion_marker(&mut self, _: VirtualQueue, _: Option<u32>) -> Result<(u32, u32), ()> {
            Ok((9, 79))
        }
    }

    fn tap() -> Device {
        Device::Netdev { index: 7, name: "tap7".into() }
    }

    /// Returns a step's message, to be read like the kernel's.
    fn body(step: &Step) -> Vec<u8> {
        request(step, &mut Numbers).expect("an index").expect("a request").body
    }

    fn program(map: u32) -> owner::Program {
        owner::Program { map, version: owner::PROGRAMS }
    }

    #[test]
    fn a_redirect_reads_back() {
        let cookie = Cookie { made_clsact: true };
        let body = body(&Step::Redirect { device: tap(), cookie });
        let message = traffic_control(&body).expect("a message");
        assert_eq!(message.index, 7);
        let filter = message.filter(Handle::INGRESS).expect("a filter");
        assert_eq!((filter.preference, filter.protocol), (owner::PREFERENCE, 3));
        assert_eq!(filter.rule, Rule::Redirect { to: 9, cookie });
    }

    #[test]
    fn a_policer_reads_back() {
        let (cookie, bucket) = (Cookie { made_clsact: true }, Bucket { rate: 125_000, burst: 3_000 });
        for instead in [None, Some((1, 5))] {
            let body = body(&Step::Police { device: tap(), bucket, cookie, instead });
            let message = traffic_control(&body).expect("a message");
            assert_eq!(message.index, 7);
            let filter = message.filter(Handle::INGRESS).expect("a filter");
            assert_eq!((filter.preference, filter.protocol), (owner::PREFERENCE, 3));
            assert_eq!(filter.rule, Rule::Police { bucket, program: program(77), cookie });
        }
    }

    #[test]
    fn marks_read_back() {
        let (cookie, marks) = (Cookie { made_clsact: false }, Marks::Clear);
        for instead in [None, Some((1, 5))] {
            let body = body(&Step::Mark { device: tap(), marks, cookie, instead });
            let message = traffic_control(&body).expect("a message");
            let filter = message.filter(Handle::INGRESS).expect("a filter");
            assert_eq!((filter.preference, filter.protocol), (owner::MARK_PREFERENCE, 3));
            assert_eq!(filter.rule, Rule::Mark { marks, program: program(78), cookie });
        }
    }

    #[test]
    fn marks_of_congestion_read_back() {
        let cookie = Cookie { made_clsact: false };
        let queue = VirtualQueue { rate: 1, burst: 2, target: 3, room: 4 };
        for (parent, instead) in [(Handle::INGRESS, None), (owner::ROOT_QDISC, Some((1, 5)))] {
            let body = body(&Step::MarkCongestion { device: tap(), parent, queue, cookie, instead });
            let message = traffic_control(&body).expect("a message");
            let filter = message.filter(parent).expect("a filter");
            assert_eq!((filter.preference, filter.protocol), (owner::MARK_PREFERENCE, 3));
            assert_eq!(filter.rule, Rule::MarkCongestion { queue, program: program(79), cookie });
        }
    }

    #[test]
    fn the_drops_marks_and_backlog_of_a_queue_are_read() {
        let queue = [0_u32, 0, 9, 0, 0].map(u32::to_ne_bytes).concat();
        let said = |own: Attributes| {
            let mut all = Attributes::default();
            all.nest(TCA_STATS2, |stats| {
                stats.put(TCA_STATS_QUEUE, &queue);
                stats.put(TCA_STATS_APP, &own.0);
            });
            all
        };
        // struct tc_fq_codel_xstats, of a qdisc: its type is 0.
        let own = [0_u32, 1514, 4, 3, 77, 2, 5, 0, 0, 0].map(u32::to_ne_bytes).concat();
        let right = QueueDrops { all: 9, full: 4, marked: 3, flows: Some(7) };
        assert_eq!(dropped("fq_codel", &said(Attributes(own)).0), right);
        let mut own = Attributes::default();
        own.nest(TCA_CAKE_STATS_TIN_STATS, |tins| {
            tins.nest(1, |tin| {
                tin.put_u32(TCA_CAKE_TIN_STATS_ECN_MARKED, 3);
                tin.put_u32(TCA_CAKE_TIN_STATS_SPARSE_FLOWS, 2);
                tin.put_u32(TCA_CAKE_TIN_STATS_BULK_FLOWS, 5);
            });
        });
        let right = QueueDrops { all: 9, full: 0, marked: 3, flows: Some(7) };
        assert_eq!(dropped("cake", &said(own).0), right);
        let none = QueueDrops { all: 9, full: 9, marked: 0, flows: None };
        assert_eq!(dropped("bfifo", &said(Attributes::default()).0), none);
    }

    #[test]
    fn a_classifier_reads_back() {
        let body = body(&Step::AddClassifier { device: Device::Ifb });
        let message = traffic_control(&body).expect("a message");
        assert_eq!(message.index, 9);
        let filter = message.filter(owner::ROOT_QDISC).expect("a filter");
        assert_eq!((filter.preference, filter.protocol), (owner::PREFERENCE, 3));
        assert_eq!(filter.rule, Rule::Classify { program: program(78), classes: BTreeMap::new() });
    }

    #[test]
    fn a_link_reads_back() {
        let body = body(&Step::AddIfb);
        let (_, link) = link(&body).expect("a link");
        assert!(link.is_our_ifb() && !link.up);
    }

    #[test]
    fn a_bridge_and_its_port_read_back() {
        for (filters, default_pvid) in [(true, Some(1)), (false, None)] {
            let mut body = link_header(9, 0, 0);
            body.nest(IFLA_LINKINFO, |info| {
                info.put_str(IFLA_INFO_KIND, "bridge");
                info.nest(IFLA_INFO_DATA, |data| {
                    data.put(IFLA_BR_VLAN_FILTERING, &[filters.into()]);
                    data.put(IFLA_BR_VLAN_DEFAULT_PVID, &default_pvid.unwrap_or(0_u16).to_ne_bytes());
                });
            });
            body.put_u32(IFLA_MASTER, 7);
            let (_, link) = link(&body.0).expect("a link");
            assert_eq!((link.bridge, link.master), (Some(Bridge { filters, default_pvid }), Some(7)));
        }
    }

    #[test]
    fn a_table_of_u32_and_an_empty_preference_are_no_filters() {
        let mut table = header(7, Handle(0x8000_0000), Handle::INGRESS, 0x0001_0300);
        table.put_str(TCA_KIND, "u32");
        let mut bare = header(7, Handle::default(), Handle::INGRESS, 0x0001_0300);
        bare.put_str(TCA_KIND, "bpf");
        for body in [table.0, bare.0] {
            let message = traffic_control(&body).expect("a message");
            assert_eq!(message.filter(Handle::INGRESS), None);
        }
    }

    proptest! {
        #[test]
        fn a_class_reads_back(rate in 1..50_000_000_000_u64, ceil in 1..50_000_000_000_u64, rest: [u32; 4]) {
            let [burst, cburst, quantum, priority] = rest;
            let class = HtbClass { rate, ceil, burst, cburst, quantum, priority };
            let id = Handle::new(owner::MAJOR, 3);
            let parent = Handle::new(owner::MAJOR, 1);
            let body = body(&Step::SetClass { device: tap(), id, parent, class });
            let read = traffic_control(&body).expect("a message").class();
            prop_assert_eq!((read.id, read.parent, read.htb), (id, parent, Some(class)));
        }

        #[test]
        fn a_qdisc_reads_back(default: u32, limit: u32) {
            for setting in [Setting::Htb { default }, Setting::Bfifo { limit }, Setting::Clsact] {
                let (parent, handle) = (Handle::ROOT, owner::ROOT_QDISC);
                let step = Step::SetQdisc { device: tap(), parent, handle, setting: setting.clone(), replace: false };
                let read = traffic_control(&body(&step)).expect("a message").qdisc();
                prop_assert_eq!(read, Qdisc { handle, parent, setting });
            }
        }

        #[test]
        fn no_message_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200), kind in "(u32|htb|bfifo|bpf)") {
            let mut body = header(1, Handle(1), Handle(1), 1);
            body.put_str(TCA_KIND, &kind);
            body.put(TCA_OPTIONS, &bytes);
            body.put(TCA_STATS2, &bytes);
            let message = || traffic_control(&body.0).expect("a message");
            let _ = (message().qdisc(), message().class(), message().filter(Handle::INGRESS));
            let _ = (link(&bytes), traffic_control(&bytes).map(TrafficControl::class));
        }
    }
}
