//! Uplinks: made, changed, removed, and made anew if they broke.
//!
//! ```text
//!  Declared ─▶ sockets: those of before, if they fit, else made ─▶ filter: peers only ─▶ switch
//!  broken, by the switch or by its device ─ Mending: now? ─▶ removed, made with other sockets
//! ```

use crate::action::Declared;
use crate::peers_only::{Filter, destinations};
use crate::place::{Granted, SwitchPlace, switch_failed};
use crate::sockets::{self, KeptSockets, Sockets, same_sockets};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Instant;
use tidegate_contract::{Uplink, UplinkKind};
use tidegate_durable::DurableError;
use tidegate_place::{Pair, PlaceError};
use tidegate_switch::control::{PortOrders, UplinkSockets, UplinkStatus};

impl SwitchPlace {
    /// Makes an uplink, or changes one, or makes one anew that is broken.
    pub(crate) fn set_uplink(&mut self, declared: &Declared) -> Result<(), PlaceError> {
        let name = &declared.uplink.name;
        let before = self.declared.get(name).cloned();
        let result = self.declare(declared);
        // A switch that does not answer may have it.
        let entry =
            if matches!(result, Err(PlaceError::Failed(_))) { before } else { Some(declared.clone()) };
        match entry {
            Some(entry) => _ = self.declared.insert(name.clone(), entry),
            None => _ = self.declared.remove(name),
        }
        result
    }

    fn declare(&mut self, declared: &Declared) -> Result<(), PlaceError> {
        let uplink = &declared.uplink;
        let (mut in_switch, workers, knows_rdma) = self
            .switch
            .ask(|s| {
                let workers = if s.hello.shares_queues { s.hello.workers } else { 1 };
                Ok((s.client.uplinks()?, workers, s.hello.knows_rdma))
            })
            .map_err(switch_failed)?;
        if !knows_rdma {
            // It was told of no device.
            in_switch.iter_mut().for_each(|there| there.uplink.rdma.clone_from(&uplink.rdma));
        }
        if let Some(there) = in_switch.iter().find(|status| status.uplink.name == uplink.name) {
            let broken = self.why_broken(there);
            if broken.is_none() && self.serve(there, uplink) {
                return self.tell(declared, true);
            }
            // Its sockets do not serve any more, and may have the port.
            self.remove_uplink(&uplink.name)?;
            if let Some(why) = broken {
                tracing::warn!(uplink = uplink.name, "it is made anew: {why}");
                self.mending.entry(uplink.name.clone()).or_default().repaired(Instant::now());
            }
        }
        let kept = self.uplink_sockets.remove(&uplink.name);
        // The rings of AF_XDP are as the switch before left them: a new one cannot know which chunks it had.
        let may_keep = uplink.kind != UplinkKind::Xdp;
        let kept = match kept {
            Some(kept) if may_keep && same_sockets(&kept.uplink, uplink) => kept,
            Some(mut kept) => {
                // A switch that keeps them must reach no address by them.
                self.reach(&mut kept, [].into())?;
                drop(kept);
                self.open(uplink, workers).map_err(PlaceError::Failed)?
            }
            None => self.open(uplink, workers).map_err(PlaceError::Failed)?,
        };
        self.uplink_sockets.insert(uplink.name.clone(), kept);
        self.tell(declared, false)
    }

    /// Whether the sockets of an uplink of the switch serve the declaration. This agent can let its own sockets reach
    /// other peers, and not the sockets of an earlier agent.
    fn serve(&self, there: &UplinkStatus, uplink: &Uplink) -> bool {
        let are_ours = self.uplink_sockets.contains_key(&uplink.name);
        // Queue pairs belong to the device that the link was made with: another one needs another link.
        same_sockets(&there.uplink, uplink)
            && there.uplink.rdma == uplink.rdma
            && (are_ours || destinations(&there.uplink) == destinations(uplink))
    }

    /// Makes the sockets of an uplink, which reach its peers only, for so many workers.
    fn open(&mut self, uplink: &Uplink, workers: usize) -> Result<KeptSockets, String> {
        // Its program goes before another one comes.
        self.nic_tables.forget(&uplink.name);
        let mut sockets = sockets::open(uplink, workers)?;
        if let Some((direct, note)) = sockets.xdp.take() {
            self.nic_tables.made(&uplink.name, direct, note);
        }
        self.attach_filter();
        let group = match &self.filter {
            Some(Ok(filter)) if !uplink.is_plain() => {
                Some(filter.admit(sockets.all(), destinations(uplink))?)
            }
            _ => None,
        };
        Ok(KeptSockets { uplink: uplink.clone(), sockets, group })
    }

    /// Tells the switch an uplink; `is_there`: it has the sockets. These reach the new peers before it knows the peers, and the
    /// old ones until it has forgotten them.
    fn tell(&mut self, declared: &Declared, is_there: bool) -> Result<(), PlaceError> {
        let Declared { uplink, keys, .. } = declared;
        let keys: Vec<_> = keys.iter().filter_map(|declared| declared.keys).collect();
        let granted = self.granted_of(&uplink.name);
        let orders = PortOrders { kept: self.kept_ports.of(&uplink.name), granted: granted.clone() };
        let Some(mut kept) = self.uplink_sockets.remove(&uplink.name) else {
            let change =
                |s: &mut crate::conversation::Session| s.set_uplink(declared, &keys, orders.clone(), None);
            self.switch.ask(change).map_err(switch_failed)?;
            self.granted.insert(uplink.name.clone(), granted);
            return Ok(());
        };
        let (before, wanted) = (kept.destinations(), destinations(uplink));
        let result = self.reach(&mut kept, before.union(&wanted).copied().collect()).and_then(|()| {
            let KeptSockets { sockets, .. } = &kept;
            let Sockets { receive, send, pairs, notices, .. } = sockets;
            let notices = notices.as_ref();
            let sockets = (!is_there).then_some(UplinkSockets { receive, send, pairs, notices });
            let change =
                |s: &mut crate::conversation::Session| s.set_uplink(declared, &keys, orders, sockets);
            self.switch.ask(change).map_err(switch_failed)
        });
        let narrowed = match &result {
            Ok(()) => self.reach(&mut kept, wanted),
            Err(PlaceError::Failed(_)) => self.reach(&mut kept, before),
            // It may have the old peers or the new ones.
            Err(_) => Ok(()),
        };
        if result.is_ok() {
            self.granted.insert(uplink.name.clone(), granted);
        }
        kept.uplink = uplink.clone();
        self.uplink_sockets.insert(uplink.name.clone(), kept);
        result.and(narrowed)
    }

    /// Lets the sockets of an uplink reach `destinations` only.
    fn reach(&self, kept: &mut KeptSockets, destinations: BTreeSet<SocketAddr>) -> Result<(), PlaceError> {
        match (&self.filter, &mut kept.group) {
            (Some(Ok(filter)), Some(group)) => filter.change(group, destinations).map_err(PlaceError::Failed),
            _ => Ok(()),
        }
    }

    /// Removes an uplink, and closes its sockets.
    pub(crate) fn remove_uplink(&mut self, name: &str) -> Result<(), PlaceError> {
        let kept = self.uplink_sockets.remove(name);
        self.nic_tables.forget(name);
        self.declared.remove(name);
        self.granted.remove(name);
        let result = self.switch.ask(|s| s.client.remove_uplink(name)).map_err(switch_failed);
        // A switch that keeps the sockets reaches no address by them.
        if let (Some(Ok(filter)), Some(mut group)) = (&self.filter, kept.and_then(|kept| kept.group)) {
            filter.change(&mut group, [].into()).map_err(PlaceError::Failed)?;
        }
        result
    }

    /// Tells the ports of pairs now.
    pub(crate) fn tell_pair_ports(&mut self) {
        // A switch that does not answer is found by the next look.
        let Ok(uplinks) = self.switch.ask(|s| s.client.uplinks()) else { return };
        // On disk before a path is asked for with them.
        if let Err(error) = self.learn_ports(&uplinks) {
            tracing::warn!(%error, "the source ports of pairs cannot be recorded: a switch that is started anew may exchange them");
        }
        self.pair_ports.tell(pair_ports(&uplinks));
    }

    /// Records the ports of pairs.
    pub(crate) fn learn_ports(&mut self, uplinks: &[UplinkStatus]) -> Result<(), DurableError> {
        // The switch's word alone names no uplink.
        for status in uplinks.iter().filter(|status| self.declared.contains_key(&status.uplink.name)) {
            self.kept_ports.learn(&status.uplink.name, &status.pairs);
        }
        self.kept_ports.save()
    }

    fn granted_of(&self, uplink: &str) -> Granted {
        let granted = self.pair_ports.granted(uplink)?;
        Some(granted.into_iter().map(|pair| (pair.vnic, pair.remote)).collect())
    }

    /// Tells the switch which pairs may use their ports, where that changed.
    pub(crate) fn tell_granted(&mut self) -> Result<(), PlaceError> {
        let is_new =
            |name: &&String| self.granted.get(*name).is_some_and(|told| *told != self.granted_of(name));
        let changed: Vec<Declared> = self
            .declared
            .iter()
            .filter(|(name, _)| is_new(name))
            .map(|(_, declared)| declared.clone())
            .collect();
        changed.iter().try_for_each(|declared| self.tell(declared, true))
    }

    /// Attaches the filter on the sockets of uplinks; tried once.
    pub(crate) fn attach_filter(&mut self) {
        if self.filter.is_none() {
            self.filter = Some(Filter::attach().inspect_err(|why| tracing::warn!("{}", unfiltered(why))));
        }
    }

    /// Says why the sockets of uplinks reach more than peers; `None` if they do not.
    pub(crate) fn why_unfiltered(&self) -> Option<String> {
        self.filter.as_ref()?.as_ref().err().map(|why| unfiltered(why))
    }

    /// Returns why no frame passes through an uplink of the switch; `None` if frames pass.
    pub(crate) fn why_broken(&self, status: &UplinkStatus) -> Option<String> {
        status.broken.clone().or_else(|| {
            let kept = self.uplink_sockets.get(&status.uplink.name)?;
            sockets::lost_device(kept).map(|device| {
                format!(
                    "network device {device} went away, and its sockets with it; a new one of the name is another device"
                )
            })
        })
    }
}

/// Returns the source port of each pair that has one of its own.
pub(crate) fn pair_ports(uplinks: &[UplinkStatus]) -> impl Iterator<Item = (Pair, u16)> + '_ {
    uplinks.iter().flat_map(|status| {
        let uplink = &status.uplink.name;
        status.pairs.iter().filter_map(|pair| Some((Pair::new(uplink, &pair.vnic, &pair.remote), pair.port?)))
    })
}

fn unfiltered(why: &str) -> String {
    format!("no filter limits the uplinks' sockets to their peers, should an intruder have the switch: {why}")
}
