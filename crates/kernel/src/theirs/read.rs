//! From the kernel to objects.

use super::again::in_order;
use super::lasting::lasting;
use super::{Layer, Object, Theirs};
use crate::handle::Handle;
use crate::netlink::attribute::{find, u32_at};
use crate::netlink::constants::*;
use crate::netlink::{Socket, TrafficControl, header, traffic_control};
use crate::owner;
use crate::shaping::Ends;

/// Of a qdisc, what it has beside its options and cannot be told from them.
const BESIDE: [(u16, &str); 3] =
    [(8, "a size table"), (13, "an ingress block that it shares"), (14, "an egress block that it shares")];

/// What others made at these ends of a device.
///
/// # Errors
/// The kernel does not answer, or there is something that cannot be remembered; the text names it.
pub fn read(socket: &mut Socket, index: u32, ends: Ends) -> Result<Theirs, String> {
    let mut dump = |kind, parent, layer| {
        let found = socket.dump(kind, &header(index, Handle::default(), parent, 0).0, |_, body| {
            traffic_control(body).filter(|m| m.index == index).map(|m| object(&m, layer))
        });
        found.map_err(|e| e.to_string())?.into_iter().collect::<Result<Vec<_>, String>>()
    };
    let all = dump(RTM_GETQDISC, Handle::default(), Layer::Qdisc)?;
    let (ingress, egress): (Vec<_>, Vec<_>) =
        all.into_iter().filter(|q| q.handle.major() != 0).partition(|q| q.parent == Handle::CLSACT);
    let mut theirs = Theirs { index, ..Theirs::default() };
    let others = egress.iter().any(|q| q.parent == Handle::ROOT && q.handle != owner::ROOT_QDISC);
    if ends.egress && others {
        let mut found = egress;
        found.extend(dump(RTM_GETTCLASS, Handle::default(), Layer::Class)?);
        let hooks: Vec<Handle> = found.iter().map(|o| o.handle).collect();
        for hook in hooks {
            // Not every class may have filters.
            found.extend(dump(RTM_GETTFILTER, hook, Layer::Filter).unwrap_or_default());
        }
        theirs.egress = settled(found)?;
    }
    if ends.ingress && !ingress.is_empty() {
        let mut filters = dump(RTM_GETTFILTER, Handle::INGRESS, Layer::Filter)?;
        filters.retain(|f| !is_ours(f));
        let found = settled([ingress, filters].concat())?;
        // A qdisc without filters does nothing, and stays.
        if found.iter().any(|o| o.layer == Layer::Filter) {
            theirs.ingress = found;
        }
    }
    Ok(theirs)
}

/// What lasts, in the order in which it can be made.
fn settled(found: Vec<Object>) -> Result<Vec<Object>, String> {
    let kept = found.into_iter().filter_map(|object| {
        let name = object.to_string();
        lasting(object).map_err(|why| format!("{name}: {why}")).transpose()
    });
    Ok(in_order(kept.collect::<Result<_, _>>()?))
}

fn object(message: &TrafficControl<'_>, layer: Layer) -> Result<Object, String> {
    let object = Object {
        layer,
        handle: message.handle,
        parent: message.parent,
        // Of a qdisc and a class, a count of references.
        info: if layer == Layer::Filter { message.info } else { 0 },
        kind: message.kind.clone(),
        options: find(message.attributes, TCA_OPTIONS).map(<[u8]>::to_vec),
        chain: find(message.attributes, TCA_CHAIN).and_then(|v| u32_at(v, 0)).filter(|c| *c != 0),
    };
    let beside = BESIDE.iter().find(|(kind, _)| find(message.attributes, *kind).is_some());
    match beside {
        Some((_, what)) => Err(format!("{object}: {what} cannot be remembered")),
        None => Ok(object),
    }
}

/// A filter that bears our mark.
fn is_ours(filter: &Object) -> bool {
    let action = filter.options.as_deref().and_then(|o| find(o, TCA_U32_ACT)).and_then(|list| find(list, 1));
    let cookie = action.and_then(|action| find(action, TCA_ACT_COOKIE));
    filter.kind == "u32" && cookie.is_some_and(|bytes| owner::Cookie::parse(bytes).is_some())
}
