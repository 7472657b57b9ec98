//! What tells the process behind a vNIC: the descriptors that it holds.

use crate::roots::{Roots, number, target, text};
use std::collections::BTreeMap;
use std::path::Path;
use tidegate_contract::{Attach, SocketMode, Vnic};

/// A descriptor by which a process is known to serve a vNIC.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// `/dev/net/tun`, attached to the interface of this name.
    Tap(String),
    /// `/dev/tapN` of the macvtap with this interface number.
    Macvtap(u32),
    /// A Unix socket, by its inode.
    Socket(u64),
    /// `/dev/vfio/N`: the IOMMU group of a function.
    Vfio(u32),
    /// A virtual CPU of KVM: of any VM.
    Kvm,
}

impl Key {
    /// Returns the key of descriptor `fd` of the process whose folder is `process`; `None` if it is none of these.
    pub fn of_descriptor(process: &Path, fd: &str) -> Option<Self> {
        let link = std::fs::read_link(process.join("fd").join(fd)).ok()?;
        let link = link.to_str()?;
        if let Some(inode) = link.strip_prefix("socket:[") {
            return Some(Self::Socket(inode.strip_suffix(']')?.parse().ok()?));
        }
        if link == "/dev/net/tun" {
            let info = text(process.join("fdinfo").join(fd))?;
            return Some(Self::Tap(
                info.lines().find_map(|line| line.strip_prefix("iff:"))?.trim().to_owned(),
            ));
        }
        if let Some(number) = link.strip_prefix("/dev/tap") {
            return Some(Self::Macvtap(number.parse().ok()?));
        }
        if link.starts_with("anon_inode:kvm-vcpu:") {
            return Some(Self::Kvm);
        }
        Some(Self::Vfio(link.strip_prefix("/dev/vfio/")?.parse().ok()?))
    }
}

/// A Unix socket, as the kernel's socket diagnosis knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnixSocket {
    /// Its inode.
    pub inode: u64,
    /// Its path, if it is bound to one.
    pub path: Option<std::path::PathBuf>,
    /// The inode of the socket at its other end, if it is connected.
    pub peer: Option<u64>,
}

/// Returns the keys of each contract's vNIC, by its name; none if it has no process, or its device is gone.
pub fn keys<'a>(
    roots: &Roots,
    contracts: &[&'a Vnic],
    sockets: &[UnixSocket],
) -> BTreeMap<&'a str, Vec<Key>> {
    let connected: BTreeMap<&Path, Vec<&UnixSocket>> = {
        let mut found = BTreeMap::<_, Vec<_>>::new();
        for socket in sockets.iter().filter(|socket| socket.peer.is_some()) {
            if let Some(path) = &socket.path {
                found.entry(path.as_path()).or_default().push(socket);
            }
        }
        found
    };
    let net = roots.sys.join("class/net");
    let of = |vnic: &Vnic| match &vnic.attach {
        // The accepted socket has the path: ours if we listen, the front end's if it does.
        Attach::VhostUser { path, mode, .. } => {
            let ours = connected.get(path.as_path()).into_iter().flatten();
            let inode = |socket: &&UnixSocket| match mode {
                SocketMode::Server => socket.peer,
                SocketMode::Client => Some(socket.inode),
            };
            ours.filter_map(inode).map(Key::Socket).collect()
        }
        Attach::Netdev { name } => {
            let tap = Key::Tap(name.clone());
            let macvtap = number(net.join(name).join("ifindex")).map(Key::Macvtap);
            let folder = net.join(name).join("macvtap").exists();
            std::iter::once(tap).chain(macvtap.filter(|_| folder)).collect()
        }
        Attach::Vf { pf, index, .. } => {
            let group = target(net.join(pf).join(format!("device/virtfn{index}/iommu_group")));
            group.and_then(|group| group.parse().ok()).map(Key::Vfio).into_iter().collect()
        }
        Attach::Tap { .. } => vec![],
    };
    contracts.iter().map(|vnic| (vnic.name.as_str(), of(vnic))).collect()
}
