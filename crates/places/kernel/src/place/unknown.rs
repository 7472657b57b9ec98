//! Values that the kernel does not count for a netdev, so that a reader does not take 0 for a figure. Pure.

use crate::tc::Shaping;
use tidegate_evidence::{Quantity, Unknown};

/// Classes and policers count the frames of a limit. `waits` and `deadlines` say why the measuring eBPF
/// programs do not run, if so.
pub fn unknown(shaping: &Shaping, waits: Option<&String>, deadlines: Option<&String>) -> Unknown {
    let is_policed = shaping.tx_police.is_some();
    let is_limited = is_policed || shaping.tx.is_some();
    let not_limited = || Some("not limited, and so not counted".to_owned());
    let delay = match waits {
        Some(why) => Some(why.clone()),
        None if is_policed => Some("policed frames do not wait".into()),
        None if !is_limited => Some("frames without a limit do not wait".into()),
        None => None,
    };
    let all = [
        (Quantity::Tx, not_limited().filter(|_| !is_limited)),
        (Quantity::Rx, not_limited().filter(|_| shaping.rx.is_none())),
        (Quantity::SuperFrames, Some("the kernel counts their segments".into())),
        (Quantity::Delay, delay),
        (Quantity::Throttled, waits.filter(|_| shaping.tx.is_some()).cloned()),
        (Quantity::Deadline, deadlines.filter(|_| shaping.realtime).cloned()),
    ];
    all.into_iter().filter_map(|(what, why)| Some((what, why?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ebpf::Bucket;
    use crate::tc::Limit;
    use tidegate_contract::Bytes;

    fn names(shaping: &Shaping, trouble: Option<&String>) -> Vec<Quantity> {
        unknown(shaping, trouble, trouble).into_keys().collect()
    }

    #[test]
    fn quantities_without_a_limit_are_not_counted() {
        let rate = "10mbit".parse().unwrap();
        let limit = Limit::new(rate, Bytes::new(65_536), None, 1518).ok();
        let free = Shaping { netdev: "vnet3".into(), ..Shaping::default() };
        let shaped = Shaping { tx: limit, rx: limit, realtime: true, ..free.clone() };
        let policed = Shaping { tx_police: Some(Bucket { rate: 1, burst: 1 }), rx: limit, ..free.clone() };
        use Quantity::{Deadline, Delay, Rx, SuperFrames, Throttled, Tx};
        assert_eq!(names(&free, None), [Tx, Rx, SuperFrames, Delay]);
        assert_eq!(names(&shaped, None), [SuperFrames]);
        assert_eq!(names(&policed, None), [SuperFrames, Delay]);
        let why = "no BTF".to_owned();
        assert_eq!(names(&shaped, Some(&why)), [SuperFrames, Delay, Throttled, Deadline]);
        assert_eq!(unknown(&shaped, Some(&why), None)[&Delay], why);
        assert_eq!(
            names(&policed, Some(&why)),
            [SuperFrames, Delay],
            "it waits for no tokens, by any measure"
        );
    }
}
