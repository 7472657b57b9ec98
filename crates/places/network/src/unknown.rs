//! Receivers of deadlines that no table has: other hosts may still announce them. Pure.
//!
//! ```text
//!  vNICs with a deadline: `to` ─┐
//!  vNICs here, remotes, peers ──┼▶ no such name ─▶ not promised, with the reason
//!  what the agent declined ─────┘
//! ```

use crate::action::Faults;
use std::collections::{BTreeMap, HashSet};
use tidegate_contract::{Remote, UPLINK, Uplink, Vnic};

/// Returns, by vNIC, why its deadline is not promised to a receiver that is not known here.
pub fn unknown(
    vnics: &[&Vnic],
    uplinks: &[Uplink],
    remotes: &[Remote],
    declined: &BTreeMap<String, String>,
) -> Faults {
    let known: HashSet<&str> = vnics
        .iter()
        .map(|vnic| vnic.name.as_str())
        .chain(remotes.iter().map(|remote| remote.name.as_str()))
        .collect();
    let mut faults = Faults::new();
    for vnic in vnics.iter().filter(|vnic| vnic.is_realtime() && vnic.uses_uplinks()) {
        let carried =
            || uplinks.iter().any(|uplink| uplink.peers.iter().any(|peer| peer.carries(vnic.segment)));
        for to in &vnic.to {
            let reason = if to == UPLINK {
                if carried() {
                    continue;
                }
                format!(
                    "no other host of segment {} has registered at the network's controller",
                    vnic.segment
                )
            } else if known.contains(to.as_str()) {
                continue;
            } else if let Some(why) = declined.get(&format!("[remote.{to}]")) {
                format!("{to} cannot be reached: {why}")
            } else {
                format!("{to} is no vNIC here, and no host has announced it to the network's controller")
            };
            faults.entry(vnic.name.clone()).or_default().push(reason);
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_contract::testing;

    #[test]
    fn receivers_that_are_known_have_no_fault() {
        let mut sender = testing::vnic("plc1");
        (sender.deadline, sender.to) =
            ("2ms".parse().ok(), vec!["plc9".into(), "sink".into(), "uplink".into()]);
        (sender.tx.max, sender.tx.burst) = ("10mbit".parse().ok(), "4kB".parse().ok());
        let sink = testing::vnic("sink");
        let said = |uplinks: &[Uplink], remotes: &[Remote], declined: &[(&str, &str)]| {
            let declined = declined.iter().map(|(what, why)| ((*what).into(), (*why).into())).collect();
            unknown(&[&sender, &sink], uplinks, remotes, &declined).remove("plc1").unwrap_or_default()
        };
        let bare = Uplink { peers: vec![], ..testing::uplink("net0") };
        let nothing = said(&[bare], &[], &[]);
        assert!(nothing[0].starts_with("plc9 is no vNIC here, and no host has announced it"), "{nothing:?}");
        assert!(nothing[1].starts_with("no other host of segment 1 has registered"), "{nothing:?}");
        let all = [testing::uplink("net0")];
        assert_eq!(said(&all, &[testing::remote("plc9")], &[]), Vec::<String>::new());
        assert_eq!(said(&all, &[], &[("[remote.plc9]", "too much")]), ["plc9 cannot be reached: too much"]);
    }
}
