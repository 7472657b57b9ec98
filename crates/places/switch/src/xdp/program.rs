//! The program at the device, and its maps.

use super::queue::QUEUES;
use libbpf_rs::query::{ProgInfoIter, ProgInfoQueryOptions};
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, ObjectBuilder, Xdp, XdpFlags};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/plain_nic.bpf.o"));

/// The maps that change while it runs.
pub(crate) struct Maps {
    /// Sockets by address.
    pub(crate) direct: MapHandle,
    /// Frames by socket.
    pub(crate) frames: MapHandle,
}

impl Maps {
    /// Finds those of the program at a device; `None` if it is none of ours, or of a release without them. `socket` is any.
    pub(crate) fn at(index: u32, socket: BorrowedFd<'_>) -> Option<Self> {
        let number = Xdp::new(socket).query_id(i32::try_from(index).ok()?, XdpFlags::NONE).ok()?;
        let options = ProgInfoQueryOptions::default().include_map_ids(true);
        let info = ProgInfoIter::with_query_opts(options).find(|info| info.id == number)?;
        if info.name != "plain_nic" {
            return None;
        }
        Self::named(info.map_ids.iter().filter_map(|number| MapHandle::from_map_id(*number).ok()).collect())
    }

    fn named(mut all: Vec<MapHandle>) -> Option<Self> {
        let mut take = |name: &str, key: u32, value: u32| {
            let is_it =
                |map: &MapHandle| map.name() == name && (map.key_size(), map.value_size()) == (key, value);
            Some(all.swap_remove(all.iter().position(is_it)?))
        };
        Some(Self { direct: take("direct", 8, 4)?, frames: take("frames", 4, 8)? })
    }
}

/// Loads the program for these VLANs and the sockets of each queue.
pub(crate) struct Loaded {
    object: libbpf_rs::Object,
}

impl Loaded {
    /// Loads it.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub(crate) fn new(vlans: &[u16], queues: &[Vec<OwnedFd>]) -> io::Result<Self> {
        let object = ObjectBuilder::default().open_memory(PROGRAM).and_then(|opened| opened.load());
        let object = object.map_err(of_libbpf)?;
        for map in object.maps() {
            if map.name() == "vlans" {
                for vlan in vlans {
                    map.update(&u32::from(*vlan).to_ne_bytes(), &[1], MapFlags::ANY).map_err(of_libbpf)?;
                }
            } else if map.name() == "sockets" {
                for (queue, sockets) in (0u32..).zip(queues) {
                    for (place, socket) in (0u32..).zip(sockets) {
                        let key = (place * QUEUES + queue).to_ne_bytes();
                        let socket = socket.as_raw_fd().to_ne_bytes();
                        map.update(&key, &socket, MapFlags::ANY).map_err(of_libbpf)?;
                    }
                }
            }
        }
        Ok(Self { object })
    }

    /// Attaches it: by the driver if that can, else in the kernel. It stays as long as the returned link is open.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub(crate) fn attach(&self, index: u32) -> io::Result<OwnedFd> {
        let program = self.object.progs_mut().next().ok_or_else(|| io::Error::other("no program"))?;
        let index = i32::try_from(index).map_err(io::Error::other)?;
        let link: Link = program.attach_xdp(index).map_err(of_libbpf)?;
        link.as_fd().try_clone_to_owned()
    }

    /// Returns its maps.
    ///
    /// # Errors
    /// They cannot be opened.
    pub(crate) fn maps(&self) -> io::Result<Maps> {
        let all = self.object.maps().map(|map| MapHandle::try_from(&map));
        let all = all.collect::<Result<_, _>>().map_err(of_libbpf)?;
        Maps::named(all).ok_or_else(|| io::Error::other("no maps of this form"))
    }
}

/// Returns the kernel's error in one of libbpf.
pub(crate) fn of_libbpf(error: libbpf_rs::Error) -> io::Error {
    let mut cause = std::error::Error::source(&error);
    while let Some(here) = cause {
        if let Some(code) = here.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error) {
            return io::Error::from_raw_os_error(code);
        }
        cause = here.source();
    }
    io::Error::other(format!("{error:#}"))
}
