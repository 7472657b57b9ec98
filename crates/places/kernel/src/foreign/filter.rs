//! Settings among a filter's attributes, and the extra attributes of its policer.
//!
//! A policer has two forms (`tcf_exts_dump`, net/sched/cls_api.c): one in a list of actions, and one in an
//! attribute of its own, without a kind, as in libvirt's `<bandwidth>`. Its parameters are the same in
//! both.

use super::rewrite::rewrite;
use crate::tc::netlink::attribute::{Attributes, find, read, string, u32_at};
use crate::tc::netlink::constants::*;

/// Ids from here on are the kernel's own, for the first u32 hash table of a preference.
pub const KERNEL_TABLES: u32 = 0x8000_0000;

/// Flags of a filter that its maker may set: TCA_CLS_FLAGS_SKIP_HW and SKIP_SW. The others are the
/// kernel's.
const SET_FLAGS: u32 = 3;

/// Place of the counter of hits in `struct tc_u32_mark` (`success`).
const MARK_HITS: std::ops::Range<usize> = 8..12;

/// Places of number, references and binds in `struct tc_police`, and of its rates (`struct tc_ratespec`).
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
    /// Its counters.
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
    /// Returns the kinds that can be saved and restored.
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

/// Returns the settings among a filter's options.
///
/// # Errors
/// It has an action that cannot be restored; the text names it.
pub fn settings_of(options: &[u8], filter: &FilterKind) -> Result<Vec<u8>, String> {
    let is_u32 = *filter == U32;
    let kernel_table =
        is_u32 && find(options, TCA_U32_HASH).and_then(|v| u32_at(v, 0)).is_some_and(|t| t >= KERNEL_TABLES);
    let mut failed = None;
    let reduced = rewrite(options, |kind, value| {
        if filter.counted.contains(&kind) || (kernel_table && kind == TCA_U32_HASH) {
            None
        } else if kind == filter.actions {
            Some(rewrite(value, |_, action| match action_settings(action) {
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
    failed.map_or(Ok(reduced), Err)
}

/// Returns the options of a request for a filter: its settings and the tables of its policer's rates.
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

/// Returns kind, settings and cookie of an action.
fn action_settings(action: &[u8]) -> Result<Vec<u8>, String> {
    let kind = find(action, TCA_ACT_KIND).map(string).unwrap_or_default();
    // The attribute with its times, the one with its settings, and the places of number, references and
    // binds in these.
    let (times, parameters, counts) = match kind.as_str() {
        "gact" | "mirred" | "skbedit" | "vlan" => (1, 2, [0, 12, 16]),
        "police" => (TCA_POLICE_TM, TCA_POLICE_TBF, POLICE_COUNTS),
        _ => return Err(format!("an action of kind {kind} cannot be restored later")),
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

/// Returns an action's options without its times. Its number is 0: it may be another action's by then.
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

/// Adds tables of its rates to a policer's options: the kernel requires them, ignores them if the link
/// layer is stated, and does not report them (`tcf_police_init`, net/sched/act_police.c).
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
