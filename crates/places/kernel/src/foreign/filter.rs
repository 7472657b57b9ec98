//! What of a filter's attributes is a setting, and what its policer has to be told.
//!
//! A policer comes in two forms (`tcf_exts_dump`, net/sched/cls_api.c): as one of a list of actions, and in an attribute of
//! its own, without a kind, as `tc` of libvirt's `<bandwidth>` asks for it. What it is told is the same in both.

use super::rewrite::rewrite;
use crate::tc::netlink::attribute::{Attributes, find, read, string, u32_at};
use crate::tc::netlink::constants::*;

/// Ids of u32's hash tables from here on are those that the kernel gives the first table of a preference.
pub const KERNEL_TABLES: u32 = 0x8000_0000;

/// Flags of a filter that the one who makes it may set: TCA_CLS_FLAGS_SKIP_HW and SKIP_SW. The others are the kernel's.
const SET_FLAGS: u32 = 3;

/// `struct tc_u32_mark`: where its counter of hits is (`success`).
const MARK_HITS: std::ops::Range<usize> = 8..12;

/// `struct tc_police`: number, references and binds; and where its rates are (`struct tc_ratespec`).
const POLICE_COUNTS: [usize; 3] = [0, 44, 48];
const POLICE_RATES: [(usize, u16); 2] = [(20, TCA_POLICE_RATE), (32, TCA_POLICE_PEAKRATE)];

/// Bytes of a rate table (`TC_RTAB_SIZE`).
const RATE_TABLE: usize = 1024;

/// Numbers of a kind's attributes (linux/pkt_cls.h).
#[derive(Debug, PartialEq, Eq)]
pub struct FilterKind {
    /// Its list of actions.
    actions: u16,
    /// A policer of the old form.
    police: Option<u16>,
    /// Its flags.
    flags: Option<u16>,
    /// What it counts.
    counted: &'static [u16],
}

pub const U32: FilterKind = FilterKind {
    actions: TCA_U32_ACT,
    police: Some(TCA_U32_POLICE),
    flags: Some(TCA_U32_FLAGS),
    counted: &[TCA_U32_PCNT],
};
const FW: FilterKind = FilterKind { actions: 4, police: Some(2), flags: None, counted: &[] };
const BASIC: FilterKind = FilterKind { actions: 3, police: Some(4), flags: None, counted: &[5] };
const MATCHALL: FilterKind = FilterKind { actions: 2, police: None, flags: Some(3), counted: &[4] };
const FLOWER: FilterKind = FilterKind { actions: 3, police: None, flags: Some(22), counted: &[86] };

impl FilterKind {
    /// Those that can be remembered.
    pub fn named(kind: &str) -> Option<&'static Self> {
        Some(match kind {
            "u32" => &U32,
            "fw" => &FW,
            "basic" => &BASIC,
            "matchall" => &MATCHALL,
            "flower" => &FLOWER,
            _ => return None,
        })
    }
}

/// The options of a filter without what does not last.
///
/// # Errors
/// It has an action that cannot be told to the kernel again; the text names it.
pub fn settings_of(options: &[u8], filter: &FilterKind) -> Result<Vec<u8>, String> {
    let is_u32 = *filter == U32;
    let kernel_table =
        is_u32 && find(options, TCA_U32_HASH).and_then(|v| u32_at(v, 0)).is_some_and(|t| t >= KERNEL_TABLES);
    let mut failed = None;
    let kept = rewrite(options, |kind, value| {
        if filter.counted.contains(&kind) || (kernel_table && kind == TCA_U32_HASH) {
            None
        } else if kind == filter.actions {
            Some(rewrite(value, |_, action| match lasting_action(action) {
                Ok(action) => Some(action),
                Err(why) => {
                    failed = Some(why);
                    None
                }
            }))
        } else if Some(kind) == filter.police {
            Some(settings(value, TCA_POLICE_TM, TCA_POLICE_TBF, POLICE_COUNTS))
        } else if Some(kind) == filter.flags {
            let set = u32_at(value, 0).unwrap_or_default() & SET_FLAGS;
            (set != 0).then(|| set.to_ne_bytes().to_vec())
        } else if is_u32 && kind == TCA_U32_MARK {
            let mut mark = value.to_vec();
            mark.get_mut(MARK_HITS).unwrap_or_default().fill(0);
            Some(mark)
        } else {
            Some(value.to_vec())
        }
    });
    failed.map_or(Ok(kept), Err)
}

/// What the kernel has to be told of a filter beside what lasts: the tables of its policer's rates.
pub fn options_for(options: &[u8], filter: &FilterKind) -> Vec<u8> {
    rewrite(options, |kind, value| {
        if Some(kind) == filter.police {
            return Some(with_rate_tables(value));
        }
        if kind != filter.actions {
            return Some(value.to_vec());
        }
        Some(rewrite(value, |_, action| {
            let police = find(action, TCA_ACT_KIND).is_some_and(|kind| string(kind) == "police");
            Some(rewrite(action, |attribute, value| {
                let options = police && attribute == TCA_ACT_OPTIONS;
                Some(if options { with_rate_tables(value) } else { value.to_vec() })
            }))
        }))
    })
}

/// Kind, settings and cookie of an action.
fn lasting_action(action: &[u8]) -> Result<Vec<u8>, String> {
    let kind = find(action, TCA_ACT_KIND).map(string).unwrap_or_default();
    // The attribute with its times, the one with its settings, and where in these are number, references and binds.
    let (times, parameters, counts) = match kind.as_str() {
        "gact" | "mirred" | "skbedit" | "vlan" => (1, 2, [0, 12, 16]),
        "police" => (TCA_POLICE_TM, TCA_POLICE_TBF, POLICE_COUNTS),
        _ => return Err(format!("an action of kind {kind} cannot be remembered")),
    };
    let mut out = Attributes::default();
    for (attribute, value) in read(action) {
        match attribute {
            TCA_ACT_KIND | TCA_ACT_COOKIE => out.put(attribute, value),
            TCA_ACT_OPTIONS => out.put(attribute, &settings(value, times, parameters, counts)),
            _ => {}
        }
    }
    Ok(out.0)
}

/// An action's options without its times. Its number is 0: it may be another action's by then.
fn settings(options: &[u8], times: u16, parameters: u16, counts: [usize; 3]) -> Vec<u8> {
    rewrite(options, |option, value| {
        let mut value = value.to_vec();
        if option == parameters {
            for at in counts {
                value.get_mut(at..at + 4).unwrap_or_default().fill(0);
            }
        }
        (option != times).then_some(value)
    })
}

/// A policer's options with tables of its rates: the kernel makes none without them, does not use them where the link layer is
/// stated, and does not say them (`tcf_police_init`, net/sched/act_police.c).
fn with_rate_tables(options: &[u8]) -> Vec<u8> {
    let mut out = Attributes::default();
    for (kind, value) in read(options) {
        let mut value = value.to_vec();
        if kind == TCA_POLICE_TBF {
            for (rate, table) in POLICE_RATES {
                // struct tc_ratespec: cell_log first, the rate at 8.
                if u32_at(&value, rate + 8).is_some_and(|r| r != 0) {
                    value[rate] = 3;
                    out.put(table, &[0; RATE_TABLE]);
                }
            }
        }
        out.put(kind, &value);
    }
    out.0
}
