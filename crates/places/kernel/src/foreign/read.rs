//! From the kernel to objects.

use super::restore::in_order;
use super::settings::settings_of;
use super::{Layer, Object, TakenOver};
use crate::handle::Handle;
use crate::tc::kernel::Kernel;
use crate::tc::netlink::attribute::{find, u32_at};
use crate::tc::netlink::constants::*;
use crate::tc::netlink::{Socket, TrafficControl, header, traffic_control};
use crate::tc::owner;
use crate::tc::shaping::Ends;

/// Attributes of a qdisc beside its options.
const BESIDE: [(u16, &str); 3] =
    [(8, "a size table"), (13, "an ingress block that it shares"), (14, "an egress block that it shares")];

impl Kernel {
    /// Reads the foreign objects at these ends of a device.
    ///
    /// # Errors
    /// The kernel does not answer, or an object cannot be saved; the text names it.
    pub fn foreign(&mut self, index: u32, ends: Ends) -> Result<TakenOver, String> {
        read(&mut self.socket, index, ends)
    }
}

fn read(socket: &mut Socket, index: u32, ends: Ends) -> Result<TakenOver, String> {
    let mut dump = |kind, parent, layer, is_one: fn(&TrafficControl<'_>) -> bool| {
        let found = socket.dump(kind, &header(index, Handle::default(), parent, 0).0, |_, body| {
            let message = traffic_control(body).filter(|m| m.index == index && is_one(m))?;
            Some(object(&message, layer))
        });
        found.map_err(|e| e.to_string())?.into_iter().collect::<Result<Vec<_>, String>>()
    };
    let mut found = Vec::new();
    if ends.egress {
        let at_root = |m: &TrafficControl<'_>| m.parent != Handle::CLSACT;
        let qdiscs = dump(RTM_GETQDISC, Handle::default(), Layer::Qdisc, at_root)?;
        if qdiscs.iter().any(is_others_root) {
            found.extend(qdiscs);
            found.extend(dump(RTM_GETTCLASS, Handle::default(), Layer::Class, |_| true)?);
            let hooks: Vec<Handle> = found.iter().map(|o| o.handle).collect();
            for hook in hooks {
                // Some classes cannot have filters.
                found.extend(dump(RTM_GETTFILTER, hook, Layer::Filter, |_| true).unwrap_or_default());
            }
        }
    }
    if ends.ingress {
        let at_ingress = |m: &TrafficControl<'_>| m.parent == Handle::CLSACT;
        let qdiscs = dump(RTM_GETQDISC, Handle::default(), Layer::Qdisc, at_ingress)?;
        if !qdiscs.is_empty() {
            found.extend(qdiscs);
            found.extend(dump(RTM_GETTFILTER, Handle::INGRESS, Layer::Filter, |m| !is_ours(m))?);
        }
    }
    sort_out(index, ends, found)
}

/// The same, from the kernel's messages.
pub(super) fn sort_out(index: u32, ends: Ends, found: Vec<Object>) -> Result<TakenOver, String> {
    // The kernel made objects without a number by itself.
    let found = found.into_iter().filter(|o| o.layer != Layer::Qdisc || o.handle.major() != 0);
    let (ingress, egress): (Vec<_>, Vec<_>) = found.partition(is_at_ingress);
    let mut taken_over = TakenOver { index, ..TakenOver::default() };
    if ends.egress && egress.iter().any(is_others_root) {
        taken_over.egress = settled(egress)?;
    }
    if ends.ingress {
        let ingress = settled(ingress)?;
        // A qdisc without filters has no effect, and stays.
        if ingress.iter().any(|o| o.layer == Layer::Filter) {
            taken_over.ingress = ingress;
        }
    }
    Ok(taken_over)
}

fn is_others_root(object: &Object) -> bool {
    object.layer == Layer::Qdisc
        && object.parent == Handle::ROOT
        && object.handle.major() != 0
        && object.handle != owner::ROOT_QDISC
}

/// Whether it is an ingress or clsact qdisc, or a filter of one.
fn is_at_ingress(object: &Object) -> bool {
    match object.layer {
        Layer::Qdisc => object.parent == Handle::CLSACT,
        Layer::Class => false,
        Layer::Filter => object.parent.major() == Handle::INGRESS_QDISC.major(),
    }
}

/// Returns the settings, in an order in which they can be made.
fn settled(found: Vec<Object>) -> Result<Vec<Object>, String> {
    let restorable = found.into_iter().filter_map(|object| {
        let name = object.to_string();
        settings_of(object).map_err(|why| format!("{name}: {why}")).transpose()
    });
    Ok(in_order(restorable.collect::<Result<_, _>>()?))
}

pub(super) fn object(message: &TrafficControl<'_>, layer: Layer) -> Result<Object, String> {
    let object = Object {
        layer,
        handle: message.handle,
        parent: message.parent,
        // For a qdisc and a class, a count of references.
        info: if layer == Layer::Filter { message.info } else { 0 },
        kind: message.kind.clone(),
        options: find(message.attributes, TCA_OPTIONS).map(<[u8]>::to_vec),
        chain: find(message.attributes, TCA_CHAIN).and_then(|v| u32_at(v, 0)).filter(|c| *c != 0),
    };
    let beside = BESIDE.iter().find(|(kind, _)| find(message.attributes, *kind).is_some());
    match beside {
        Some((_, what)) => Err(format!("{object}: {what} cannot be restored later")),
        None => Ok(object),
    }
}

/// Whether a filter has our mark.
fn is_ours(message: &TrafficControl<'_>) -> bool {
    message.filter(Handle::INGRESS).is_some_and(|filter| filter.cookie().is_some())
}
