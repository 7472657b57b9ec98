//! The program at the device, and its maps.

use super::queue::QUEUES;
use libbpf_rs::query::{ProgInfoIter, ProgInfoQueryOptions};
use libbpf_rs::{MapCore, MapFlags, MapHandle, ObjectBuilder, Xdp, XdpFlags, libbpf_sys};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

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

/// Where the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In the driver (native XDP).
    Driver,
    /// Behind it (generic XDP).
    Kernel,
}

/// The loaded program.
pub(crate) struct Loaded {
    object: libbpf_rs::Object,
}

impl Loaded {
    /// Loads it for these VLANs.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub(crate) fn new(vlans: &[u16]) -> io::Result<Self> {
        let object = ObjectBuilder::default().open_memory(PROGRAM).and_then(|opened| opened.load());
        let loaded = Self { object: object.map_err(of_libbpf)? };
        for vlan in vlans {
            loaded.set("vlans", &u32::from(*vlan).to_ne_bytes(), &[1])?;
        }
        Ok(loaded)
    }

    /// Lets it send frames to the sockets of each queue.
    ///
    /// # Errors
    /// The kernel refuses one.
    pub(crate) fn send_to(&self, queues: &[Vec<OwnedFd>]) -> io::Result<()> {
        for (queue, sockets) in (0u32..).zip(queues) {
            for (place, socket) in (0u32..).zip(sockets) {
                let key = place * QUEUES + queue;
                self.set("sockets", &key.to_ne_bytes(), &socket.as_raw_fd().to_ne_bytes())?;
            }
        }
        Ok(())
    }

    fn set(&self, map: &str, key: &[u8], value: &[u8]) -> io::Result<()> {
        let missing = || io::Error::other(format!("the program has no map {map}"));
        let map = self.object.maps().find(|has| has.name() == map).ok_or_else(missing)?;
        map.update(key, value, MapFlags::ANY).map_err(of_libbpf)
    }

    /// Attaches it to a device. It stays as long as the returned link is open.
    ///
    /// # Errors
    /// The driver cannot run programs (`EOPNOTSUPP`), another program is there (`EBUSY`), or the kernel's reason.
    pub(crate) fn attach(&self, index: u32, place: Place) -> io::Result<OwnedFd> {
        let program = self.object.progs().next().ok_or_else(|| io::Error::other("no program"))?;
        let index = i32::try_from(index).map_err(io::Error::other)?;
        let options = libbpf_sys::bpf_link_create_opts {
            sz: size_of::<libbpf_sys::bpf_link_create_opts>() as libbpf_sys::size_t,
            flags: match place {
                Place::Driver => libbpf_sys::XDP_FLAGS_DRV_MODE,
                Place::Kernel => libbpf_sys::XDP_FLAGS_SKB_MODE,
            },
            ..Default::default()
        };
        let program = program.as_fd().as_raw_fd();
        // SAFETY: libbpf reads `options`, which live longer than the call.
        let link =
            unsafe { libbpf_sys::bpf_link_create(program, index, libbpf_sys::BPF_XDP, &raw const options) };
        // SAFETY: a new descriptor, which nothing else has.
        (link >= 0)
            .then(|| unsafe { OwnedFd::from_raw_fd(link) })
            .ok_or_else(|| io::Error::from_raw_os_error(-link))
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
