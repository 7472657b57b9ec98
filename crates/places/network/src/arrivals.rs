//! What this host says about senders of other hosts that have a deadline here.
//!
//! ```text
//!  View: remotes with a deadline to vNICs here ─┬▶ a [remote] covers it ──▶ admitted
//!  remotes in force ────────────────────────────┤  it does not ───────────▶ refused, with what is missing
//!  what the agent declined ─────────────────────┴▶ it was offered, and does not fit ▶ refused, with its reason
//! ```
//!
//! The contracts in force passed admission, remotes included. A sender without a [remote] is left out: it is not decided.
//! So is a sender behind a plain NIC: nothing is promised of its frames here.

use std::collections::BTreeMap;
use tidegate_contract::Remote;
use tidegate_controller_api::{Arrival, View};

/// What is known of the remotes that the controller tells.
#[derive(Clone, Copy, Debug)]
pub struct Told<'a> {
    /// Tables that are not in force as they are told, with the reasons.
    pub declined: &'a BTreeMap<String, String>,
    /// The agent is still to say so of the newest ones: what is in force without a promise is not decided.
    pub is_open: bool,
}

/// Returns the arrivals that `remotes`, which admission admitted, decide.
pub fn arrivals(
    view: &View,
    remotes: &[Remote],
    told: &Told<'_>,
    is_here: impl Fn(&str) -> bool,
) -> Vec<Arrival> {
    let remotes: BTreeMap<&str, &Remote> =
        remotes.iter().map(|remote| (remote.name.as_str(), remote)).collect();
    let with_deadline = view.remotes.iter().filter(|there| {
        !there.plain && there.vnic.deadline.is_some() && there.vnic.to.iter().any(|to| is_here(to))
    });
    let of = |there: &tidegate_controller_api::Remote| {
        let name = &there.vnic.name;
        let refused = match (told.declined.get(&format!("[remote.{name}]")), remotes.get(name.as_str())) {
            (Some(why), _) => Some(why.clone()),
            (None, Some(remote)) => {
                let missing = not_covered(&there.vnic, remote, &is_here);
                if missing.is_some() && told.is_open {
                    return None;
                }
                missing.map(|what| format!("[remote.{name}] there {what}"))
            }
            (None, None) => return None,
        };
        Some(Arrival { remote: name.clone(), refused })
    };
    with_deadline.filter_map(of).collect()
}

/// Says which part of an announcement is beyond a remote's table; `None` if it is within.
fn not_covered(
    there: &tidegate_controller_api::Announced,
    remote: &Remote,
    is_here: impl Fn(&str) -> bool,
) -> Option<String> {
    let (Some(deadline), Some(rate), Some(burst)) = (remote.deadline, remote.tx.max, remote.tx.burst) else {
        return Some("has no deadline; write deadline, tx and `to`, or remove the table".into());
    };
    if let Some(receiver) = there.to.iter().find(|to| is_here(to) && !remote.to.contains(to)) {
        return Some(format!("does not name {receiver} in `to`"));
    }
    if there.mac != remote.mac.to_string().to_lowercase() || there.segment != remote.segment.id() {
        return Some(format!("has another MAC or segment than {} in segment {}", there.mac, there.segment));
    }
    if there.rate.is_none_or(|announced| announced > rate.bits()) {
        return Some(format!("has tx.max = {rate}, less than its host announces"));
    }
    if there.burst.is_none_or(|announced| announced > burst.get()) {
        return Some(format!("has tx.burst = {burst}, less than its host announces"));
    }
    // Frames bunch by up to Td - A on their way: less than is counted with the greater one.
    if there.deadline.is_none_or(|announced| announced > deadline.get()) {
        return Some(format!("has deadline = {deadline}, less than its host announces"));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_contract::{Envelope, testing};
    use tidegate_controller_api::Announced;

    #[test]
    fn a_remote_of_the_configuration_decides() {
        let remote = Remote {
            tx: Envelope { max: "10mbit".parse().ok(), burst: "4kB".parse().ok() },
            deadline: "2ms".parse().ok(),
            to: vec!["sink".into()],
            ..testing::remote("plc9")
        };
        let nothing = BTreeMap::new();
        let of = |change: fn(&mut Announced), remotes: &[Remote], told: Told<'_>| {
            let mut vnic = Announced {
                name: "plc9".into(),
                mac: remote.mac.to_string(),
                segment: 1,
                addresses: vec![],
                rate: Some(10_000_000),
                burst: Some(4000),
                deadline: Some(2_000_000),
                to: vec!["sink".into(), "elsewhere".into()],
            };
            change(&mut vnic);
            let there = tidegate_controller_api::Remote { vnic, host: "h2".into(), plain: false };
            let view = View {
                version: 1,
                term: 1,
                lease: 1,
                peers: vec![],
                remotes: vec![there],
                paths: vec![],
                refused: vec![],
            };
            arrivals(&view, remotes, &told, |name| name == "sink")
                .into_iter()
                .map(|arrival| arrival.refused)
                .collect::<Vec<_>>()
        };
        let decided = Told { declined: &nothing, is_open: false };
        let said = |change: fn(&mut Announced), remotes: &[Remote]| of(change, remotes, decided);
        let all = std::slice::from_ref(&remote);
        assert_eq!(said(|_| {}, all), [None]);
        assert_eq!(said(|_| {}, &[]), [], "not decided");
        assert_eq!(said(|v| v.deadline = None, all), [], "it needs no decision");
        assert_eq!(said(|v| v.to = vec!["elsewhere".into()], all), []);
        assert_eq!(said(|v| v.rate = Some(9_000_000), all), [None]);
        for (change, wanted) in [
            (
                (|v: &mut Announced| v.rate = Some(10_000_001)) as fn(&mut Announced),
                "has tx.max = 10mbit, less than",
            ),
            (|v| v.burst = None, "has tx.burst = 4kB, less than"),
            (|v| v.deadline = Some(2_000_001), "has deadline = 2ms, less than"),
            (|v| v.segment = 2, "has another MAC or segment"),
        ] {
            let said = said(change, all);
            assert!(said[0].as_ref().is_some_and(|why| why.contains(wanted)), "{wanted}: {said:?}");
        }
        let bare = Remote { deadline: None, ..remote.clone() };
        let open = Told { is_open: true, ..decided };
        assert_eq!(of(|_| {}, std::slice::from_ref(&bare), open), [], "the agent is still to decide");
        assert_eq!(of(|_| {}, all, open), [None]);
        let declined = [("[remote.plc9]".to_owned(), "no room".to_owned())].into();
        let refused = Told { declined: &declined, is_open: false };
        assert_eq!(of(|_| {}, std::slice::from_ref(&bare), refused), [Some("no room".to_owned())]);
        assert!(said(|_| {}, &[bare])[0].as_ref().is_some_and(|why| why.contains("has no deadline")));
    }
}
