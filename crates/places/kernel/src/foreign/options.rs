//! Options that make the kernel report the same settings.

use super::filter::{self, FilterKind};
use super::rewrite::rewrite;
use super::{Layer, Object};
use crate::tc::netlink::attribute::u32_at;
use crate::tc::netlink::constants::{
    TCA_CODEL_CE_THRESHOLD, TCA_CODEL_INTERVAL, TCA_CODEL_TARGET, TCA_FQ_CODEL_CE_THRESHOLD,
};

/// Places of limit and number of flows in `struct tc_sfq_qopt`.
const SFQ_LIMIT: std::ops::Range<usize> = 8..12;
const SFQ_FLOWS: usize = 16;

/// Returns an object's options for the request that makes it.
pub fn options_for(object: &Object) -> Option<Vec<u8>> {
    let options = object.options.as_ref()?;
    Some(match (object.layer, object.kind.as_str()) {
        (Layer::Qdisc, "sfq") => sfq(options),
        (Layer::Qdisc, "codel") => codel(options, TCA_CODEL_CE_THRESHOLD),
        (Layer::Qdisc, "fq_codel") => codel(options, TCA_FQ_CODEL_CE_THRESHOLD),
        (Layer::Filter, kind) => FilterKind::named(kind)
            .map_or_else(|| options.clone(), |filter| filter::options_for(options, filter)),
        _ => options.clone(),
    })
}

/// sfq begins with a limit of 127 packets and 128 flows, and accepts no more flows than a stated limit
/// (`sfq_change`, net/sched/sch_sfq.c). With more flows, the limit is the initial one, and is left out.
fn sfq(options: &[u8]) -> Vec<u8> {
    let mut request = options.to_vec();
    if u32_at(options, SFQ_FLOWS) > u32_at(options, SFQ_LIMIT.start) {
        request.get_mut(SFQ_LIMIT).unwrap_or_default().fill(0);
    }
    request
}

/// Returns options with adapted times; the threshold's number depends on the kind.
fn codel(options: &[u8], threshold: u16) -> Vec<u8> {
    rewrite(options, |kind, value| {
        let is_time = [TCA_CODEL_TARGET, TCA_CODEL_INTERVAL, threshold].contains(&kind);
        let time = u32_at(value, 0).filter(|_| is_time);
        Some(time.map_or_else(|| value.to_vec(), |us| codel_time(us).to_ne_bytes().to_vec()))
    })
}

/// Codel counts time in units of 1024 ns; it takes and reports microseconds, rounding down both times
/// (`codel_time_to_us`, include/net/codel.h). Returns the time that makes it report `us`.
fn codel_time(us: u32) -> u32 {
    let units = (u64::from(us) * 1000).div_ceil(1024);
    (units * 1024).div_ceil(1000).try_into().unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The kernel's arithmetic.
        #[test]
        fn a_restored_codel_time_reads_as_before(us in 0..4_000_000_u64) {
            let units = us * 1000 / 1024;
            let says = units * 1024 / 1000;
            let again = u64::from(codel_time(says as u32)) * 1000 / 1024;
            prop_assert_eq!(again, units);
        }
    }
}
