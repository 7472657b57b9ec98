//! Frames of a netdev's egress: one class for all, and its parts if senders have shares.
//!
//! ```text
//!  no one has a share:   HTB 7464: ── 7464:1 ── queue (`queueing`)
//!
//!  some have:            HTB 7464: ── 7464:1 ─┬─ 7464:2 ─ queue      what came in by one netdev
//!                                             ├─ 7464:3 ─ queue      what came in by another
//!                                             └─ 7464:ffff ─ queue   everything else
//! ```
//!
//! Switching between the two remakes everything: HTB cannot change its default class, and waiting frames
//! are lost.

use super::congestion;
use super::leaf::{Leaf, has_root, root, set_class, set_leaf};
use super::leaves::Leaves;
use crate::handle::Handle;
use crate::limit::Limit;
use crate::tc::class::HtbClass;
use crate::tc::network::{Class, Netdev, Network, Setting};
use crate::tc::owner::{self, Cookie};
use crate::tc::queueing::Waiting;
use crate::tc::shaping::Share;
use crate::tc::step::{Device, Step};
use std::collections::BTreeMap;

/// Sets root qdisc, classes and queues of a netdev. An absent sender gets its class when it appears.
pub fn set(
    steps: &mut Vec<Step>,
    at: &Device,
    link: &Netdev,
    limit: Limit,
    waiting: &Waiting,
    shares: &[Share],
    network: &Network,
) -> Result<(), String> {
    let all = HtbClass::from(limit);
    if shares.is_empty() {
        let there = set_root(steps, at, link, owner::ROOT_CLASS);
        let leaf = Leaf { class: all, parent: Handle::ROOT, waiting: waiting.clone() };
        set_known(steps, at, there, owner::ROOT_CLASS, &leaf);
        let cookie = Cookie { made_clsact: false };
        congestion::set(steps, at, there, owner::ROOT_QDISC, waiting.congestion, cookie);
        return Ok(());
    }
    let there = set_root(steps, at, link, owner::REST_CLASS);
    let senders: BTreeMap<u32, &Share> =
        shares.iter().filter_map(|share| Some((network.by_name(&share.from)?.0, share))).collect();
    let mut leaves = Leaves::of_egress(at.clone(), there, |index| senders.contains_key(&index));
    leaves.drop_others(steps);
    set_class(steps, at, class(there, owner::ROOT_CLASS), owner::ROOT_CLASS, Handle::ROOT, all);
    let part = |class, waiting: &Waiting| Leaf { class, parent: owner::ROOT_CLASS, waiting: waiting.clone() };
    set_known(steps, at, there, owner::REST_CLASS, &part(HtbClass::rest(limit), waiting));
    let in_order = Waiting::fifo(limit);
    leaves.set_classifier(steps);
    for (index, share) in senders {
        let from = Device::of(index, &network.netdevs[&index]);
        // Frames with a deadline go first, in order.
        let waiting = if share.priority < Share::LAST { &in_order } else { waiting };
        leaves.set(steps, index, &from, &part(HtbClass::share(share, limit), waiting))?;
    }
    Ok(())
}

/// Sets a class that occurs once on a device, with its queue; they may exist on `there`.
fn set_known(steps: &mut Vec<Step>, at: &Device, there: Option<&Netdev>, id: Handle, leaf: &Leaf) {
    set_leaf(steps, at, class(there, id), |parent| there.and_then(|link| link.leaf(parent)), id, leaf);
}

fn class(there: Option<&Netdev>, id: Handle) -> Option<&Class> {
    there.and_then(|link| link.class(id))
}

/// Sets the root qdisc, with a class for unclassified frames; returns the link if the qdisc existed.
fn set_root<'a>(steps: &mut Vec<Step>, at: &Device, link: &'a Netdev, default: Handle) -> Option<&'a Netdev> {
    let setting = Setting::Htb { default: default.minor().into() };
    // A class cannot become part of another one; and one with foreign parts is no default class.
    let parent = |id| if id == owner::ROOT_CLASS { Handle::ROOT } else { owner::ROOT_CLASS };
    let alone = default == owner::ROOT_CLASS;
    let right = |c: &Class| c.parent == parent(c.id) && (c.id == owner::ROOT_CLASS || !alone);
    if has_root(link, &setting) && link.classes.iter().all(right) {
        return Some(link);
    }
    if link.root_is_ours() {
        let (parent, handle) = (Handle::ROOT, owner::ROOT_QDISC);
        steps.push(Step::DeleteQdisc { device: at.clone(), parent, handle });
    }
    let replace = link.root().is_some() && !link.root_is_ours();
    steps.push(root(at.clone(), setting, replace));
    None
}
