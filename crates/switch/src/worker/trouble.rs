//! What a worker finds wrong with ports, and whom it tells.

use super::Worker;
use crate::fdb::PortIndex;
use crate::port::Port;
use crate::vhost_user::conduct;
use crate::virtio::sigbus;
use std::sync::mpsc::Sender;

/// What a worker finds wrong with a port.
#[derive(Debug)]
pub enum Trouble {
    /// Its link broke: why.
    Broken(String),
    /// An object of its front end held the worker up.
    Held {
        /// For how long.
        event: conduct::Event,
        /// Since when, ns: an event of before a port was made is of another port of its index.
        began: u64,
    },
    /// The worker was held up by some port's memory, whosever it is.
    HeldUp {
        /// By that of none of the ports that are watched.
        by_another: bool,
    },
}

/// From workers to the thread that takes care of ports.
pub type Troubles = Sender<(PortIndex, Trouble)>;

impl Worker {
    /// Whether the link of an own port is broken now.
    pub fn is_broken(&self, index: PortIndex) -> bool {
        self.ports[index as usize].as_ref().is_some_and(|port| port.broken)
    }

    /// The link of a port is broken: nothing is taken from it until it is made anew.
    pub(super) fn fault(&mut self, port: &mut Port, mut reason: &str) {
        if std::mem::replace(&mut port.broken, true) {
            return;
        }
        port.link.rx.shut();
        self.lending.close(port.index);
        if port.link.is_lost() {
            // What a ring says that is zeros now is no lie of the driver.
            reason = sigbus::REASON;
        }
        let _ = self.troubles.send((port.index, Trouble::Broken(reason.to_owned())));
    }

    /// Guest memory was lost: the own ports it belongs to are broken. `true` where there is one.
    #[cold]
    pub(super) fn memory_lost(&mut self) -> bool {
        self.lost = sigbus::lost();
        let mut broke = false;
        for index in self.owned.clone() {
            let Some(mut port) = self.ports[index as usize].take() else { continue };
            if port.link.is_lost() {
                self.fault(&mut port, sigbus::REASON);
                broke = true;
            }
            self.ports[index as usize] = Some(port);
        }
        broke
    }
}
