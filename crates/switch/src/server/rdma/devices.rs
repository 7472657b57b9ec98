//! The RDMA devices that the switch was told to use (`--rdma`).
//!
//! ```text
//!  names ─ load ─▶ library ─ (rights dropped, landlock) ─ open ─▶ Devices ─▶ facts: RdmaDevice
//! ```
//!
//! The kernel takes requests to a device only from the credentials that opened it, and dropping rights changes
//! credentials. So the library is loaded first, which reads files, and devices are opened last. No error here
//! stops the switch: a device of no use is a fact, for which the agent refuses contracts.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::net::IpAddr;
use std::sync::Arc;
use tidegate_evidence::{RDMA_ADDRESSES, RdmaDevice};
use tidegate_verbs::{Device, Library, Link};

/// The library, loaded while files can be read.
pub struct Loaded {
    names: Vec<String>,
    library: Result<Arc<Library>, String>,
}

impl Loaded {
    /// Loads the library if devices are named, and raises the limit on locked memory (RLIMIT_MEMLOCK), if this process may: the
    /// devices' buffers count as such.
    pub fn new(names: &[String]) -> Self {
        if names.is_empty() {
            return Self { names: vec![], library: Err("no device is named".into()) };
        }
        raise_locked_memory();
        Self { names: names.to_vec(), library: Library::load().map_err(|error| error.to_string()) }
    }

    /// Opens the devices, as the user and with the rights that the process keeps.
    pub fn open(self) -> Devices {
        let open = |name: String| {
            let device = self
                .library
                .as_ref()
                .map_err(String::clone)
                .and_then(|library| library.open(&name).map_err(|error| error.to_string()));
            if let Err(why) = &device {
                tracing::warn!(device = name, "RDMA device of no use: {why}");
            }
            (name, device)
        };
        let lockable = getrlimit(Resource::Memlock).current;
        Devices { all: self.names.into_iter().map(open).collect(), lockable }
    }
}

/// Raises the limit for good if this process may, and the soft limit to the hard one if not.
fn raise_locked_memory() {
    if setrlimit(Resource::Memlock, Rlimit { current: None, maximum: None }).is_err() {
        let maximum = getrlimit(Resource::Memlock).maximum;
        if let Err(error) = setrlimit(Resource::Memlock, Rlimit { current: maximum, maximum }) {
            tracing::warn!(%error, "the limit on locked memory (RLIMIT_MEMLOCK) cannot be raised to its maximum");
        }
    }
}

/// The devices, in the order of their options; those of no use with the reason.
#[derive(Default)]
pub struct Devices {
    all: Vec<(String, Result<Arc<Device>, String>)>,
    /// Bytes of memory that they may lock; `None` without a limit.
    pub(super) lockable: Option<u64>,
}

impl Devices {
    /// Returns devices that are open already.
    pub fn of(devices: Vec<Arc<Device>>) -> Self {
        let named = |device: Arc<Device>| (device.name().to_owned(), Ok(device));
        Self { all: devices.into_iter().map(named).collect(), lockable: None }
    }

    /// Whether one is open.
    pub fn is_any_open(&self) -> bool {
        self.all.iter().any(|(_, device)| device.is_ok())
    }

    /// Returns an open device.
    ///
    /// # Errors
    /// The switch was not told to use it, or it cannot be opened.
    pub fn find(&self, name: &str) -> Result<&Arc<Device>, String> {
        match self.all.iter().find(|(own, _)| own == name) {
            Some((_, Ok(device))) => Ok(device),
            Some((_, Err(why))) => Err(format!("RDMA device {name}: {why}")),
            None => Err(format!(
                "the switch was not told to use the RDMA device {name}: start it with --rdma {name} (its unit: \
                 OPTIONS=), by a restart or a live upgrade"
            )),
        }
    }

    /// Returns their state now.
    pub fn facts(&self) -> Vec<RdmaDevice> {
        self.all.iter().map(|(name, device)| fact(name, device)).collect()
    }
}

fn fact(name: &str, device: &Result<Arc<Device>, String>) -> RdmaDevice {
    let state = || -> Result<RdmaDevice, String> {
        let device = device.as_ref().map_err(String::clone)?;
        let gone = |error: tidegate_verbs::Error| error.to_string();
        let port = device.port().map_err(gone)?;
        let gids = device.gids().map_err(gone)?;
        let addresses = gids.iter().filter(|gid| gid.is_roce_v2).map(|gid| gid.address).take(RDMA_ADDRESSES);
        let (is_active, mtu) = (port.is_active, port.mtu);
        let addresses: Vec<IpAddr> = addresses.collect();
        Ok(RdmaDevice {
            name: name.into(),
            error: None,
            is_active,
            mtu,
            link: link_name(port.link),
            addresses,
        })
    };
    state().unwrap_or_else(|why| RdmaDevice { name: name.into(), error: Some(why), ..RdmaDevice::default() })
}

fn link_name(link: Link) -> String {
    match link {
        Link::Ethernet => "ethernet".into(),
        Link::InfiniBand => "infiniband".into(),
        Link::Other(number) => format!("other {number}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_the_option_there_is_no_device_and_no_library() {
        let devices = Loaded::new(&[]).open();
        assert!(devices.facts().is_empty() && !devices.is_any_open());
        let refused = devices.find("rxe0").unwrap_err();
        assert!(refused.contains("--rdma rxe0") && refused.contains("upgrade"), "{refused}");
    }

    #[test]
    fn a_device_of_no_use_is_a_fact_with_the_reason() {
        let devices = Devices {
            all: vec![("rxe0".into(), Err("there is no such device".into()))],
            ..Devices::default()
        };
        let fact = devices.facts().remove(0);
        assert_eq!((fact.name.as_str(), fact.error.as_deref()), ("rxe0", Some("there is no such device")));
        assert_eq!(devices.find("rxe0").unwrap_err(), "RDMA device rxe0: there is no such device");
        assert!(!devices.is_any_open());
    }
}
