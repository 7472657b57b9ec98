//! Separates settings in an object's attributes from counters, times and computed values.
//!
//! Unknown kinds are taken as they are: if they report more than settings, the rehearsal finds a
//! difference.

use super::filter::{self, FilterKind};
use super::{Layer, Object};
use crate::tc::netlink::attribute::{find, u32_at};
use crate::tc::netlink::constants::*;

/// Place of the counter of passed packets in `struct tc_htb_glob` (`direct_pkts`).
const HTB_PASSED: std::ops::Range<usize> = 16..20;

/// Beginning of the counters in `struct tc_sfq_qopt_v1` (`stats`).
const SFQ_COUNTERS: usize = 48;

/// Reduces an object to its settings; `None` for an object that the kernel makes by itself with another.
///
/// # Errors
/// It has something that cannot be restored; the text names it.
pub fn settings_of(mut object: Object) -> Result<Option<Object>, String> {
    let options = object.options.take();
    match (object.layer, object.kind.as_str()) {
        // Classes that come with their qdisc.
        (Layer::Class, _) if options.is_none() => return Ok(None),
        // An empty preference.
        (Layer::Filter, _) if options.is_none() => return Ok(None),
        (Layer::Filter, "u32") => {
            let options = options.unwrap_or_default();
            let table = find(&options, TCA_U32_DIVISOR).is_some();
            if table && object.handle.0 >= filter::KERNEL_TABLES {
                return Ok(None);
            }
            if object.handle.0 >= filter::KERNEL_TABLES {
                // The kernel numbers its tables in the order of the preferences.
                object.handle.0 &= 0xfff;
            }
            object.options = Some(filter::settings_of(&options, &filter::U32)?);
        }
        (Layer::Filter, kind) => {
            let kind = FilterKind::named(kind)
                .ok_or_else(|| format!("a filter of kind {kind} cannot be restored later"))?;
            object.options = Some(filter::settings_of(&options.unwrap_or_default(), kind)?);
        }
        (Layer::Qdisc, "htb") => object.options = Some(htb(&options.unwrap_or_default())),
        (Layer::Qdisc, "sfq") => {
            let mut options = options.unwrap_or_default();
            options.iter_mut().skip(SFQ_COUNTERS).for_each(|byte| *byte = 0);
            object.options = Some(options);
        }
        (_, _) => object.options = options,
    }
    Ok(Some(object))
}

fn htb(options: &[u8]) -> Vec<u8> {
    super::rewrite::rewrite(options, |kind, value| {
        let mut value = value.to_vec();
        if kind == TCA_HTB_INIT && value.len() >= HTB_PASSED.end {
            value[HTB_PASSED].fill(0);
            // The kernel reports its version with the minor one, and accepts the major one only.
            let version = u32_at(&value, 0).unwrap_or_default();
            let major = if version > 0xffff { version >> 16 } else { version };
            value[..4].copy_from_slice(&major.to_ne_bytes());
        }
        Some(value)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::foreign::options::options_for;
    use crate::handle::Handle;
    use crate::tc::netlink::attribute::{Attributes, read};
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
    fn counts_of_a_policer_are_dropped_and_its_rate_tables_are_added() {
        let mut options = Attributes::default();
        options.put_u32(TCA_U32_FLAGS, 8);
        options.put(TCA_U32_PCNT, &[1; 16]);
        options.put_u32(TCA_U32_HASH, 0x8010_0000);
        options.nest(TCA_U32_ACT, |list| list.put(1, &police()));
        let reduced =
            settings_of(object(Layer::Filter, "u32", Some(options.0))).expect("it lasts").expect("it is one");
        assert_eq!(reduced.handle, Handle(0x800));
        let settings = reduced.options.clone().expect("options");
        let kinds: Vec<u16> = read(&settings).map(|(kind, _)| kind).collect();
        assert_eq!(kinds, [TCA_U32_ACT]);

        let request = options_for(&reduced).expect("options");
        let list = find(&request, TCA_U32_ACT).expect("actions");
        let police = find(find(list, 1).expect("one"), TCA_ACT_OPTIONS).expect("its options");
        let settings = find(police, TCA_POLICE_TBF).expect("its settings");
        assert_eq!((u32_at(settings, 0), settings[20], settings[32]), (Some(0), 3, 3));
        assert_eq!(find(police, TCA_POLICE_RATE).map(<[u8]>::len), Some(1024));
        assert_eq!(find(police, 6), None, "its times");
    }

    #[test]
    fn objects_that_the_kernel_makes_are_not_recorded() {
        let mut table = Attributes::default();
        table.put_u32(TCA_U32_DIVISOR, 1);
        assert_eq!(settings_of(object(Layer::Filter, "u32", Some(table.0.clone()))), Ok(None));
        let foreign_table =
            Object { handle: Handle(0x0010_0000), ..object(Layer::Filter, "u32", Some(table.0)) };
        assert!(settings_of(foreign_table).is_ok_and(|reduced| reduced.is_some()), "a table of theirs is");
        assert_eq!(settings_of(object(Layer::Class, "tbf", None)), Ok(None));
        assert_eq!(settings_of(object(Layer::Filter, "u32", None)), Ok(None));
    }

    #[test]
    fn an_object_that_cannot_be_recorded_is_named() {
        let why = settings_of(object(Layer::Filter, "bpf", Some(vec![])))
            .expect_err("a program is not ours to load");
        assert_eq!(why, "a filter of kind bpf cannot be restored later");
        let mut options = Attributes::default();
        options.nest(TCA_U32_ACT, |list| list.nest(1, |action| action.put_str(TCA_ACT_KIND, "pedit")));
        let why = settings_of(object(Layer::Filter, "u32", Some(options.0))).expect_err("not known");
        assert_eq!(why, "an action of kind pedit cannot be restored later");
    }

    proptest! {
        /// Reducing twice changes nothing.
        #[test]
        fn reducing_settings_twice_changes_nothing(bytes: Vec<u8>, kind in "(u32|htb|sfq|fw|tbf|matchall)", layer in 0..3_u8) {
            let layer = [Layer::Qdisc, Layer::Class, Layer::Filter][usize::from(layer)];
            if let Ok(Some(once)) = settings_of(object(layer, &kind, Some(bytes))) {
                let _ = options_for(&once);
                prop_assert_eq!(settings_of(once.clone()), Ok(Some(once)));
            }
        }
    }
}
