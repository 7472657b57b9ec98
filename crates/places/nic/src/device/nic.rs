//! The NICs of a network namespace: look at them, and change them step by step.

use crate::device::pf::{Mode, Node, Pf};
use crate::device::request::{Request, request};
use crate::device::step::Step;
use crate::device::sysfs;
use crate::device::vf::{Leaf, Representor};
use std::collections::BTreeMap;
use tidegate_contract::Rate;
use tidegate_netlink::link::{RTM_GETLINK, RTM_SETLINK, named};
use tidegate_netlink::vf::{self, VfLink};
use tidegate_netlink::{Generic, NetlinkError, Socket, devlink, ethtool};

/// A NIC could not be read.
#[derive(Debug, thiserror::Error)]
pub enum NicError {
    /// The kernel does not answer.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
}

/// A step failed and changed nothing; the steps before it were done.
#[derive(Debug, thiserror::Error)]
#[error("cannot {step}: {why}{hint}")]
pub struct StepError {
    /// The step, in words.
    pub step: String,
    /// The cause; of a driver, the kernel's words.
    pub why: String,
    /// Likely meaning, and what to do.
    pub hint: &'static str,
    /// The kernel's error number, where it refused.
    pub errno: Option<i32>,
}

/// The conversation with NICs, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Nic {
    route: Socket,
    /// Absent where the kernel has no such family.
    devlink: Option<Generic>,
    ethtool: Option<Generic>,
}

impl Nic {
    /// Opens the conversation. Looking and changing need CAP_NET_ADMIN (devlink tells only such a process the eswitch's mode), registers
    /// need root.
    ///
    /// # Errors
    /// The operating system refuses a socket.
    pub fn open() -> Result<Self, NicError> {
        Ok(Self {
            route: Socket::route().map_err(NetlinkError::from)?,
            devlink: Generic::open(devlink::FAMILY.0, devlink::FAMILY.1)?,
            ethtool: Generic::open(ethtool::FAMILY.0, ethtool::FAMILY.1)?,
        })
    }

    /// A PF by the name of its netdev; `None` where there is no such netdev, or its device can have no VFs.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn observe(&mut self, pf: &str) -> Result<Option<Pf>, NicError> {
        let found = self.route.get(RTM_GETLINK, &named(pf), |_, body| vf::link(body));
        // It may have been found by another of its names.
        let Some(named) = unless_gone(found)?.filter(|link| link.name == pf) else { return Ok(None) };
        let Some(device) = sysfs::device(&sysfs::root(), pf) else { return Ok(None) };
        let Some(found) = self.link(named.index, true)? else { return Ok(None) };
        let (speed, top_speed) = self.speeds(found.index)?;
        let mut pf = Pf {
            name: found.name,
            index: found.index,
            up: found.up,
            carrier: found.carrier,
            speed: speed.filter(|_| found.carrier),
            top_speed,
            total_vfs: device.total_vfs,
            num_vfs: found.num_vfs,
            driver: device.driver,
            bus: device.bus,
            address: device.address,
            pci_id: device.pci_id,
            mode: Mode::Legacy,
            vfs: found.vfs.into_iter().map(|(index, info)| (index, info.into())).collect(),
            nodes: BTreeMap::new(),
        };
        for (index, address) in device.vfs {
            if let Some(vf) = pf.vfs.get_mut(&index) {
                vf.address = Some(address);
            }
        }
        self.switchdev(&mut pf, named.switch.as_deref())?;
        Ok(Some(pf))
    }

    /// A netdev with its VFs.
    pub(crate) fn link(&mut self, index: u32, statistics: bool) -> Result<Option<VfLink>, NetlinkError> {
        let request = vf::with_vfs(index, statistics);
        unless_gone(self.route.get(RTM_GETLINK, &request, |_, body| vf::link(body)))
    }

    /// Speed of a link, and the highest that it could have.
    fn speeds(&mut self, index: u32) -> Result<(Option<Rate>, Option<Rate>), NetlinkError> {
        let Some(ethtool) = &mut self.ethtool else { return Ok((None, None)) };
        let said = ethtool.get(ethtool::LINKMODES_GET, &ethtool::link_modes(index), |attributes| {
            Some(ethtool::speeds(attributes))
        });
        Ok(unless_lacking(said)?.flatten().unwrap_or_default())
    }

    /// Reads the eswitch mode; in switchdev mode also representors, leaves and nodes.
    fn switchdev(&mut self, pf: &mut Pf, switch: Option<&[u8]>) -> Result<(), NetlinkError> {
        let Some(devlink) = &mut self.devlink else { return Ok(()) };
        let device = (pf.bus.clone(), pf.address.clone());
        let mode = devlink.get(devlink::ESWITCH_GET, &devlink::device(&device), devlink::mode);
        pf.mode = unless_lacking(mode)?.flatten().unwrap_or_default();
        if pf.mode == Mode::Legacy {
            return Ok(());
        }
        let all = tidegate_netlink::Attributes::default();
        let ports = devlink.dump(devlink::PORT_GET, &all, devlink::port)?;
        let ports: Vec<_> = ports.into_iter().filter(|port| port.device == device).collect();
        let rates = unless_lacking(devlink.dump(devlink::RATE_GET, &all, devlink::rate))?.unwrap_or_default();
        let mut leaves = BTreeMap::new();
        for (_, object, node) in rates.into_iter().filter(|(of, ..)| *of == device) {
            match object {
                devlink::Object::Leaf(port) => drop(leaves.insert(port, node)),
                devlink::Object::Node(name) => drop(pf.nodes.insert(name, node)),
            }
        }
        for port in ports {
            let Some(vf) = pf.vfs.get_mut(&port.vf) else { continue };
            vf.representor = port.netdev.map(|(index, name)| Representor { name, index });
            let leaf = leaves.remove(&port.index);
            vf.leaf = leaf.map(|Node { share, max, parent }| Leaf { port: port.index, share, max, parent });
        }
        self.representors(pf, switch)
    }

    /// Representors of VFs whose devlink ports do not name them, by the names of ports of the same switch. Where two have the
    /// same name, as with two PFs on one switch, neither is taken.
    fn representors(&mut self, pf: &mut Pf, switch: Option<&[u8]>) -> Result<(), NetlinkError> {
        if switch.is_none() || pf.vfs.values().all(|vf| vf.representor.is_some()) {
            return Ok(());
        }
        let links = self.route.dump(RTM_GETLINK, &vf::all(), |_, body| vf::link(body))?;
        let mut found: BTreeMap<u16, Vec<Representor>> = BTreeMap::new();
        for link in
            links.into_iter().filter(|link| link.switch.as_deref() == switch && link.index != pf.index)
        {
            if let Some(vf) = link.port.as_deref().and_then(vf::represented) {
                found.entry(vf).or_default().push(Representor { name: link.name, index: link.index });
            }
        }
        for (index, vf) in &mut pf.vfs {
            if let (None, Some([one])) = (&vf.representor, found.get(index).map(Vec::as_slice)) {
                vf.representor = Some(one.clone());
            }
        }
        Ok(())
    }

    /// Does one step.
    ///
    /// # Errors
    /// The driver refused, or the device is gone.
    pub fn apply(&mut self, step: &Step) -> Result<(), StepError> {
        let done = match request(step) {
            Request::Link(body) => self.route.change(RTM_SETLINK, 0, &body),
            Request::Devlink(command) => match &mut self.devlink {
                Some(devlink) => devlink.change(command.number, &command.attributes),
                None => {
                    let why = "this kernel has no devlink (CONFIG_NET_DEVLINK)".into();
                    return Err(StepError { step: step.to_string(), why, hint: "", errno: None });
                }
            },
        };
        done.map_err(|e| StepError {
            step: step.to_string(),
            why: e.to_string(),
            hint: hint(&e),
            errno: e.errno(),
        })
    }

    /// Counters of every link of the namespace, by interface index.
    pub(crate) fn link_statistics(
        &mut self,
    ) -> Result<BTreeMap<u32, crate::device::vf::Statistics>, NetlinkError> {
        let all =
            self.route.dump(vf::RTM_GETSTATS, &vf::all_counters(), |_, body| vf::link_counters(body))?;
        Ok(all.into_iter().collect())
    }
}

const EPERM: i32 = 1;
const ENODEV: i32 = 19;
const EINVAL: i32 = 22;
const EOPNOTSUPP: i32 = 95;

/// `None` for a device that disappeared during the look.
fn unless_gone<T: Default>(found: Result<T, NetlinkError>) -> Result<T, NetlinkError> {
    match found {
        Err(e) if e.errno() == Some(ENODEV) => Ok(T::default()),
        other => other,
    }
}

/// `None` for a driver without the feature, or a device that disappeared.
fn unless_lacking<T>(said: Result<T, NetlinkError>) -> Result<Option<T>, NetlinkError> {
    match said {
        Err(e) if matches!(e.errno(), Some(EOPNOTSUPP | ENODEV | EINVAL)) => Ok(None),
        other => other.map(Some),
    }
}

fn hint(error: &NetlinkError) -> &'static str {
    match error.errno() {
        Some(EPERM) => "; it needs CAP_NET_ADMIN",
        Some(ENODEV) => "; the device is gone",
        Some(EOPNOTSUPP) => "; the driver has no such setting",
        Some(EINVAL) => {
            "; drivers report this for a VF that does not exist, without a link, or for a rate above that of the link"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In any network namespace, with CAP_NET_ADMIN or without.
    #[test]
    fn a_netdev_that_is_no_pf_is_not_observed_and_cannot_be_changed() {
        fn is_send<T: Send>(value: T) -> T {
            value
        }
        let mut nic = is_send(Nic::open().expect("netlink"));
        for name in ["lo", "no-such-netdev"] {
            assert_eq!(nic.observe(name).expect("an answer"), None, "{name}");
        }
        let absent = Pf { name: "gone".into(), index: i32::MAX as u32, ..Pf::default() };
        let refused = nic
            .apply(&Step::on(&absent, crate::device::step::Set::Trust { vf: 0, on: true }))
            .expect_err("no");
        assert!(
            refused.to_string().starts_with("cannot set gone vf 0 trust on: the kernel refused"),
            "{refused}"
        );
        assert!(matches!(refused.errno, Some(ENODEV | EPERM)), "{refused}");
    }
}
