//! Uplinks: made, changed, removed.
//!
//! ```text
//!  Declared ─▶ sockets: those of before, if they fit, else made ─▶ switch
//! ```

use crate::action::Declared;
use crate::place::{SwitchPlace, switch_failed};
use crate::sockets::{self, KeptSockets, same_sockets};
use tidegate_contract::UplinkKind;
use tidegate_place::PlaceError;
use tidegate_switch::control::UplinkSockets;

impl SwitchPlace {
    /// Makes an uplink, or changes one.
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

    fn declare(&mut self, Declared { uplink, remotes }: &Declared) -> Result<(), PlaceError> {
        // The rings of AF_XDP are as the switch before left them: a new one cannot know which chunks it had.
        let may_keep = uplink.kind != UplinkKind::Xdp;
        let fits = |kept: &KeptSockets| may_keep && same_sockets(&kept.uplink, uplink);
        let in_switch = self.switch.ask(|s| s.client.uplinks()).map_err(switch_failed)?;
        if in_switch.iter().any(|status| same_sockets(&status.uplink, uplink)) {
            return self.switch.ask(|s| s.client.set_uplink(uplink, remotes, None)).map_err(switch_failed);
        }
        if in_switch.iter().any(|status| status.uplink.name == uplink.name) {
            // Its sockets do not serve any more, and may have the port.
            self.remove_uplink(&uplink.name)?;
        }
        let kept = self.uplink_sockets.remove(&uplink.name).filter(fits);
        let sockets = match kept {
            Some(kept) => kept.sockets,
            None => sockets::open(uplink).map_err(PlaceError::Failed)?,
        };
        let handed_over = UplinkSockets { receive: &sockets.receive, send: &sockets.send };
        let result = self.switch.ask(|s| s.client.set_uplink(uplink, remotes, Some(handed_over)));
        self.uplink_sockets.insert(uplink.name.clone(), KeptSockets { uplink: uplink.clone(), sockets });
        result.map_err(switch_failed)
    }

    /// Removes an uplink, and closes its sockets.
    pub(crate) fn remove_uplink(&mut self, name: &str) -> Result<(), PlaceError> {
        self.uplink_sockets.remove(name);
        self.declared.remove(name);
        self.switch.ask(|s| s.client.remove_uplink(name)).map_err(switch_failed)
    }
}
