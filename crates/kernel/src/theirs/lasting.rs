//! What of an object's attributes is a setting, and what is a counter, a time, or worked out by the kernel.
//!
//! Kinds that are not named here are taken as they are: where they say more than settings, the rehearsal finds that
//! what is read back differs.

use super::{Layer, Object};
use crate::netlink::attribute::{Attributes, find, read, u32_at};
use crate::netlink::constants::*;

/// Flags of a filter that the one who makes it may set: TCA_CLS_FLAGS_SKIP_HW and SKIP_SW. The others are the kernel's.
const SET_FLAGS: u32 = 3;

/// `struct tc_htb_glob`: where its counter of passed packets is (`direct_pkts`).
const HTB_PASSED: std::ops::Range<usize> = 16..20;

/// `struct tc_sfq_qopt_v1`: where its counters begin (`stats`).
const SFQ_COUNTERS: usize = 48;

/// Where the ratespec of `struct tc_police` has its `cell_log`.
const POLICE_CELL_LOG: usize = 20;

/// Bytes of a rate table (`TC_RTAB_SIZE`).
const RATE_TABLE: usize = 1024;

/// Ids of u32's hash tables from here on are those that the kernel gives the first table of a preference.
const KERNEL_TABLES: u32 = 0x8000_0000;

/// An object without what does not last; `None` for what the kernel makes by itself with another.
///
/// # Errors
/// It has something that cannot be told to the kernel again; the text names it.
pub fn lasting(mut object: Object) -> Result<Option<Object>, String> {
    let options = object.options.take();
    match (object.layer, object.kind.as_str()) {
        // Classes of qdiscs whose classes come with them.
        (Layer::Class, _) if options.is_none() => return Ok(None),
        // That a preference is there, without a filter.
        (Layer::Filter, _) if options.is_none() => return Ok(None),
        (Layer::Filter, "u32") => {
            let options = options.unwrap_or_default();
            let table = find(&options, TCA_U32_DIVISOR).is_some();
            if table && object.handle.0 >= KERNEL_TABLES {
                return Ok(None);
            }
            if object.handle.0 >= KERNEL_TABLES {
                // The kernel numbers its tables in the order in which preferences are made.
                object.handle.0 &= 0xfff;
            }
            object.options = Some(u32_filter(&options)?);
        }
        (Layer::Qdisc, "htb") => object.options = Some(htb(&options.unwrap_or_default())),
        (Layer::Qdisc, "sfq") => {
            let mut options = options.unwrap_or_default();
            options.iter_mut().skip(SFQ_COUNTERS).for_each(|byte| *byte = 0);
            object.options = Some(options);
        }
        (Layer::Filter, kind) => {
            let (actions, flags) = match kind {
                "fw" => (4, None),
                "matchall" => (2, Some(3)),
                "basic" => (3, None),
                "flower" => (3, Some(22)),
                _ => return Err(format!("a filter of kind {kind} cannot be remembered")),
            };
            object.options = Some(filter(&options.unwrap_or_default(), actions, flags, &[])?);
        }
        (_, _) => object.options = options,
    }
    Ok(Some(object))
}

/// What the kernel has to be told beside what lasts.
pub fn told(object: &Object) -> Option<Vec<u8>> {
    let options = object.options.as_ref()?;
    let actions = match (object.layer, object.kind.as_str()) {
        (Layer::Filter, "u32") => TCA_U32_ACT,
        (Layer::Filter, "fw") => 4,
        (Layer::Filter, "matchall") => 2,
        (Layer::Filter, "basic" | "flower") => 3,
        _ => return Some(options.clone()),
    };
    let told = rewrite(options, |kind, value| {
        if kind != actions {
            return Some(value.to_vec());
        }
        Some(rewrite(value, |_, action| {
            let police = find(action, TCA_ACT_KIND).is_some_and(|kind| kind.starts_with(b"police"));
            Some(if police { with_rate_table(action) } else { action.to_vec() })
        }))
    });
    Some(told)
}

/// Attributes, each as `change` makes it; `None` leaves one out.
fn rewrite(attributes: &[u8], mut change: impl FnMut(u16, &[u8]) -> Option<Vec<u8>>) -> Vec<u8> {
    let mut out = Attributes::default();
    for (kind, value) in read(attributes) {
        if let Some(value) = change(kind, value) {
            out.put(kind, &value);
        }
    }
    out.0
}

fn htb(options: &[u8]) -> Vec<u8> {
    rewrite(options, |kind, value| {
        let mut value = value.to_vec();
        if kind == TCA_HTB_INIT && value.len() >= HTB_PASSED.end {
            value[HTB_PASSED].fill(0);
            // It says its version with the minor one, and takes the major one only.
            let version = u32_at(&value, 0).unwrap_or_default();
            let major = if version > 0xffff { version >> 16 } else { version };
            value[..4].copy_from_slice(&major.to_ne_bytes());
        }
        Some(value)
    })
}

fn u32_filter(options: &[u8]) -> Result<Vec<u8>, String> {
    let kernel_table =
        find(options, TCA_U32_HASH).and_then(|v| u32_at(v, 0)).is_some_and(|t| t >= KERNEL_TABLES);
    let mut left_out = vec![TCA_U32_PCNT];
    left_out.extend(kernel_table.then_some(TCA_U32_HASH));
    filter(options, TCA_U32_ACT, Some(TCA_U32_FLAGS), &left_out)
}

/// The options of a filter; `actions` and `flags` are their attributes.
fn filter(options: &[u8], actions: u16, flags: Option<u16>, left_out: &[u16]) -> Result<Vec<u8>, String> {
    let mut failed = None;
    let kept = rewrite(options, |kind, value| {
        if left_out.contains(&kind) {
            None
        } else if kind == actions {
            Some(rewrite(value, |_, action| match lasting_action(action) {
                Ok(action) => Some(action),
                Err(why) => {
                    failed = Some(why);
                    None
                }
            }))
        } else if Some(kind) == flags {
            let set = u32_at(value, 0).unwrap_or_default() & SET_FLAGS;
            (set != 0).then(|| set.to_ne_bytes().to_vec())
        } else {
            Some(value.to_vec())
        }
    });
    failed.map_or(Ok(kept), Err)
}

/// Kind, settings and cookie of an action. Its number is left out: it may be another action's by then.
fn lasting_action(action: &[u8]) -> Result<Vec<u8>, String> {
    let kind = find(action, TCA_ACT_KIND).map(crate::netlink::attribute::string).unwrap_or_default();
    // The attribute with its times; and where in its settings are number, references and binds.
    let (times, settings, counts): (u16, u16, [usize; 3]) = match kind.as_str() {
        "gact" | "mirred" | "skbedit" | "vlan" => (1, 2, [0, 12, 16]),
        "police" => (6, 1, [0, 44, 48]),
        _ => return Err(format!("an action of kind {kind} cannot be remembered")),
    };
    let mut out = Attributes::default();
    for (attribute, value) in read(action) {
        match attribute {
            TCA_ACT_KIND | TCA_ACT_COOKIE => out.put(attribute, value),
            TCA_ACT_OPTIONS => out.put(
                attribute,
                &rewrite(value, |option, value| {
                    let mut value = value.to_vec();
                    if option == settings {
                        for at in counts {
                            if let Some(count) = value.get_mut(at..at + 4) {
                                count.fill(0);
                            }
                        }
                    }
                    (option != times).then_some(value)
                }),
            ),
            _ => {}
        }
    }
    Ok(out.0)
}

/// An action `police`: it is made only with tables of rates, which the kernel does not use where the link layer is
/// stated, and does not say (`tcf_police_init`, net/sched/act_police.c).
fn with_rate_table(action: &[u8]) -> Vec<u8> {
    rewrite(action, |attribute, value| {
        if attribute != TCA_ACT_OPTIONS {
            return Some(value.to_vec());
        }
        let mut options = Attributes::default();
        for (kind, value) in read(value) {
            let mut value = value.to_vec();
            if kind == TCA_POLICE_TBF {
                for (rate, table) in
                    [(POLICE_CELL_LOG, TCA_POLICE_RATE), (POLICE_CELL_LOG + 12, TCA_POLICE_PEAKRATE)]
                {
                    // struct tc_ratespec: cell_log first, the rate at 8.
                    if u32_at(&value, rate + 8).is_some_and(|r| r != 0) {
                        value[rate] = 3;
                        options.put(table, &[0; RATE_TABLE]);
                    }
                }
            }
            options.put(kind, &value);
        }
        Some(options.0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handle::Handle;
    use proptest::prelude::*;

    fn object(layer: Layer, kind: &str, options: Option<Vec<u8>>) -> Object {
        Object {
            layer,
            handle: Handle(0x8000_0800),
            parent: Handle::INGRESS,
            info: 0x0001_0300,
            kind: kind.into(),
            options,
            chain: None,
        }
    }

    fn police() -> Vec<u8> {
        let mut settings = [7_u8; 56];
        settings[20] = 0;
        let mut action = Attributes::default();
        action.put_str(TCA_ACT_KIND, "police");
        action.nest(TCA_ACT_OPTIONS, |options| {
            options.put(TCA_POLICE_TBF, &settings);
            options.put(6, &[1; 32]);
        });
        action.put(4, &[9; 40]);
        action.0
    }

    #[test]
    fn what_a_policer_counted_is_not_kept_and_it_is_told_what_it_asks_for() {
        let mut options = Attributes::default();
        options.put_u32(TCA_U32_FLAGS, 8);
        options.put(TCA_U32_PCNT, &[1; 16]);
        options.put_u32(TCA_U32_HASH, 0x8010_0000);
        options.nest(TCA_U32_ACT, |list| list.put(1, &police()));
        let kept =
            lasting(object(Layer::Filter, "u32", Some(options.0))).expect("it lasts").expect("it is one");
        assert_eq!(kept.handle, Handle(0x800));
        let settings = kept.options.clone().expect("options");
        let kinds: Vec<u16> = read(&settings).map(|(kind, _)| kind).collect();
        assert_eq!(kinds, [TCA_U32_ACT]);

        let told = told(&kept).expect("options");
        let list = find(&told, TCA_U32_ACT).expect("actions");
        let police = find(find(list, 1).expect("one"), TCA_ACT_OPTIONS).expect("its options");
        let settings = find(police, TCA_POLICE_TBF).expect("its settings");
        assert_eq!((u32_at(settings, 0), settings[20], settings[32]), (Some(0), 3, 3));
        assert_eq!(find(police, TCA_POLICE_RATE).map(<[u8]>::len), Some(1024));
        assert_eq!(find(police, 6), None, "its times");
    }

    #[test]
    fn what_comes_by_itself_is_not_made() {
        let mut table = Attributes::default();
        table.put_u32(TCA_U32_DIVISOR, 1);
        assert_eq!(lasting(object(Layer::Filter, "u32", Some(table.0.clone()))), Ok(None));
        let theirs = Object { handle: Handle(0x0010_0000), ..object(Layer::Filter, "u32", Some(table.0)) };
        assert!(lasting(theirs).is_ok_and(|kept| kept.is_some()), "a table of theirs is");
        assert_eq!(lasting(object(Layer::Class, "tbf", None)), Ok(None));
        assert_eq!(lasting(object(Layer::Filter, "u32", None)), Ok(None));
    }

    #[test]
    fn what_cannot_be_remembered_is_named() {
        let why =
            lasting(object(Layer::Filter, "bpf", Some(vec![]))).expect_err("a program is not ours to load");
        assert_eq!(why, "a filter of kind bpf cannot be remembered");
        let mut options = Attributes::default();
        options.nest(TCA_U32_ACT, |list| list.nest(1, |action| action.put_str(TCA_ACT_KIND, "pedit")));
        let why = lasting(object(Layer::Filter, "u32", Some(options.0))).expect_err("not known");
        assert_eq!(why, "an action of kind pedit cannot be remembered");
    }

    proptest! {
        /// What lasts, lasts.
        #[test]
        fn twice_is_once(bytes: Vec<u8>, kind in "(u32|htb|sfq|fw|tbf|matchall)", layer in 0..3_u8) {
            let layer = [Layer::Qdisc, Layer::Class, Layer::Filter][usize::from(layer)];
            if let Ok(Some(once)) = lasting(object(layer, &kind, Some(bytes))) {
                let _ = told(&once);
                prop_assert_eq!(lasting(once.clone()), Ok(Some(once)));
            }
        }
    }
}
