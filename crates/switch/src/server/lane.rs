//! RDMA at one uplink: its part of the device, and what others may know of its queue pairs.
//!
//! ```text
//!  Device, address of the uplink ─▶ Lane ─▶ Setup ─▶ link
//!                                     └─▶ Shown ◀─ maker;  ─▶ status, announcements
//! ```

use crate::fdb::PortIndex;
use crate::link::rdma::{GuestCounters, Setup};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidegate_contract::{Uplink, UplinkKind};
use tidegate_evidence::{MemberStatus, QueuePairStatus};
use tidegate_verbs::{Device, Link};

/// Why no frame goes by RDMA after a completion queue broke.
const BROKEN: &str =
    "a completion queue of the RDMA device overran or failed: the uplink has to be made anew";

/// Why no frame goes by RDMA after a device did not complete sends for long.
const STUCK: &str = "the RDMA device does not complete what was sent: the uplink has to be made anew, and memory that the \
                     device may read stays in use until the switch ends";

/// Why no frame goes by RDMA after a device did not destroy a queue pair.
const UNDESTROYED: &str = "the RDMA device did not destroy a queue pair (ibv_destroy_qp): the uplink has to be made anew, and memory \
                           that the device may write to, also of guests, stays in use until the switch ends";

/// RDMA at one uplink.
pub struct Lane {
    /// The device's name.
    pub(super) device: String,
    /// This host's address, and GID.
    pub(super) local: IpAddr,
    /// The link's parts.
    pub(super) setup: Setup,
    /// The device does not complete what was sent.
    stuck: AtomicBool,
    shown: Mutex<Shown>,
}

/// What others may know.
#[derive(Default)]
pub(super) struct Shown {
    /// Why no frame goes by RDMA.
    pub(super) error: Option<String>,
    /// Numbers and Q_Keys of the queue pairs of ports.
    pub(super) numbers: BTreeMap<PortIndex, (u32, u32)>,
    /// Their state.
    pub(super) pairs: Vec<QueuePairStatus>,
    /// What is counted of vNICs with zero copy, by name.
    pub(super) not_copied: BTreeMap<String, Arc<GuestCounters>>,
    /// vNICs of other hosts.
    pub(super) members: Vec<MemberStatus>,
}

impl Lane {
    /// Makes the lane of an uplink that names a device, which `find` finds; `None` if it names none. Registers memory: not under a lock.
    ///
    /// # Errors
    /// The device is of no use for the uplink.
    pub fn of<'a>(
        uplink: &Uplink,
        find: impl FnOnce(&str) -> Result<&'a Arc<Device>, String>,
    ) -> Option<Result<Self, String>> {
        let name = uplink.rdma.as_ref()?;
        Some(Self::make(uplink, name, find))
    }

    fn make<'a>(
        uplink: &Uplink,
        name: &str,
        find: impl FnOnce(&str) -> Result<&'a Arc<Device>, String>,
    ) -> Result<Self, String> {
        if uplink.kind != UplinkKind::Vxlan {
            return Err("only an uplink of kind vxlan can have RDMA".into());
        }
        let local = uplink.local.ok_or("the uplink has no local address, which RDMA needs as its GID")?;
        let device = find(name)?;
        let gid = gid_of(device, local)?;
        let setup = Setup::new(device, gid).map_err(|error| format!("RDMA device {name}: {error}"))?;
        Ok(Self { device: name.into(), local, setup, stuck: AtomicBool::new(false), shown: Mutex::default() })
    }

    /// Returns the most bytes of a datagram of the lane that [`of`](Self::of) would make for an uplink now; 0 if it would make none.
    pub(super) fn offered<'a>(
        uplink: &Uplink,
        find: impl FnOnce(&str) -> Result<&'a Arc<Device>, String>,
    ) -> u32 {
        let offered = || {
            let (local, device) = (uplink.local?, find(uplink.rdma.as_ref()?).ok()?);
            let port = device.port().ok().filter(|port| port.is_active)?;
            gid_of(device, local).ok().map(|_| port.mtu)
        };
        offered().filter(|_| uplink.kind == UplinkKind::Vxlan).unwrap_or(0)
    }

    /// Returns the parts of the link.
    pub fn setup(&self) -> Setup {
        self.setup.clone()
    }

    /// Returns why the link has to be made anew, if it has.
    pub(super) fn broken(&self) -> Option<&'static str> {
        let counters = &self.setup.counters;
        let is_undestroyed = counters.undestroyed_pairs.load(Ordering::Relaxed) > 0;
        let whys =
            [(counters.broken.get() > 0, BROKEN), (self.is_stuck(), STUCK), (is_undestroyed, UNDESTROYED)];
        whys.into_iter().find_map(|(is_so, why)| is_so.then_some(why))
    }

    /// Whether the device does not complete what was sent.
    pub(super) fn is_stuck(&self) -> bool {
        self.stuck.load(Ordering::Relaxed)
    }

    /// Notes that the device does not complete what was sent.
    pub(super) fn note_stuck(&self) {
        self.stuck.store(true, Ordering::Relaxed);
    }

    pub(super) fn shown(&self) -> MutexGuard<'_, Shown> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns number and Q_Key of a port's queue pair, for announcements.
    pub fn pair(&self, port: PortIndex) -> Option<(u32, u32)> {
        self.shown().numbers.get(&port).copied()
    }

    /// Returns most bytes of a frame, and its stamp if it has one.
    pub fn longest(&self) -> u32 {
        crate::link::rdma::longest_frame(self.setup.mtu, false)
    }

    /// Returns the index of this host's GID now.
    ///
    /// # Errors
    /// No frame can go by RDMA now.
    pub(super) fn gid_now(&self) -> Result<u8, String> {
        if let Some(why) = self.broken() {
            return Err(why.into());
        }
        let device = &self.setup.device;
        let port = device.port().map_err(|error| format!("RDMA device {}: {error}", self.device))?;
        if !port.is_active {
            return Err(format!(
                "RDMA device {}: its port is not active: is its network interface up?",
                self.device
            ));
        }
        if port.mtu < self.setup.mtu {
            return Err(format!(
                "RDMA device {}: its port takes datagrams of {} bytes, and took {} when the uplink was made, which is made \
                 anew if that lasts; or set the MTU of its network interface as it was",
                self.device, port.mtu, self.setup.mtu
            ));
        }
        gid_of(device, self.local)
    }
}

/// Returns the index of the RoCE v2 GID of an address.
fn gid_of(device: &Device, local: IpAddr) -> Result<u8, String> {
    let name = device.name();
    let gone = |error| format!("RDMA device {name}: {error}");
    if device.port().map_err(gone)?.link != Link::Ethernet {
        return Err(format!("RDMA device {name}: its port is no Ethernet port; only RoCE is supported"));
    }
    let gids = device.gids().map_err(gone)?;
    let found = gids.iter().find(|gid| gid.is_roce_v2 && gid.address.to_canonical() == local.to_canonical());
    found.map(|gid| gid.index).ok_or_else(|| {
        let there: Vec<_> =
            gids.iter().filter(|gid| gid.is_roce_v2).map(|gid| gid.address.to_string()).collect();
        let there = if there.is_empty() { "none".into() } else { there.join(", ") };
        format!(
            "RDMA device {name} has no RoCE v2 GID of {local}, the uplink's address; it has those of: {there}. Give the \
             address to the network interface of the device"
        )
    })
}
