//! Uplinks: made, changed, removed, and made anew if they broke.
//!
//! ```text
//!  Declared ─▶ sockets: those of before, if they fit, else made ─▶ switch
//!  broken, by the switch or by its device ─ Mending: now? ─▶ removed, made with other sockets
//! ```

use crate::action::Declared;
use crate::place::{SwitchPlace, switch_failed};
use crate::sockets::{self, KeptSockets, same_sockets};
use std::time::Instant;
use tidegate_place::PlaceError;
use tidegate_switch::control::{UplinkSockets, UplinkStatus};

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

    fn declare(&mut self, Declared { uplink, remotes, keys }: &Declared) -> Result<(), PlaceError> {
        let keys: Vec<_> = keys.iter().filter_map(|declared| declared.keys).collect();
        let fits = |kept: &KeptSockets| same_sockets(&kept.uplink, uplink);
        let in_switch = self.switch.ask(|s| s.client.uplinks()).map_err(switch_failed)?;
        if let Some(there) = in_switch.iter().find(|status| status.uplink.name == uplink.name) {
            let broken = self.why_broken(there);
            if broken.is_none() && same_sockets(&there.uplink, uplink) {
                let change =
                    |s: &mut crate::conversation::Session| s.client.set_uplink(uplink, remotes, &keys, None);
                return self.switch.ask(change).map_err(switch_failed);
            }
            // Its sockets do not serve any more, and may have the port.
            self.remove_uplink(&uplink.name)?;
            if let Some(why) = broken {
                tracing::warn!(uplink = uplink.name, "it is made anew: {why}");
                self.mending.entry(uplink.name.clone()).or_default().repaired(Instant::now());
            }
        }
        let kept = self.uplink_sockets.remove(&uplink.name).filter(fits);
        let sockets = match kept {
            Some(kept) => kept.sockets,
            None => sockets::open(uplink).map_err(PlaceError::Failed)?,
        };
        let handed_over =
            UplinkSockets { receive: &sockets.receive, send: &sockets.send, pairs: &sockets.pairs };
        let result = self.switch.ask(|s| s.client.set_uplink(uplink, remotes, &keys, Some(handed_over)));
        self.uplink_sockets.insert(uplink.name.clone(), KeptSockets { uplink: uplink.clone(), sockets });
        result.map_err(switch_failed)
    }

    /// Removes an uplink, and closes its sockets.
    pub(crate) fn remove_uplink(&mut self, name: &str) -> Result<(), PlaceError> {
        self.uplink_sockets.remove(name);
        self.declared.remove(name);
        self.switch.ask(|s| s.client.remove_uplink(name)).map_err(switch_failed)
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
