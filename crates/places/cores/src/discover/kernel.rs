//! The kernel's answers that are in no file: by netlink, and by calls on descriptors.

use super::addresses;
use super::descriptor::{self, Device, SocketFile};
use super::peers::{self, UnixSocket};
use rustix::fs::ResolveFlags;
use std::net::IpAddr;
use std::path::Path;

/// What stands at a path.
type OfPath<T> = Box<dyn Fn(&Path) -> Option<T> + Send>;

/// The kernel's answers, or others in tests.
pub struct Kernel {
    /// The connected Unix sockets of the host, or why they are not known.
    pub sockets: Box<dyn FnMut() -> Result<Vec<UnixSocket>, String> + Send>,
    /// IP addresses, with the numbers of their interfaces.
    pub addresses: Box<dyn FnMut() -> Vec<(IpAddr, u32)> + Send>,
    /// The character device at which a descriptor is open, by its path below `/proc`.
    pub device: OfPath<Device>,
    /// The interface of a process's descriptor of `/dev/net/tun`, if it is in the agent's network namespace.
    pub tap: Box<dyn Fn(u32, i32) -> Option<String> + Send>,
    /// The socket file that stands at a path.
    pub file: OfPath<SocketFile>,
}

impl Default for Kernel {
    /// This host's.
    fn default() -> Self {
        // Links on the way are the administrator's: `/var/run`.
        let file = |path: &Path| Some(SocketFile::at(path, ResolveFlags::empty())?.0);
        Self {
            sockets: Box::new(peers::connected),
            addresses: Box::new(addresses::addresses),
            device: Box::new(Device::of_descriptor),
            tap: Box::new(descriptor::tap),
            file: Box::new(file),
        }
    }
}
