//! What tells the process behind a vNIC: the descriptors that it holds.

use super::descriptor::{Device, SocketFile};
use super::kernel::Kernel;
use super::peers::UnixSocket;
use crate::roots::{Roots, number, target, text};
use std::collections::BTreeMap;
use std::path::Path;
use tidegate_contract::{Attach, SocketMode, Vnic};

/// Most connections to one contract's socket: a front end has one, and a user who may connect can make more.
const MOST_CONNECTIONS: usize = 8;

/// Paths of the devices that matter. A process chooses such texts as it likes: they only spare questions about other files.
const DEVICES: [&str; 3] = ["/dev/net/tun", "/dev/tap", "/dev/vfio/"];

/// A descriptor by which a process is known to serve a vNIC.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// `/dev/net/tun`, attached to the interface of this name in the agent's network namespace.
    Tap(String),
    /// `/dev/tapN` of a macvtap, or `/dev/vfio/N`, the IOMMU group of a function.
    Device(Device),
    /// A Unix socket, by its inode.
    Socket(u64),
    /// A virtual CPU of KVM: of any VM.
    Kvm,
}

impl Key {
    /// Returns the key of descriptor `fd` of a process, whose folder is `folder`; `None` if it is none of these.
    pub fn of_descriptor(kernel: &Kernel, process: u32, folder: &Path, fd: &str) -> Option<Self> {
        let path = folder.join("fd").join(fd);
        let link = std::fs::read_link(&path).ok()?;
        let link = link.to_str()?;
        // Paths begin with a slash, or with `(unreachable)`: the kernel wrote these two.
        if let Some(inode) = link.strip_prefix("socket:[") {
            return Some(Self::Socket(inode.strip_suffix(']')?.parse().ok()?));
        }
        if link.starts_with("anon_inode:kvm-vcpu:") {
            return Some(Self::Kvm);
        }
        let device = (kernel.device)(&path).filter(|_| DEVICES.iter().any(|at| link.starts_with(at)))?;
        if device == Device::TUN {
            (kernel.tap)(process, fd.parse().ok()?).map(Self::Tap)
        } else {
            Some(Self::Device(device))
        }
    }
}

/// Returns the keys of each contract's vNIC, by its name; none if it has no process, or its device is gone.
pub fn keys<'a>(
    roots: &Roots,
    kernel: &Kernel,
    contracts: &[&'a Vnic],
    sockets: &[UnixSocket],
) -> BTreeMap<&'a str, Vec<Key>> {
    let connected: BTreeMap<SocketFile, Vec<&UnixSocket>> = {
        let mut found = BTreeMap::<_, Vec<_>>::new();
        for socket in sockets.iter().filter(|socket| socket.peer.is_some()) {
            if let Some(file) = socket.file {
                found.entry(file).or_default().push(socket);
            }
        }
        found
    };
    let class = roots.sys.join("class");
    let device = |path: &str| text(class.join(path).join("dev")).and_then(|text| Device::parse(&text));
    let of = |vnic: &Vnic| match &vnic.attach {
        // An accepted socket has the file of the one that listens: ours if we listen, the front end's if it does. A socket of another
        // file, which another user bound to the same path in a mount namespace of his own, is none of these.
        Attach::VhostUser { path, mode, .. } => {
            let file = (kernel.file)(path);
            let accepted = file.and_then(|file| connected.get(&file)).into_iter().flatten();
            let inode = |socket: &&UnixSocket| match mode {
                SocketMode::Server => socket.peer,
                SocketMode::Client => Some(socket.inode),
            };
            accepted.take(MOST_CONNECTIONS).filter_map(inode).map(Key::Socket).collect()
        }
        Attach::Netdev { name } => {
            let number = number::<u32>(class.join("net").join(name).join("ifindex"));
            let macvtap = number.and_then(|number| device(&format!("macvtap/tap{number}")));
            std::iter::once(Key::Tap(name.clone())).chain(macvtap.map(Key::Device)).collect()
        }
        Attach::Vf { pf, index, .. } => {
            let group = target(class.join("net").join(pf).join(format!("device/virtfn{index}/iommu_group")));
            let group = group.and_then(|group| device(&format!("vfio/{group}")));
            group.map(Key::Device).into_iter().collect()
        }
        Attach::Tap { .. } => vec![],
    };
    contracts.iter().map(|vnic| (vnic.name.as_str(), of(vnic))).collect()
}
