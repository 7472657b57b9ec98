//! Faults of ports that a worker finds and reports.

use super::Worker;
use crate::fdb::PortIndex;
use crate::port::Port;
use crate::vhost_user::conduct;
use crate::virtio::sigbus;
use std::sync::mpsc::Sender;

/// A fault of a port.
#[derive(Debug)]
pub enum Trouble {
    /// Its link broke, with the reason: nothing is taken from it any more. A guest's comes back with its
    /// front end. An uplink's does not come back by itself: the server shows it as broken, and the agent makes it
    /// anew, with other sockets.
    Broken(String),
    /// An object of its front end held the worker up.
    Delayed {
        /// The event and its length.
        event: conduct::Event,
        /// Its beginning (ns): an event before a port was made belongs to an earlier port of its index.
        began: u64,
    },
    /// Some port's memory held the worker up; it is unknown which.
    DelayedByUnknown {
        /// None of the watched ports' memory did.
        by_another: bool,
    },
}

/// From workers to the thread that handles faults.
pub type Troubles = Sender<(PortIndex, Trouble)>;

impl Worker {
    /// Whether the link of an own port is broken.
    pub fn is_broken(&self, index: PortIndex) -> bool {
        self.ports[index as usize].as_ref().is_some_and(|port| port.broken)
    }

    /// Breaks a port's link: nothing is taken from it until it is made anew.
    pub(super) fn fault(&mut self, port: &mut Port, mut reason: &str) {
        if std::mem::replace(&mut port.broken, true) {
            return;
        }
        port.link.rx.refuse_posts();
        self.lending.close(port.index);
        if port.link.is_lost() {
            // A ring that reads as zeros now is not the driver's lie.
            reason = sigbus::REASON;
        }
        let _ = self.troubles.send((port.index, Trouble::Broken(reason.to_owned())));
    }

    /// Breaks own ports that lost guest memory. `true` if there are any.
    #[cold]
    pub(super) fn break_lost_ports(&mut self) -> bool {
        self.seen_losses = sigbus::losses();
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
