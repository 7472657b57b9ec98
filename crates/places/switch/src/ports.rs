//! A port and what it is connected by: made, changed, connected anew, removed.
//!
//! ```text
//!  a contract ─▶ Record (on disk) ─▶ its socket or tap: held, left by the switch before, or made ─▶ switch
//!                   └─ refused, nothing was changed: as before ◀───────────────────────────────────────┘
//! ```

use crate::duplicate::Duplicate;
use crate::place::{SwitchPlace, not_recorded, switch_failed};
use crate::record::Entry;
use crate::tap;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use tidegate_contract::{Attach, SocketMode, Vnic};
use tidegate_paths::PathError;
use tidegate_paths::socket::{self, Dialled, Earlier};
use tidegate_place::PlaceError;
use tidegate_service::foreign::Foreign;
use tidegate_switch::control::{Attachment, SwitchError};

impl SwitchPlace {
    pub(crate) fn create(&mut self, vnic: &Vnic) -> Result<(), PlaceError> {
        let before = self.record.get(&vnic.name).cloned();
        // A file of another process at the path must not become ours by the intention to make one.
        let earlier =
            before.as_ref().filter(|m| same_socket(&m.vnic, vnic)).map_or(Earlier::None, Entry::earlier);
        if earlier == Earlier::None
            && let Attach::VhostUser { path, mode: SocketMode::Server, .. } = &vnic.attach
            && !self.duplicates.contains_key(&vnic.name)
        {
            self.entry(path).and_then(|entry| socket::free(&entry)).map_err(PlaceError::Failed)?;
        }
        self.record.intend(vnic).map_err(not_recorded)?;
        let earlier = if earlier == Earlier::None { Earlier::Intended } else { earlier };
        let made = self.link(vnic, earlier);
        // A switch that did not answer may have made it: it stays on record, to be kept or removed.
        if let Err(PlaceError::Failed(_)) = made {
            self.record.set(&vnic.name, before);
        }
        made
    }

    /// Makes the port's connection, or takes the one held, and hands it to the switch.
    fn link(&mut self, vnic: &Vnic, earlier: Earlier) -> Result<(), PlaceError> {
        let name = &vnic.name;
        match &vnic.attach {
            Attach::VhostUser { path, mode: SocketMode::Server, owner } => {
                let entry = self.entry(path).map_err(PlaceError::Failed)?;
                let known = self.record.get(name).and_then(|m| m.socket);
                let existing = self.duplicates.remove(name).or_else(|| self.inherited_listener(name, &entry));
                let existing = match (existing, known) {
                    (Some(Duplicate::Listener(fd)), Some(inode))
                        if entry.look().is_ok_and(|there| there.inode() == Some(inode)) =>
                    {
                        socket::set_owner(&entry, inode, owner).map_err(PlaceError::Failed)?;
                        Some((fd, inode))
                    }
                    _ => None,
                };
                let is_new = existing.is_none();
                let (fd, inode) = match existing {
                    Some(existing) => existing,
                    None => {
                        // From here on what is listened at there counts as ours.
                        if let Some(why) = socket::obstacle(&entry, earlier) {
                            return Err(PlaceError::Failed(why));
                        }
                        self.record.intend_socket(vnic).map_err(not_recorded)?;
                        let (fd, inode) =
                            socket::listen_at(&entry, owner, earlier).map_err(PlaceError::Failed)?;
                        (Foreign::new(fd, &self.switch.budget), inode)
                    }
                };
                let result = self.connect_port(vnic, Some(fd.as_fd()), Attachment::Listener(fd.as_fd()));
                match result {
                    Err(e @ SwitchError::Refused(_)) if is_new => {
                        socket::remove(&entry, Earlier::Made(inode));
                        return Err(switch_failed(e));
                    }
                    other => {
                        self.duplicates.insert(name.clone(), Duplicate::Listener(fd));
                        self.record.put(vnic, Some(inode));
                        other.map_err(switch_failed)?;
                    }
                }
            }
            Attach::VhostUser { path, mode: SocketMode::Client, .. } => {
                self.dial(vnic, path)?;
                self.record.put(vnic, None);
            }
            Attach::Tap { name: interface, netns } => {
                let existing = self.duplicates.remove(name);
                let existing = existing.or_else(|| self.inherited_tap(name, interface, netns.as_deref()));
                let existing = match existing {
                    Some(Duplicate::Tap(queues))
                        if queues.len() == usize::from(vnic.queues)
                            && tap::broken(&queues[0], interface).is_none() =>
                    {
                        let netns = self.namespace(netns.as_deref()).map_err(PlaceError::Failed)?;
                        tap::configure(vnic, interface, netns).map_err(PlaceError::Failed)?;
                        Some(queues)
                    }
                    _ => None,
                };
                let is_new = existing.is_none();
                let queues = match existing {
                    Some(queues) => queues,
                    None => {
                        let netns = self.namespace(netns.as_deref()).map_err(PlaceError::Failed)?;
                        tap::create(vnic, interface, netns).map_err(PlaceError::Failed)?
                    }
                };
                let result = self.switch.ask(|s| s.set_port(vnic, Attachment::Tap(&queues)));
                if result.is_ok() || !is_new {
                    // Kept even where it was refused: the interface may carry addresses by now.
                    self.duplicates.insert(name.clone(), Duplicate::Tap(queues));
                }
                result.map_err(switch_failed)?;
                self.record.put(vnic, None);
            }
            Attach::Netdev { .. } | Attach::Vf { .. } => {
                return Err(PlaceError::Failed(format!("vNIC {name} is not an attachment of the switch")));
            }
        }
        Ok(())
    }

    /// Makes a port on the connection that a switch before left it, else with `link`.
    fn connect_port(
        &mut self,
        vnic: &Vnic,
        listener: Option<BorrowedFd<'_>>,
        link: Attachment<'_>,
    ) -> Result<(), SwitchError> {
        let connection = self.switch.predecessor.connections.remove(&vnic.name);
        let Some(connection) = connection.filter(|connection| self.is_connection_of(connection, vnic)) else {
            return self.switch.ask(|s| s.set_port(vnic, link));
        };
        let restored =
            Attachment::Restored { listener, saved: &connection.saved, descriptors: &connection.descriptors };
        let result = self.switch.ask(|s| s.set_port(vnic, restored));
        match result {
            Err(SwitchError::Refused(why)) => {
                tracing::warn!(vnic = vnic.name, why, "its front end has to connect again");
                self.switch.ask(|s| s.set_port(vnic, link))
            }
            result => {
                // Until the switch says itself what it has: it may be killed before.
                self.switch.predecessor.connections.insert(vnic.name.clone(), connection);
                result
            }
        }
    }

    /// A port whose front end does not listen yet is made without one, and dialled again later.
    fn dial(&mut self, vnic: &Vnic, path: &Path) -> Result<(), PlaceError> {
        if self.switch.predecessor.connections.contains_key(&vnic.name) && !self.switch_has(&vnic.name)? {
            // A connection that has ended, should the other one be refused.
            let (ended, _) = socket_pair()?;
            self.connect_port(vnic, None, Attachment::Stream(ended.as_fd())).map_err(switch_failed)?;
            self.waiting.remove(&vnic.name);
            return Ok(());
        }
        let dialled = match self.paths.sockets.entry(path) {
            Ok(entry) => socket::dial(&entry),
            Err(e @ PathError::Outside { .. }) => return Err(PlaceError::Failed(e.to_string())),
            Err(e) => Dialled::NotListening(e.to_string()),
        };
        match dialled {
            Dialled::Connected(stream) => {
                let stream = Foreign::new(stream, &self.switch.budget);
                self.switch
                    .ask(|s| s.set_port(vnic, Attachment::Stream(stream.as_fd())))
                    .map_err(switch_failed)?;
                self.waiting.remove(&vnic.name);
                tracing::info!(vnic = vnic.name, "connected to the front end");
            }
            other => {
                let why = match other {
                    Dialled::NotListening(why) => why,
                    _ => format!("the front end at {} is busy", path.display()),
                };
                if !self.switch_has(&vnic.name)? {
                    // A connection that has ended: the port is there, and says that it is disconnected.
                    let (ended, _) = socket_pair()?;
                    self.switch
                        .ask(|s| s.set_port(vnic, Attachment::Stream(ended.as_fd())))
                        .map_err(switch_failed)?;
                }
                if self.waiting.insert(vnic.name.clone(), why.clone()).is_none() {
                    tracing::info!(vnic = vnic.name, why, "dialling every half second");
                }
            }
        }
        Ok(())
    }

    fn switch_has(&mut self, name: &str) -> Result<bool, PlaceError> {
        Ok(self.switch.ask(|s| s.client.ports()).map_err(switch_failed)?.iter().any(|p| p.vnic.name == name))
    }

    pub(crate) fn change(&mut self, from: &Vnic, to: &Vnic) -> Result<(), PlaceError> {
        self.switch.ask(|s| s.set_port(to, Attachment::Unchanged)).map_err(switch_failed)?;
        if let Err(why) = self.adjust(from, to) {
            self.switch.ask(|s| s.set_port(from, Attachment::Unchanged)).map_err(switch_failed)?;
            if let Err(e) = self.adjust(to, from) {
                tracing::warn!(vnic = to.name, error = e, "cannot undo the change of the attachment");
            }
            return Err(PlaceError::Failed(why));
        }
        let socket = self.socket_of(to);
        self.record.put(to, socket);
        Ok(())
    }

    /// Applies to the attachment what can change while it is in use.
    fn adjust(&self, from: &Vnic, to: &Vnic) -> Result<(), String> {
        match (&from.attach, &to.attach) {
            (
                Attach::VhostUser { owner: old, .. },
                Attach::VhostUser { path, mode: SocketMode::Server, owner },
            ) if old != owner => {
                let unknown = || format!("{} is no socket of ours", path.display());
                let socket = self.socket_of(to).ok_or_else(unknown)?;
                socket::set_owner(&self.entry(path)?, socket, owner)
            }
            (Attach::Tap { .. }, Attach::Tap { name, netns }) if (from.mac, from.mtu) != (to.mac, to.mtu) => {
                tap::configure(to, name, self.namespace(netns.as_deref())?)
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn reconnect(&mut self, vnic: &Vnic) -> Result<(), PlaceError> {
        let earlier = self.record.get(&vnic.name).map_or(Earlier::None, Entry::earlier);
        if !matches!(&vnic.attach, Attach::VhostUser { mode: SocketMode::Client, .. }) {
            drop(self.take_links(vnic));
        }
        self.switch.predecessor.connections.remove(&vnic.name);
        let before = self.record.get(&vnic.name).cloned();
        let made = self.link(vnic, earlier);
        if let Err(PlaceError::Failed(_)) = made {
            self.record.set(&vnic.name, before);
        }
        made
    }

    pub(crate) fn remove(&mut self, vnic: &Vnic) -> Result<(), PlaceError> {
        let name = vnic.name.as_str();
        if self.switch_has(name)? {
            self.switch.ask(|s| s.client.remove_port(name)).map_err(switch_failed)?;
        }
        self.switch.predecessor.connections.remove(name);
        drop(self.take_links(vnic));
        self.waiting.remove(name);
        let made = self.record.remove(name);
        if let Attach::VhostUser { path, mode: SocketMode::Server, .. } = &vnic.attach
            && let Some(made) = made
            && !self.is_of_another_vnic(vnic, path)
        {
            match self.entry(path) {
                Ok(entry) => socket::remove(&entry, made.earlier()),
                Err(why) => tracing::warn!(vnic = name, why, "its socket is left where it is"),
            }
        }
        Ok(())
    }

    /// Whether the file at `path`, where `vnic` had its socket, may be that of another vNIC of ours. A vNIC that
    /// handed the path over has noted a file that is gone, if the agent died before it struck that out.
    fn is_of_another_vnic(&self, vnic: &Vnic, path: &Path) -> bool {
        let others = self.record.iter().filter(|(_, other)| same_socket(&other.vnic, vnic));
        let there = self.socket_at(path);
        others
            .map(|(_, other)| other.socket)
            .any(|recorded| there.is_none() || recorded.is_none_or(|_| recorded == there))
    }

    pub(crate) fn adopt(&mut self, vnic: &Vnic) -> Result<(), PlaceError> {
        let socket = self.socket_of(vnic);
        self.record.find(vnic, socket).map_err(not_recorded)?;
        tracing::info!(vnic = vnic.name, "took over a vNIC that was already in the switch");
        Ok(())
    }
}

fn same_socket(a: &Vnic, b: &Vnic) -> bool {
    match (&a.attach, &b.attach) {
        (Attach::VhostUser { path: p, .. }, Attach::VhostUser { path: q, .. }) => p == q,
        _ => false,
    }
}

fn socket_pair() -> Result<(UnixStream, UnixStream), PlaceError> {
    UnixStream::pair().map_err(|e| PlaceError::Failed(format!("cannot make a socket pair: {e}")))
}
