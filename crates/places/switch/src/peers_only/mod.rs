//! A filter on the sockets of uplinks: they reach peers, and nothing else.
//!
//! ```text
//!  Uplink ─▶ destinations ─▶ map `peers` ─┐
//!  sockets ─▶ group ─▶ map `sockets` ─────┴─▶ egress.bpf.c, attached to this process's control group ─▶ packet passes, or EPERM
//! ```
//!
//! connect() binds no destination: a process that holds a connected socket may still send elsewhere. The kernel asks the control
//! group in which a socket was made, and that is this process's, also for packets that the switch sends. So the program stands
//! there, and regards the sockets that it was told of. No process holds it: it stays as long as the control group does, or
//! sockets that were made in it.
//!
//! - [`cgroup`]: this process's control group, and its programs

mod cgroup;

use libbpf_rs::{MapCore, MapFlags, MapHandle, ObjectBuilder};
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use tidegate_contract::Uplink;

const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/egress.bpf.o"));
/// The program's name, and those of its maps.
const NAME: &str = "tidegate_peers";
const SOCKETS: &str = "sockets";
const PEERS: &str = "peers";

/// Sockets that reach the same destinations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    /// Unique on this host: the cookie of one of its sockets.
    number: u64,
    destinations: BTreeSet<SocketAddr>,
}

impl Group {
    /// Returns where its sockets reach.
    pub(crate) fn destinations(&self) -> &BTreeSet<SocketAddr> {
        &self.destinations
    }
}

/// The program's maps.
pub(crate) struct Filter {
    sockets: MapHandle,
    peers: MapHandle,
}

/// Returns the destinations of an uplink's sockets: frames and notices of each peer.
pub(crate) fn destinations(uplink: &Uplink) -> BTreeSet<SocketAddr> {
    let ports = [uplink.port, uplink.notice_port];
    let addresses = uplink.peers.iter().filter_map(|peer| peer.address);
    addresses.flat_map(|address| ports.map(|port| SocketAddr::new(address, port))).collect()
}

impl Filter {
    /// Attaches the program to this process's control group, or finds there the one that an earlier agent attached.
    ///
    /// # Errors
    /// There is no control group of version 2, no right to (`CAP_BPF` and `CAP_NET_ADMIN`, `CAP_SYS_ADMIN` for a program that
    /// is there), or the kernel refuses it.
    pub(crate) fn attach() -> Result<Self, String> {
        let group = cgroup::own().map_err(|error| format!("no control group of version 2: {error}"))?;
        if let Some(found) = Self::find(&group)? {
            return Ok(found);
        }
        let failed = |error: libbpf_rs::Error| format!("cannot load the eBPF program: {error}");
        let object = ObjectBuilder::default().open_memory(PROGRAM).and_then(|opened| opened.load());
        let object = object.map_err(failed)?;
        let map = |name: &str| {
            let map =
                object.maps().find(|map| map.name() == name).expect("egress.bpf.c has a map of this name");
            MapHandle::try_from(&map).map_err(failed)
        };
        let filter = Self { sockets: map(SOCKETS)?, peers: map(PEERS)? };
        let program = object.progs().next().expect("egress.bpf.c has a program");
        cgroup::attach(&group, program.as_fd())
            .map_err(|error| format!("cannot attach the eBPF program to the control group: {error}"))?;
        Ok(filter)
    }

    /// Returns the maps of the program that is attached to a control group.
    fn find(group: &impl AsFd) -> Result<Option<Self>, String> {
        let attached = cgroup::attached(group)
            .map_err(|error| format!("cannot list the programs of the control group: {error}"))?;
        let Some(maps) = cgroup::maps_of(&attached, NAME) else { return Ok(None) };
        let opened = maps.into_iter().map(MapHandle::from_map_id).collect::<Result<Vec<_>, _>>();
        let opened = opened.map_err(|error| format!("cannot open the maps of the eBPF program: {error}"))?;
        let take = |name: &str| opened.iter().find(|map| map.name() == name).map(MapHandle::try_from);
        let (Some(Ok(sockets)), Some(Ok(peers))) = (take(SOCKETS), take(PEERS)) else { return Ok(None) };
        Ok(Some(Self { sockets, peers }))
    }

    /// Makes a group of `sockets`, which reach `destinations` from now on, and nothing else.
    ///
    /// # Errors
    /// The kernel refuses: too many destinations.
    pub(crate) fn admit<'a>(
        &self,
        sockets: impl IntoIterator<Item = BorrowedFd<'a>>,
        destinations: BTreeSet<SocketAddr>,
    ) -> Result<Group, String> {
        let sockets: Vec<BorrowedFd<'_>> = sockets.into_iter().collect();
        let first = sockets.first().ok_or("an uplink without sockets")?;
        let number = rustix::net::sockopt::socket_cookie(first).map_err(|error| error.to_string())?;
        let mut group = Group { number, destinations: BTreeSet::new() };
        self.change(&mut group, destinations)?;
        for socket in sockets {
            let key = socket.as_raw_fd().to_ne_bytes();
            self.sockets.update(&key, &number.to_ne_bytes(), MapFlags::ANY).map_err(failed)?;
        }
        Ok(group)
    }

    /// Gives a group other destinations.
    ///
    /// # Errors
    /// The kernel refuses: too many destinations. It has those of before and some of the new ones.
    pub(crate) fn change(&self, group: &mut Group, destinations: BTreeSet<SocketAddr>) -> Result<(), String> {
        for to in destinations.difference(&group.destinations.clone()) {
            self.peers.update(&key(group.number, *to), &[1], MapFlags::ANY).map_err(failed)?;
            group.destinations.insert(*to);
        }
        for to in group.destinations.difference(&destinations) {
            match self.peers.delete(&key(group.number, *to)) {
                Err(error) if error.kind() != libbpf_rs::ErrorKind::NotFound => return Err(failed(error)),
                _ => {}
            }
        }
        group.destinations = destinations;
        Ok(())
    }
}

fn failed(error: libbpf_rs::Error) -> String {
    format!("cannot tell the filter on the uplink's sockets its peers: {error}")
}

/// Returns `struct destination` of `egress.bpf.c`.
fn key(group: u64, to: SocketAddr) -> Vec<u8> {
    let (address, version) = match to.ip() {
        IpAddr::V4(ip) => ([&ip.octets()[..], &[0; 12]].concat(), 4u16),
        IpAddr::V6(ip) => (ip.octets().to_vec(), 6),
    };
    let (group, port) = (group.to_ne_bytes(), to.port().to_be_bytes());
    [&group[..], &address, &port, &version.to_ne_bytes(), &[0; 4]].concat()
}

#[cfg(test)]
mod tests;
