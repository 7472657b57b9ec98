//! From contracts, counters and the newest View to actions. Pure.
//!
//! ```text
//!  contracts ─▶ network_paths ─┬▶ faults: refused, or noted ─────────────────────────────┐
//!  View ─┬▶ arrivals ──────────┼▶ Registration, if it is another one ────────────────────┼▶ Configure, Announce, Ask, Release
//!        └▶ offer ─────────────┼▶ tables of other hosts, if they are other ones ─────────┼▶ Offer
//!  what is wanted already ─────┴▶ terms that differ ─────────────────────────────────────┘  Note, Count
//!  evidence: pairs ─▶ late frames, if there are new ones ───────────────────────────────────┘
//! ```

use crate::action::{Faults, NetworkAction};
use crate::arrivals::{Told, arrivals};
use crate::book::{Policy, WantedPath};
use crate::misses::{Look, seen};
use crate::offer::offer;
use crate::offering::Offered;
use crate::registration::registration;
use crate::unknown::unknown;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tidegate_contract::network_paths::{NetworkPaths, PathTerms, network_paths};
use tidegate_contract::{ContractSet, Controller, OnRefused, Vnic};
use tidegate_controller_api::{Registration, View};
use tidegate_evidence::PairStatus;
use tidegate_place::{Refusal, Wanted};

/// The facts of one look.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Of this process.
    pub run: String,
    /// The controller that is asked.
    pub controller: Option<Controller>,
    /// What is announced.
    pub announced: Option<Registration>,
    /// The newest View.
    pub view: Option<Arc<View>>,
    /// Whether other hosts had the time to register for it.
    pub is_settled: bool,
    /// What the agent was told of other hosts, and what became of it.
    pub offered: Offered,
    /// Paths that are wanted, by name.
    pub wanted: BTreeMap<String, WantedPath>,
    /// Pairs without a path.
    pub faults: Faults,
    /// Late frames at the last look.
    pub seen: Look,
}

/// See [`tidegate_place::Place::plan`].
pub fn plan(wanted: &Wanted<'_>, facts: &Facts) -> Result<Vec<NetworkAction>, Vec<Refusal>> {
    let controller = wanted.network.controller.as_ref();
    let is_unused = facts.controller.is_none() && facts.wanted.is_empty() && facts.faults.is_empty();
    if controller.is_none() && is_unused {
        return Ok(vec![]);
    }
    let mut actions = Vec::new();
    if facts.controller.as_ref() != controller {
        let boxed = |controller: &Controller| Box::new(controller.clone());
        let (from, to) = (facts.controller.as_ref().map(boxed), controller.map(boxed));
        actions.push(NetworkAction::Configure { from, to });
    }
    let vnics: Vec<Vnic> = wanted.work.written.iter().map(|vnic| (*vnic).clone()).collect();
    let (uplinks, remotes) = (&wanted.network.uplinks, &wanted.network.remotes);
    let set = ContractSet { host: wanted.host, vnics: &vnics, uplinks, remotes };
    let found = controller.map_or_else(NetworkPaths::default, |controller| {
        network_paths(&set, controller, |terms| age(wanted, facts, terms))
    });
    let by_name: BTreeMap<&str, &Vnic> = vnics.iter().map(|vnic| (vnic.name.as_str(), vnic)).collect();
    let policy = |name: &str| {
        let vnic = by_name.get(name);
        Policy {
            on_refused: vnic.and_then(|vnic| vnic.on_refused).unwrap_or_default(),
            on_unreachable: vnic.and_then(|vnic| vnic.on_unreachable).unwrap_or_default(),
        }
    };
    let mut faults = faults(&found, &wanted.work.refused, policy)?;
    if let Some(controller) = controller {
        let Offered { newest, taken, .. } = &facts.offered;
        let mut declined = taken.declined.clone();
        let mut is_open = !facts.offered.is_taken;
        if let Some(view) = &facts.view {
            let to = offer(view, facts.is_settled, controller, uplinks, &wanted.work.written);
            declined.extend(to.left_out.clone());
            if newest.as_ref() != Some(&to) || !actions.is_empty() {
                // What is in force follows from what was told before.
                is_open = true;
                actions.push(NetworkAction::Offer { from: newest.clone().map(Box::new), to: Box::new(to) });
            }
        }
        for (vnic, reasons) in unknown(&wanted.work.written, uplinks, remotes, &declined) {
            faults.entry(vnic).or_default().extend(reasons);
        }
        // Another link has announced nothing.
        let is_new = matches!(actions.first(), Some(NetworkAction::Configure { .. }));
        let here: BTreeSet<&str> = by_name.keys().copied().collect();
        let told = Told { declined: &declined, is_open };
        let arrivals =
            facts.view.as_ref().map(|view| arrivals(view, remotes, &told, |name| here.contains(name)));
        let of_contracts = &wanted.work.written;
        let to = registration(
            &facts.run,
            controller,
            uplinks,
            of_contracts,
            &found.terms,
            arrivals.unwrap_or_default(),
            facts.view.as_ref().map_or(0, |view| view.version),
        );
        if facts.announced.as_ref() != Some(&to) || is_new {
            let from = facts.announced.clone().map(Box::new);
            actions.push(NetworkAction::Announce { from, to: Box::new(to) });
        }
    }
    let paths: BTreeMap<String, WantedPath> = found
        .terms
        .into_iter()
        .map(|terms| (terms.name(), WantedPath { policy: policy(&terms.vnic), terms }))
        .collect();
    let gone = facts.wanted.iter().filter(|(name, _)| !paths.contains_key(*name));
    actions.extend(gone.map(|(_, from)| NetworkAction::Release { from: Box::new(from.clone()) }));
    for (name, to) in paths {
        let from = facts.wanted.get(&name);
        if from != Some(&to) {
            let from = from.cloned().map(Box::new);
            actions.push(NetworkAction::Ask { from, to: Box::new(to), back: false });
        }
    }
    if faults != facts.faults {
        actions.push(NetworkAction::Note(faults));
    }
    actions.extend(late(wanted, facts).map(NetworkAction::Count));
    Ok(actions)
}

/// Returns the age of a pair, the oldest first: those that have a port at the switch, then those that are wanted already.
fn age(wanted: &Wanted<'_>, facts: &Facts, terms: &PathTerms) -> u8 {
    let pairs =
        wanted.work.evidence.iter().filter_map(|evidence| evidence.pairs.get(&terms.uplink)).flatten();
    let is_it = |pair: &PairStatus| (&pair.vnic, &pair.remote) == (&terms.vnic, &terms.remote);
    match pairs.into_iter().any(|pair| pair.port.is_some() && is_it(pair)) {
        true => 0,
        false if facts.wanted.contains_key(&terms.name()) => 1,
        false => 2,
    }
}

/// Returns the faults of contracts that may be in force nevertheless, or that were `refused` already; the others are
/// refused.
fn faults(
    found: &NetworkPaths,
    refused: &BTreeSet<&str>,
    policy: impl Fn(&str) -> Policy,
) -> Result<Faults, Vec<Refusal>> {
    let (mut noted, mut refusals) = (Faults::new(), Vec::new());
    for fault in &found.faults {
        let to = fault.remote.as_ref().map_or_else(String::new, |remote| format!(" to {remote}"));
        let reason = format!("no path{to} through the network can be asked for: {}", fault.reason);
        match policy(&fault.vnic).on_refused {
            OnRefused::Fail if !refused.contains(fault.vnic.as_str()) => {
                let or = "; or write on-refused = \"best-effort\"";
                refusals.push(Refusal::new(&fault.vnic, reason + or));
            }
            _ => noted.entry(fault.vnic.clone()).or_default().push(reason),
        }
    }
    if refusals.is_empty() { Ok(noted) } else { Err(refusals) }
}

/// Returns the counters of late frames if there are other ones than at the last look.
fn late(wanted: &Wanted<'_>, facts: &Facts) -> Option<Look> {
    let controller = wanted.network.controller.as_ref()?;
    let started = wanted.work.switch_started.unwrap_or(0);
    let uplinks = wanted.work.evidence.iter().flat_map(|evidence| &evidence.pairs);
    let served = uplinks.filter(|(uplink, _)| controller.serves(uplink));
    let now: Look = served.map(|(uplink, pairs)| (uplink.clone(), seen(started, pairs.iter()))).collect();
    let is_known = |(uplink, seen): (&String, &_)| facts.seen.get(uplink) == Some(seen);
    (!now.iter().all(is_known)).then_some(now)
}
