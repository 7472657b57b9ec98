//! Uplinks: made, changed, removed.
//!
//! ```text
//!  Declared ─▶ sockets: those of before, if they fit, else made ─▶ switch
//! ```

use crate::action::Declared;
use crate::place::{SwitchPlace, switch_failed};
use crate::sockets::{self, Sockets};
use tidegate_contract::Uplink;
use tidegate_place::PlaceError;
use tidegate_switch::control::UplinkSockets;

/// The sockets of an uplink that the switch has, too.
pub(crate) struct Held {
    /// The declaration that they were made for.
    uplink: Uplink,
    sockets: Sockets,
}

impl SwitchPlace {
    /// Makes an uplink, or changes one.
    pub(crate) fn set_uplink(&mut self, declared: &Declared) -> Result<(), PlaceError> {
        let Declared { uplink, remotes } = declared;
        let fits = |held: &Held| same_sockets(&held.uplink, uplink);
        let declared_there = self.switch.ask(|s| s.client.uplinks()).map_err(switch_failed)?;
        if declared_there.iter().any(|status| same_sockets(&status.uplink, uplink)) {
            return self.switch.ask(|s| s.client.set_uplink(uplink, remotes, None)).map_err(switch_failed);
        }
        if declared_there.iter().any(|status| status.uplink.name == uplink.name) {
            // Its sockets do not serve any more, and may have the port.
            self.remove_uplink(&uplink.name)?;
        }
        let held = self.uplink_sockets.remove(&uplink.name).filter(fits);
        let sockets = match held {
            Some(held) => held.sockets,
            None => sockets::open(uplink).map_err(PlaceError::Failed)?,
        };
        let given = UplinkSockets { receive: &sockets.receive, send: &sockets.send };
        let result = self.switch.ask(|s| s.client.set_uplink(uplink, remotes, Some(given)));
        self.uplink_sockets.insert(uplink.name.clone(), Held { uplink: uplink.clone(), sockets });
        result.map_err(switch_failed)
    }

    /// Removes an uplink, and closes its sockets.
    pub(crate) fn remove_uplink(&mut self, name: &str) -> Result<(), PlaceError> {
        self.uplink_sockets.remove(name);
        self.switch.ask(|s| s.client.remove_uplink(name)).map_err(switch_failed)
    }
}

/// Whether the sockets of one serve the other.
fn same_sockets(a: &Uplink, b: &Uplink) -> bool {
    (&a.name, a.local, a.port, &a.device) == (&b.name, b.local, b.port, &b.device)
}
