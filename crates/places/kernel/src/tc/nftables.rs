//! Foreign nftables rules at the ingress of devices (linux/netfilter/nf_tables.h).
//!
//! The kernel applies them after the filters of traffic control. Frames that these send to an IFB leave the
//! path there, and return without passing the rules (`skb_skip_tc_classify`, `__netif_receive_skb_core`,
//! net/core/dev.c). So a VM's frames that go through our IFB skip such rules; policed frames do not.
//!
//! ```text
//!  frame ─▶ XDP ─▶ tc ingress: marks, policer ─▶ nftables: ingress ─▶ bridge, routing
//!                          └─ redirect ─▶ IFB ────────────────────────▲
//! ```

use crate::tc::ingress_chain::{Devices, IngressChain};
use crate::tc::netlink::attribute::{Attributes, find, read, string};
use crate::tc::network::{Netdev, Network};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use tidegate_netlink::netfilter::{Message, Netfilter};
use tidegate_netlink::{NetlinkError, attribute};

const NFNL_SUBSYS_NFTABLES: u8 = 10;
const NFT_MSG_GETTABLE: u8 = 1;
const NFT_MSG_GETCHAIN: u8 = 4;
const NFT_MSG_GETRULE: u8 = 7;
const NFT_MSG_GETGEN: u8 = 16;

const NFTA_GEN_ID: u16 = 1;
const NFTA_TABLE_NAME: u16 = 1;
const NFTA_TABLE_FLAGS: u16 = 2;
const NFT_TABLE_F_DORMANT: u32 = 1;
const NFTA_CHAIN_TABLE: u16 = 1;
const NFTA_CHAIN_NAME: u16 = 3;
const NFTA_CHAIN_HOOK: u16 = 4;
const NFTA_CHAIN_POLICY: u16 = 5;
const NFTA_HOOK_HOOKNUM: u16 = 1;
const NFTA_HOOK_DEV: u16 = 3;
const NFTA_HOOK_DEVS: u16 = 4;
const NFTA_DEVICE_NAME: u16 = 1;
const NFTA_DEVICE_PREFIX: u16 = 2;
const NFTA_RULE_TABLE: u16 = 1;
const NFTA_RULE_CHAIN: u16 = 2;
const NFTA_RULE_HANDLE: u16 = 3;

/// Families with a hook at the ingress of devices, with its number (linux/netfilter.h).
const NFPROTO_INET: u8 = 1;
const NF_INET_INGRESS: u32 = 5;
const NFPROTO_NETDEV: u8 = 5;
const NF_NETDEV_INGRESS: u32 = 0;

/// Policy of a chain: drop undecided frames.
const NF_DROP: u32 = 0;

/// Reply of a kernel without nftables.
const EINVAL: i32 = 22;

/// The chains of a namespace, read anew after changes.
#[derive(Debug, Default)]
pub struct IngressChains {
    socket: Option<Netfilter>,
    /// What was read: the number of the rule set, and a hash of the links. Older kernels remove a link's
    /// chain without a new number.
    read: Option<(u32, u64)>,
    chains: Vec<IngressChain>,
}

impl IngressChains {
    /// Returns the chains at ingresses as last read. Empty on a kernel without nftables.
    pub fn known(&self) -> &[IngressChain] {
        &self.chains
    }

    /// Reads the chains for the devices of this network.
    ///
    /// # Errors
    /// The kernel does not answer, or forbids the query: `CAP_NET_ADMIN`.
    pub fn read(&mut self, network: &Network) -> Result<(), NetlinkError> {
        // If not all links are known, another one may have gone.
        let links = network.scope.is_none().then(|| hash(&network.netdevs));
        let read = self.read_anew(links);
        if read.is_err() {
            // A broken conversation is begun anew.
            (self.socket, self.read) = (None, None);
        }
        read
    }

    fn read_anew(&mut self, links: Option<u64>) -> Result<(), NetlinkError> {
        if self.socket.is_none() {
            self.socket = Netfilter::open(NFNL_SUBSYS_NFTABLES)?;
        }
        let Some(socket) = &mut self.socket else { return Ok(()) };
        let generation = match socket.get(NFT_MSG_GETGEN, |m| be32(find(m.attributes, NFTA_GEN_ID)?)) {
            Ok(generation) => generation,
            Err(e) if e.errno() == Some(EINVAL) => {
                self.chains.clear();
                return Ok(());
            }
            Err(e) => return Err(e),
        };
        let now = generation.zip(links);
        if now.is_some() && now == self.read {
            return Ok(());
        }
        let none = Attributes::default();
        let dormant = socket.dump(NFT_MSG_GETTABLE, 0, &none, dormant)?;
        let mut chains = socket.dump(NFT_MSG_GETCHAIN, 0, &none, chain)?;
        chains.retain(|(family, chain)| !dormant.contains(&(*family, chain.table.clone())));
        for (family, chain) in &mut chains {
            let mut of = Attributes::default();
            of.put_str(NFTA_RULE_TABLE, &chain.table);
            of.put_str(NFTA_RULE_CHAIN, &chain.name);
            chain.rules = socket.dump(NFT_MSG_GETRULE, *family, &of, rule)?;
        }
        self.chains = chains.into_iter().map(|(_, chain)| chain).collect();
        self.read = now;
        Ok(())
    }
}

/// Returns a hash of the links' indices and names.
fn hash(links: &BTreeMap<u32, Netdev>) -> u64 {
    let mut hasher = DefaultHasher::new();
    links.iter().for_each(|(index, link)| (index, &link.name).hash(&mut hasher));
    hasher.finish()
}

/// Returns family and name of a dormant table, whose chains are at no hook.
fn dormant(message: Message<'_>) -> Option<(u8, String)> {
    let flags = find(message.attributes, NFTA_TABLE_FLAGS).and_then(be32)?;
    let name = find(message.attributes, NFTA_TABLE_NAME).map(string)?;
    (flags & NFT_TABLE_F_DORMANT != 0).then_some((message.family, name))
}

/// Returns a chain at an ingress, without its rules, and its family's number; `None` for others.
fn chain(message: Message<'_>) -> Option<(u8, IngressChain)> {
    let (family, ingress) = match message.family {
        NFPROTO_NETDEV => ("netdev", NF_NETDEV_INGRESS),
        NFPROTO_INET => ("inet", NF_INET_INGRESS),
        _ => return None,
    };
    let text = |kind| find(message.attributes, kind).map(string);
    let hook = find(message.attributes, NFTA_CHAIN_HOOK)?;
    if find(hook, NFTA_HOOK_HOOKNUM).and_then(be32) != Some(ingress) {
        return None;
    }
    let listed = find(hook, NFTA_HOOK_DEVS).unwrap_or_default();
    let mut devices: Vec<Devices> = read(listed).filter_map(|(kind, value)| device(kind, value)).collect();
    if devices.is_empty() {
        devices.extend(find(hook, NFTA_HOOK_DEV).and_then(|value| device(NFTA_DEVICE_NAME, value)));
    }
    let drops = find(message.attributes, NFTA_CHAIN_POLICY).and_then(be32) == Some(NF_DROP);
    let (table, name) = (text(NFTA_CHAIN_TABLE)?, text(NFTA_CHAIN_NAME)?);
    Some((message.family, IngressChain { family, table, name, devices, rules: vec![], drops }))
}

/// A name that ends with 0 is one device's; without, it is a prefix of several.
fn device(kind: u16, value: &[u8]) -> Option<Devices> {
    match kind {
        NFTA_DEVICE_NAME if value.last() == Some(&0) => Some(Devices::Named(string(value))),
        NFTA_DEVICE_NAME | NFTA_DEVICE_PREFIX => Some(Devices::Beginning(string(value))),
        _ => None,
    }
}

/// Returns the handle of a rule.
fn rule(message: Message<'_>) -> Option<u64> {
    let handle = find(message.attributes, NFTA_RULE_HANDLE)?;
    Some(u64::from_be_bytes(handle.try_into().ok()?))
}

fn be32(value: &[u8]) -> Option<u32> {
    attribute::u32_at(value, 0).map(u32::from_be)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn put_be32(attributes: &mut Attributes, kind: u16, value: u32) {
        attributes.put(kind, &value.to_be_bytes());
    }

    /// Returns a chain in the kernel's form.
    fn said(hook: u32, policy: Option<u32>, devices: impl FnOnce(&mut Attributes)) -> Attributes {
        let mut attributes = Attributes::default();
        attributes.put_str(NFTA_CHAIN_TABLE, "filter");
        attributes.put_str(NFTA_CHAIN_NAME, "vm-in");
        attributes.nest(NFTA_CHAIN_HOOK, |nested| {
            put_be32(nested, NFTA_HOOK_HOOKNUM, hook);
            devices(nested);
        });
        if let Some(policy) = policy {
            put_be32(&mut attributes, NFTA_CHAIN_POLICY, policy);
        }
        attributes
    }

    fn read_chain(family: u8, attributes: &Attributes) -> Option<IngressChain> {
        chain(Message { family, attributes: &attributes.0 }).map(|(_, chain)| chain)
    }

    #[test]
    fn chains_at_ingresses_are_read_and_others_are_not() {
        let one = |nested: &mut Attributes| nested.put_str(NFTA_HOOK_DEV, "vnet3");
        for (family, name, hook, other) in [(NFPROTO_NETDEV, "netdev", 0, 1), (NFPROTO_INET, "inet", 5, 0)] {
            let read = read_chain(family, &said(hook, Some(1), one)).expect("at an ingress");
            assert_eq!((read.family, read.drops, read.decides("vnet3")), (name, false, false));
            assert_eq!(read_chain(family, &said(other, Some(1), one)), None);
        }
        assert_eq!(read_chain(2, &said(0, Some(1), one)), None);
    }

    #[test]
    fn a_chain_decides_about_the_devices_that_it_names() {
        let several = |nested: &mut Attributes| {
            nested.nest(NFTA_HOOK_DEVS, |list| {
                list.put_str(NFTA_DEVICE_NAME, "eth0");
                list.put(NFTA_DEVICE_NAME, b"tap");
                list.put(NFTA_DEVICE_PREFIX, b"vnet");
            });
        };
        let mut chain = read_chain(NFPROTO_NETDEV, &said(0, Some(NF_DROP), several)).expect("at an ingress");
        let devices = ["eth0", "tap7", "vnet3", "eth01", "ta"].map(|name| chain.decides(name));
        assert_eq!(devices, [true, true, true, false, false]);
        assert!(
            chain.to_string().starts_with("the policy drop of chain vm-in in table netdev filter"),
            "{chain}"
        );
        chain.drops = false;
        assert!(!chain.decides("eth0"), "it lets everything be");
        chain.rules = vec![4, 7];
        assert!(chain.decides("eth0"));
        assert_eq!(
            chain.to_string(),
            "rules 4, 7 of chain vm-in in table netdev filter (nft -a list chain netdev filter vm-in)"
        );
    }

    proptest! {
        #[test]
        fn no_message_panics(family: u8, bytes: Vec<u8>) {
            let mut attributes = Attributes::default();
            attributes.put(NFTA_CHAIN_HOOK, &bytes);
            for attributes in [&bytes[..], &attributes.0] {
                let message = Message { family, attributes };
                let _ = (chain(message), rule(message), dormant(message));
            }
        }
    }
}
