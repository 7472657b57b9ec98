//! Recorded messages of stock kernels about objects of libvirt and others: they are saved, and a kernel
//! with the same arithmetic restores them equally.

use super::read::{object, sort_out};
use super::{Layer, Object, TakenOver};
use crate::ebpf::Marks;
use crate::ebpf::police::Bucket;
use crate::foreign;
use crate::tc::netlink::attribute::{Attributes, find, read, string, u32_at};
use crate::tc::netlink::constants::*;
use crate::tc::netlink::{Names, request, traffic_control};
use crate::tc::network::Netdev;
use crate::tc::shaping::Ends;
use crate::tc::step::{Device, Step};

const LIBVIRT: &str = include_str!("libvirt");
const POLICERS: &str = include_str!("policers");

/// Parses a record: a layer and a message body in each line.
fn messages(recorded: &str) -> Vec<(Layer, Vec<u8>)> {
    let lines = recorded.lines().filter(|line| !line.starts_with('#'));
    let message = |line: &str| {
        let (layer, hex) = line.split_once(' ').expect("a layer and a body");
        let layer = match layer {
            "qdisc" => Layer::Qdisc,
            "class" => Layer::Class,
            "filter" => Layer::Filter,
            other => panic!("{other}"),
        };
        let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal");
        (layer, (0..hex.len()).step_by(2).map(byte).collect())
    };
    lines.map(message).collect()
}

fn taken_over(recorded: &str) -> TakenOver {
    let objects = messages(recorded).into_iter().map(|(layer, body)| {
        object(&traffic_control(&body).expect("a message"), layer).expect("all of it can be remembered")
    });
    sort_out(3, Ends::BOTH, objects.collect()).expect("it lasts")
}

struct Numbers;

impl Names for Numbers {
    type Error = ();

    fn index(&mut self, _: &Device) -> Result<u32, ()> {
        Ok(3)
    }

    fn policer(&mut self, _: Bucket, _: Option<u32>) -> Result<(u32, u32), ()> {
        Err(())
    }

    fn classifier(&mut self, _: &Device) -> Result<(u32, u32), ()> {
        Err(())
    }

    fn marker(&mut self, _: Marks, _: Option<u32>) -> Result<(u32, u32), ()> {
        Err(())
    }

    fn congestion_marker(
        &mut self,
        _: crate::ebpf::congestion::VirtualQueue,
        _: Option<u32>,
    ) -> Result<(u32, u32), ()> {
        Err(())
    }
}

/// Returns the kernel's report of a requested object: as requested, except for computed values.
fn kernel_says(layer: Layer, body: &[u8]) -> Result<Object, &'static str> {
    let mut said = object(&traffic_control(body).expect("a message"), layer).expect("no size table");
    let options = said.options.take();
    said.options = match (layer, said.kind.as_str()) {
        (Layer::Qdisc, "sfq") => options.map(sfq),
        (Layer::Qdisc, "fq_codel") => options.map(|options| fq_codel(&options)),
        (Layer::Filter, "u32") => options.map(|options| policed(&options, TCA_U32_ACT)).transpose()?,
        (Layer::Filter, "matchall") => options.map(|options| policed(&options, 2)).transpose()?,
        _ => options,
    };
    Ok(said)
}

/// `sfq_change` on a new qdisc.
fn sfq(mut options: Vec<u8>) -> Vec<u8> {
    let field = |at| u32_at(&options, at).expect("struct tc_sfq_qopt_v1");
    let (limit, flows, depth) = (field(8), field(16), field(20));
    let mut has = (127, 128, 127);
    if flows > 0 {
        has.1 = flows.min(65_536 - 128);
    }
    if depth > 0 {
        has.2 = depth.min(127);
    }
    if limit > 0 {
        has.0 = limit.min(has.2 * has.1);
        has.1 = has.1.min(has.0);
    }
    for (at, value) in [(8, has.0), (16, has.1), (20, has.2)] {
        options[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }
    options
}

/// Times in units of 1024 ns.
fn fq_codel(options: &[u8]) -> Vec<u8> {
    foreign::rewrite::rewrite(options, |kind, value| {
        let time = u32_at(value, 0).filter(|_| [TCA_CODEL_TARGET, TCA_CODEL_INTERVAL].contains(&kind));
        let kept = |us: u32| (u64::from(us) * 1000 / 1024 * 1024 / 1000) as u32;
        Some(time.map_or_else(|| value.to_vec(), |us| kept(us).to_ne_bytes().to_vec()))
    })
}

/// Policers need tables of their rates, which are not reported.
fn policed(options: &[u8], actions: u16) -> Result<Vec<u8>, &'static str> {
    let mut failed = Ok(());
    let police = |options: &[u8]| {
        let parameters = find(options, TCA_POLICE_TBF).ok_or("EINVAL")?;
        for (rate, table) in [(20, TCA_POLICE_RATE), (32, TCA_POLICE_PEAKRATE)] {
            let rated = u32_at(parameters, rate + 8) != Some(0);
            if rated && (parameters[rate] == 0 || find(options, table).map(<[u8]>::len) != Some(1024)) {
                return Err("ENOMEM");
            }
        }
        let mut said = Attributes::default();
        for (kind, value) in
            read(options).filter(|(kind, _)| ![TCA_POLICE_RATE, TCA_POLICE_PEAKRATE].contains(kind))
        {
            let mut value = value.to_vec();
            if kind == TCA_POLICE_TBF {
                (value[20], value[32]) = (0, 0);
            }
            said.put(kind, &value);
        }
        Ok(said.0)
    };
    let mut tried = |options: &[u8]| {
        let said = police(options);
        failed = failed.and(said.as_ref().map(drop).map_err(|e| *e));
        said.unwrap_or_default()
    };
    let said = foreign::rewrite::rewrite(options, |kind, value| {
        let list = |value: &[u8], tried: &mut dyn FnMut(&[u8]) -> Vec<u8>| {
            foreign::rewrite::rewrite(value, |_, action| {
                let is_police = find(action, TCA_ACT_KIND).is_some_and(|kind| string(kind) == "police");
                Some(foreign::rewrite::rewrite(action, |attribute, value| {
                    let options = is_police && attribute == TCA_ACT_OPTIONS;
                    Some(if options { tried(value) } else { value.to_vec() })
                }))
            })
        };
        Some(match kind {
            TCA_U32_POLICE if actions == TCA_U32_ACT => tried(value),
            kind if kind == actions => list(value, &mut tried),
            _ => value.to_vec(),
        })
    });
    failed.map(|()| said)
}

/// Restores it on an empty device; returns the device's objects.
fn made_again(taken_over: &TakenOver) -> TakenOver {
    let steps = taken_over.restore(&Netdev { name: "vnet0".into(), ..Netdev::default() }, Ends::BOTH);
    let said = steps.iter().map(|step| {
        let Step::Restore { object, .. } = step else { panic!("{step}") };
        let request = request(step, &mut Numbers).expect("it has a number").expect("a request");
        let mut said = kernel_says(object.layer, &request.body).unwrap_or_else(|why| panic!("{step}: {why}"));
        // A class right below its qdisc is reported as hanging on the root.
        if said.layer == Layer::Class && said.parent.minor() == 0 {
            said.parent = crate::handle::Handle::ROOT;
        }
        said
    });
    sort_out(taken_over.index, Ends::BOTH, said.collect()).expect("it lasts")
}

fn shown(objects: &[Object]) -> Vec<String> {
    objects.iter().map(ToString::to_string).collect()
}

#[test]
fn limits_of_libvirt_are_restored() {
    let taken_over = taken_over(LIBVIRT);
    assert_eq!(
        shown(&taken_over.egress),
        [
            "qdisc htb 1: at root",
            "class 1:1 of htb",
            "qdisc sfq 2: at 1:1",
            "the fw filter of preference 1 at 1:"
        ]
    );
    assert_eq!(
        shown(&taken_over.ingress),
        ["qdisc ingress ffff: at clsact", "the u32 filter of preference 49152 at ffff:"]
    );
    let policer = taken_over.ingress[1].options.as_deref().and_then(|options| find(options, TCA_U32_POLICE));
    assert_eq!(find(policer.expect("a policer of the old form"), TCA_POLICE_TM), None, "its times are gone");
    assert_eq!(made_again(&taken_over), taken_over);
}

#[test]
fn other_policers_and_queues_are_restored() {
    let taken_over = taken_over(POLICERS);
    assert_eq!(shown(&taken_over.egress)[2], "qdisc fq_codel 2: at 1:1");
    assert_eq!(taken_over.ingress.iter().map(|o| o.chain).collect::<Vec<_>>(), [None, None, None, Some(5)]);
    assert_eq!(made_again(&taken_over), taken_over);
}
