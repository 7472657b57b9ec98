//! From a contract to what the kernel is asked for, and every reason why it cannot be. Pure.

use tidegate_contract::{Allowed, Attach, Bytes, Method, Rate, Vnic};
use tidegate_kernel::{Bucket, Limit, Shaping, Ways};

/// The directions that a contract limits.
pub fn limited(vnic: &Vnic) -> Ways {
    Ways { tx: vnic.tx.max.is_some(), rx: vnic.rx.max.is_some() }
}

/// What the kernel is asked for, or all that it cannot keep of this contract. `held`: where others have nothing to say.
pub fn shaping(vnic: &Vnic, held: Ways) -> Result<Shaping, Vec<String>> {
    let Attach::Netdev { name } = &vnic.attach else {
        return Err(vec!["it is not a netdev".into()]);
    };
    let mut refused = unkept(vnic);
    let frame = vnic.largest_frame();
    let mut limit = |way: &str, rate: Option<Rate>, burst: fn(&Vnic, Rate) -> Bytes, queue| {
        let rate = rate?;
        let limit = Limit::new(rate, burst(vnic, rate), queue, frame);
        limit.map_err(|e| refused.push(format!("{way}: {e}"))).ok()
    };
    let (waits, drops) = match vnic.tx.method {
        Method::Shape => (vnic.tx.max, None),
        Method::Police => (None, vnic.tx.max),
    };
    let tx = limit("tx", waits, |v, r| v.tx.burst_or_default(r), None);
    let rx = limit("rx", vnic.rx.max, |v, r| v.rx.burst_or_default(r), vnic.rx.queue);
    let bucket = |rate| Bucket::new(rate, vnic.tx.burst_or_default(rate));
    let tx_police = drops.and_then(|r| bucket(r).map_err(|e| refused.push(format!("tx: {e}"))).ok());
    if refused.is_empty() {
        Ok(Shaping { netdev: name.clone(), tx, tx_police, rx, held })
    } else {
        Err(refused)
    }
}

/// What a contract may ask for and this place does not keep. Deadlines and minima are refused by its capabilities.
fn unkept(vnic: &Vnic) -> Vec<String> {
    let mut refused = Vec::new();
    let mut refuse = |asked: bool, why: &str| {
        if asked {
            refused.push(why.to_owned());
        }
    };
    refuse(
        u32::from(vnic.segment) != 0,
        "place kernel keeps no segment: who reaches whom is for the bridge that the netdev is on; write segment = 0, \
         which promises nothing here, or attach it to the switch",
    );
    refuse(vnic.weight != 1, "place kernel shares nothing out, so a weight has no meaning; leave it out");
    refuse(
        vnic.allowed != Allowed::default(),
        "place kernel checks no source addresses, so `allowed` would not be kept; leave it out, or attach it to the switch",
    );
    refuse(vnic.queues != 1, "a netdev has the queues it was made with; leave queues out");
    refused
}

/// What a person should know of a contract in force.
pub fn notes(shaping: &Shaping) -> impl Iterator<Item = String> {
    let note = |way: &str, limit: Option<Limit>| match limit {
        Some(limit) => limit.note().map(|note| format!("{way}: {note}")),
        None => Some(format!("{way}: not limited, and so not counted")),
    };
    let tx = if shaping.tx_police.is_some() { None } else { note("tx", shaping.tx) };
    [tx, note("rx", shaping.rx)].into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::netdev;

    #[test]
    fn limits_become_shaping() {
        let mut vnic = netdev("web", 1, "vnet3");
        vnic.tx.max = None;
        vnic.rx.max = Rate::from_bits(8_000_000);
        vnic.rx.queue = Some(Bytes::new(20_000));
        let shaping = shaping(&vnic, Ways::BOTH).expect("kept");
        assert_eq!((shaping.netdev.as_str(), shaping.tx, shaping.held), ("vnet3", None, Ways::BOTH));
        let rx = shaping.rx.expect("a limit");
        assert_eq!((rx.rate, rx.queue), (1_000_000, 20_000));
        assert_eq!(notes(&shaping).collect::<Vec<_>>(), ["tx: not limited, and so not counted"]);
    }

    #[test]
    fn everything_that_is_not_kept_is_said_at_once() {
        let mut vnic = netdev("web", 1, "vnet3");
        vnic.segment = tidegate_contract::Segment::new(7).expect("in range");
        vnic.weight = 3;
        vnic.queues = 4;
        vnic.allowed.vlans = vec![5];
        vnic.tx.max = Rate::from_bits(1);
        let refused = shaping(&vnic, Ways::NONE).expect_err("refused");
        assert_eq!(refused.len(), 5, "{refused:#?}");
        assert!(refused[4].starts_with("tx: at 1bit"), "{refused:#?}");
    }

    #[test]
    fn a_burst_too_short_for_timers_is_noted() {
        let mut vnic = netdev("web", 1, "vnet3");
        vnic.tx.max = Rate::from_bits(1_000_000_000);
        vnic.tx.burst = Some(Bytes::new(1_600));
        let noted: Vec<_> = notes(&shaping(&vnic, Ways::BOTH).expect("kept")).collect();
        assert!(noted[0].starts_with("tx: its burst lasts 12 us"), "{noted:?}");
    }
}
