//! From saved objects to steps. Pure.

use super::options::options_for;
use super::{Layer, Object, TakenOver};
use crate::handle::Handle;
use crate::tc::network::Netdev;
use crate::tc::shaping::Ends;
use crate::tc::step::{Device, Step};

impl TakenOver {
    /// Returns the objects to restore at these ends of the link: those without a newer foreign one in their
    /// place, and those that are still there, as after an interrupted take-over.
    pub fn restore(&self, link: &Netdev, ends: Ends) -> Vec<Step> {
        let device = Device::Netdev { index: self.index, name: link.name.clone() };
        let make = |object: &Object| {
            let object = Object { options: options_for(object), ..object.clone() };
            Step::Restore { device: device.clone(), object }
        };
        let mut steps = Vec::new();
        if ends.egress && link.root().is_none() {
            steps.extend(self.egress.iter().map(make));
        }
        if ends.ingress {
            let exists = |object: &Object| match object.layer {
                Layer::Qdisc => link.ingress().is_some(),
                Layer::Class => false,
                Layer::Filter => link.filters_at(Handle::INGRESS).any(|f| {
                    f.place() == (object.chain.unwrap_or_default(), object.preference(), object.protocol())
                        && f.handle & 0xfff == object.handle.0 & 0xfff
                }),
            };
            steps.extend(self.ingress.iter().filter(|o| !exists(o)).map(make));
        }
        steps
    }
}

/// Orders objects after their parents; otherwise as found. Objects without a parent here come last.
pub fn in_order(mut remaining: Vec<Object>) -> Vec<Object> {
    let mut ordered: Vec<Object> = Vec::with_capacity(remaining.len());
    while !remaining.is_empty() {
        let ready = |object: &Object| {
            object.layer != Layer::Filter
                && match (object.layer, object.parent) {
                    (Layer::Qdisc, Handle::ROOT | Handle::CLSACT) => true,
                    // A class right below its qdisc is reported as hanging on the root.
                    (Layer::Class, Handle::ROOT) => {
                        ordered.iter().any(|m| m.handle == Handle::new(object.handle.major(), 0))
                    }
                    (_, parent) => ordered.iter().any(|m| m.handle == parent),
                }
        };
        // Filters name classes: they come after all of those; tables of u32 before their filters.
        let next = remaining.iter().position(ready).unwrap_or_else(|| {
            let key = |o: &Object| (o.layer, o.layer == Layer::Filter && o.handle.0 & 0xfff != 0);
            remaining.iter().enumerate().min_by_key(|(_, o)| key(o)).map_or(0, |(i, _)| i)
        });
        ordered.push(remaining.remove(next));
    }
    ordered
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tc::network::{Filter, Qdisc, Rule, Setting};
    use proptest::prelude::*;

    fn object(layer: Layer, handle: Handle, parent: Handle) -> Object {
        Object { layer, handle, parent, info: 0, kind: "x".into(), options: None, chain: None }
    }

    /// Like libvirt's, with a class below a class and a qdisc below that.
    fn tree() -> Vec<Object> {
        let h = Handle::new;
        vec![
            object(Layer::Qdisc, h(1, 0), Handle::ROOT),
            object(Layer::Class, h(1, 1), Handle::ROOT),
            object(Layer::Class, h(1, 2), h(1, 1)),
            object(Layer::Qdisc, h(2, 0), h(1, 2)),
            object(Layer::Filter, Handle(0x800), h(1, 0)),
        ]
    }

    proptest! {
        #[test]
        fn each_object_comes_after_its_parent(shuffled in Just(tree()).prop_shuffle()) {
            prop_assert_eq!(in_order(shuffled), tree());
        }

        #[test]
        fn no_object_is_lost_when_they_are_ordered(shuffled in Just(tree()).prop_shuffle(), n in 0_usize..5) {
            prop_assert_eq!(in_order(shuffled[..n].to_vec()).len(), n);
        }
    }

    #[test]
    fn an_existing_object_is_not_made_again() {
        let filter =
            |handle| Object { info: 0x0001_0300, ..object(Layer::Filter, Handle(handle), Handle::INGRESS) };
        let ingress = object(Layer::Qdisc, Handle::INGRESS_QDISC, Handle::CLSACT);
        let taken_over = TakenOver {
            index: 7,
            egress: tree(),
            ingress: vec![ingress, filter(0x800), filter(0x801)],
            ..TakenOver::default()
        };
        let mut link = Netdev { name: "tap1".into(), ..Netdev::default() };
        assert_eq!(taken_over.restore(&link, Ends::BOTH).len(), 8);
        assert_eq!(taken_over.restore(&link, Ends { egress: true, ingress: false }).len(), 5);
        link.qdiscs = vec![
            Qdisc { handle: Handle::new(9, 0), parent: Handle::ROOT, setting: Setting::Other("tbf".into()) },
            Qdisc { handle: Handle::INGRESS_QDISC, parent: Handle::CLSACT, setting: Setting::Clsact },
        ];
        link.filters = vec![Filter {
            parent: Handle::INGRESS,
            preference: 1,
            protocol: 3,
            kind: "u32".into(),
            handle: 0x8000_0800,
            chain: 0,
            rule: Rule::Other,
        }];
        let steps: Vec<_> = taken_over.restore(&link, Ends::BOTH).iter().map(ToString::to_string).collect();
        assert_eq!(steps, ["make the x filter of preference 1 at ingress of tap1 again, as it was"]);
    }
}
