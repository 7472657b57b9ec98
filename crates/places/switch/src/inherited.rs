//! Descriptors of a vNIC that an earlier switch or agent passed on, after checks.
//!
//! ```text
//!  Conversation: connections, listening sockets, taps ─▶ checks of `inherited` ─▶ the port that is made again
//! ```

use crate::duplicate::Duplicate;
use crate::place::SwitchPlace;
use crate::verify;
use std::path::Path;
use tidegate_contract::{Attach, SocketMode, Vnic};
use tidegate_paths::Entry;
use tidegate_paths::socket;
use tidegate_switch::control::handover::Connected;

impl SwitchPlace {
    /// Whether an earlier switch's connection leads to a front end that connected to the vNIC's socket, or
    /// listens at it.
    pub(crate) fn is_connection_of(&self, inherited: &Connected, vnic: &Vnic) -> bool {
        let Some(stream) = inherited.descriptors.get(&inherited.saved.stream) else { return false };
        let is_so = match &vnic.attach {
            Attach::VhostUser { path, mode: SocketMode::Server, .. } => {
                self.entry(path).is_ok_and(|entry| verify::is_accepted(stream, &entry))
            }
            Attach::VhostUser { path, mode: SocketMode::Client, .. } => verify::is_dialled(stream, path),
            _ => false,
        };
        if !is_so {
            tracing::error!(
                vnic = vnic.name,
                "the connection that the previous switch passed on is not one at its socket: its front end has to \
                 connect again"
            );
        }
        is_so
    }

    /// Returns the vNIC's listening socket of an earlier agent; `None` without one, or if it does not
    /// listen at `entry`.
    pub(crate) fn inherited_listener(&mut self, name: &str, entry: &Entry) -> Option<Duplicate> {
        let fd = self.switch.take_link(name)?.pop()?;
        verify::is_listener(&fd, entry).then_some(Duplicate::Listener(fd))
    }

    /// Returns the vNIC's tap of an earlier agent; `None` without one, or if a queue is not of that
    /// interface.
    pub(crate) fn inherited_tap(
        &mut self,
        name: &str,
        interface: &str,
        netns: Option<&Path>,
    ) -> Option<Duplicate> {
        let queues = self.switch.take_link(name)?;
        let netns = self.namespace(netns).ok()?;
        verify::taps(queues, interface, netns.as_ref()).map(Duplicate::Tap)
    }

    /// Takes this agent's socket or tap, and an earlier agent's, for the caller to drop. The drop removes
    /// an interface at once; a socket closes some time later, and accepts no connections from now on.
    pub(crate) fn take_links(&mut self, vnic: &Vnic) -> [Option<Duplicate>; 2] {
        let current = self.duplicates.remove(&vnic.name);
        let inherited = match &vnic.attach {
            Attach::Tap { name, netns } => self.inherited_tap(&vnic.name, name, netns.as_deref()),
            Attach::VhostUser { path, .. } => match self.entry(path) {
                Ok(entry) => self.inherited_listener(&vnic.name, &entry),
                Err(_) => self.switch.take_link(&vnic.name).and(None),
            },
            _ => None,
        };
        for link in [&current, &inherited].into_iter().flatten() {
            if let Duplicate::Listener(fd) = link {
                socket::stop_listening(fd);
            }
        }
        [current, inherited]
    }
}
