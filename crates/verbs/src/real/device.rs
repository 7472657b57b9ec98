//! The library, a device, and what a device has that needs no queue: memory and address handles.

use super::functions::Functions;
use super::layout::{
    AddressAttributes, GID_ROCE_V2, GidEntry, GlobalRoute, LINK_ETHERNET, LINK_INFINIBAND, MTU_256, MTU_4096,
    PORT_ACTIVE, PortAttributes, RawGid,
};
use super::memory::Memory;
use super::objects::{Domain, Handle, PORT, find_device};
use crate::{Access, Error, Gid, Link, Port};
use std::any::Any;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

/// Routers on the way to a peer: as many as IP's usual default.
const HOP_LIMIT: u8 = 64;

/// The loaded library.
#[derive(Debug)]
pub(crate) struct Library {
    functions: Arc<Functions>,
}

impl Library {
    pub(crate) fn load() -> Result<Self, Error> {
        let library = Self { functions: Arc::new(Functions::load()?) };
        // The library loads drivers when it first sees a device. An error comes again where the names are asked for.
        let _ = library.devices();
        Ok(library)
    }

    pub(crate) fn devices(&self) -> Result<Vec<String>, Error> {
        let mut names = Vec::new();
        find_device(&self.functions, |_, name| {
            names.push(name.to_owned());
            None::<()>
        })?;
        Ok(names)
    }

    pub(crate) fn open(&self, name: &str) -> Result<Device, Error> {
        let mut there = Vec::new();
        let opened = find_device(&self.functions, |device, found| {
            there.push(found.to_owned());
            (found == name).then(|| Domain::open(&self.functions, device))
        })?;
        let domain = opened.ok_or_else(|| Error::NoDevice { name: name.to_owned(), there })??;
        Ok(Device { domain, name: name.to_owned() })
    }
}

/// An open device.
#[derive(Debug)]
pub(crate) struct Device {
    pub(super) domain: Arc<Domain>,
    name: String,
}

impl Device {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the most pieces of a request.
    pub(crate) fn pieces(&self) -> u32 {
        self.domain.elements()
    }

    pub(crate) fn port(&self) -> Result<Port, Error> {
        self.domain.drop_events();
        Ok(port_of(&self.domain.port()?))
    }

    pub(crate) fn gids(&self) -> Result<Vec<Gid>, Error> {
        // An address handle names a GID by 8 bits.
        let table = self.domain.port()?.gid_tbl_len.clamp(0, 256);
        let mut gids = Vec::new();
        for index in (0..=u8::MAX).take(table as usize) {
            gids.extend(self.domain.gid(index)?.and_then(|entry| gid_of(index, &entry)));
        }
        Ok(gids)
    }
}

fn port_of(attributes: &PortAttributes) -> Port {
    Port {
        is_active: attributes.state == PORT_ACTIVE,
        mtu: bytes_of(attributes.active_mtu),
        link: match attributes.link_layer {
            LINK_ETHERNET => Link::Ethernet,
            LINK_INFINIBAND => Link::InfiniBand,
            other => Link::Other(other),
        },
    }
}

/// Returns an MTU in bytes. Numbers that the header does not have count as the smallest or the largest.
fn bytes_of(mtu: u32) -> u32 {
    128 << mtu.clamp(MTU_256, MTU_4096)
}

/// Returns the GID at an index of the table, unless it is empty.
fn gid_of(index: u8, entry: &GidEntry) -> Option<Gid> {
    let address = Ipv6Addr::from(entry.gid.0);
    (!address.is_unspecified()).then(|| Gid {
        index,
        address: address.to_ipv4_mapped().map_or(IpAddr::V6(address), IpAddr::V4),
        is_roce_v2: entry.gid_type == GID_ROCE_V2,
    })
}

/// Registered memory.
#[derive(Debug)]
pub(crate) struct Region {
    pub(super) memory: Memory,
}

impl Region {
    pub(crate) fn new(device: &Device, bytes: usize) -> Result<Self, Error> {
        Ok(Self { memory: Memory::new(&device.domain, bytes)? })
    }

    /// # Safety
    /// As the public function. `start` is not null.
    pub(crate) unsafe fn over(
        device: &Device,
        start: *mut u8,
        len: usize,
        owner: Arc<dyn Any + Send + Sync>,
        access: Access,
    ) -> Result<Self, Error> {
        // SAFETY: the caller's promise.
        Ok(Self { memory: unsafe { Memory::over(&device.domain, (start, len), owner, access) }? })
    }

    pub(crate) fn len(&self) -> usize {
        self.memory.len()
    }

    pub(crate) fn start(&self) -> *mut u8 {
        self.memory.start()
    }

    pub(crate) fn local_key(&self) -> u32 {
        self.memory.key()
    }
}

/// An address handle.
#[derive(Debug)]
pub(crate) struct Address {
    pub(super) handle: Handle,
}

impl Address {
    pub(crate) fn new(device: &Device, from: u8, to: IpAddr, traffic_class: u8) -> Result<Self, Error> {
        let gid = match to {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        let grh = GlobalRoute {
            dgid: RawGid(gid.octets()),
            sgid_index: from,
            hop_limit: HOP_LIMIT,
            traffic_class,
            ..GlobalRoute::default()
        };
        let attributes =
            AddressAttributes { grh, is_global: 1, port_num: PORT, ..AddressAttributes::default() };
        Ok(Self { handle: Handle::new(&device.domain, attributes)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_is_not_there_is_named_with_those_that_are() {
        let is_there = std::path::Path::new("/usr/lib/x86_64-linux-gnu/libibverbs.so.1").exists();
        if !tidegate_testkit::skip::need("no libibverbs.so.1: run scripts/setup test", is_there) {
            return;
        }
        let library = Library::load().unwrap();
        let there = library.devices().unwrap();
        let error = library.open("nonesuch0").unwrap_err();
        assert!(matches!(&error, Error::NoDevice { there: named, .. } if *named == there), "{error}");
    }

    #[test]
    fn mtus_are_powers_of_two() {
        let mtus = [1, 2, 3, 4, 5].map(bytes_of);
        assert_eq!(mtus, [256, 512, 1024, 2048, 4096]);
        assert_eq!([0, 6, u32::MAX].map(bytes_of), [256, 4096, 4096], "the header has no such MTU");
    }

    #[test]
    fn ports_say_whether_and_how_they_carry_datagrams() {
        let port =
            |state, link_layer| port_of(&PortAttributes { state, link_layer, ..PortAttributes::default() });
        assert!(port(4, 2).is_active && [0, 1, 2, 3, 5].iter().all(|state| !port(*state, 2).is_active));
        let links = [0, 1, 2].map(|layer| port(4, layer).link);
        assert_eq!(links, [Link::Other(0), Link::InfiniBand, Link::Ethernet]);
    }

    #[test]
    fn gids_are_addresses() {
        let of = |address: &str, gid_type| {
            let gid = RawGid(address.parse::<Ipv6Addr>().unwrap().octets());
            gid_of(3, &GidEntry { gid, gid_type, ..GidEntry::default() })
        };
        let v4 = of("::ffff:10.0.0.1", 2).unwrap();
        assert_eq!((v4.index, v4.address.to_string().as_str(), v4.is_roce_v2), (3, "10.0.0.1", true));
        let v6 = of("fe80::1", 1).unwrap();
        assert_eq!((v6.address.to_string().as_str(), v6.is_roce_v2), ("fe80::1", false));
        assert_eq!(of("::", 2), None);
    }
}
