//! The in-flight region of the queues (vhost-user, "Inflight I/O tracking").

use super::super::reply::{Reply, Result, refuse};
use super::super::saved::SharedFd;
use super::Connection;
use crate::virtio::{Inflight, MAX_ENTRIES, QueueInflight};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use vhost::vhost_user::message::VhostUserInflight;

impl Connection<'_> {
    /// GET_INFLIGHT_FD: a new region, for at least as many queues as the port has.
    pub(super) fn get_inflight_fd(&mut self, wanted: &VhostUserInflight) -> Result<Reply> {
        const MESSAGE: &str = "GET_INFLIGHT_FD";
        self.check_all_stopped(MESSAGE)?;
        let (queues, entries) = (wanted.num_queues.max(self.queue_pairs * 2), wanted.queue_size);
        let inflight = Inflight::create(queues, entries).map_err(|why| format!("{MESSAGE}: {why}"))?;
        let payload = [&inflight.bytes().to_ne_bytes()[..], &[0; 8], &queues.to_ne_bytes()];
        let payload = [&payload.concat()[..], &entries.to_ne_bytes(), &[0; 4]].concat();
        self.use_inflight(MESSAGE, inflight)?;
        self.service.shared().other = true;
        Ok(Reply { payload, descriptor: self.inflight_file.clone() })
    }

    /// SET_INFLIGHT_FD: a region of GET_INFLIGHT_FD, of this connection or one before, described by `description`
    /// if present. Queues that it shows in service are recovered when they start.
    pub(super) fn set_inflight_fd(
        &mut self,
        message: &str,
        file: &SharedFd,
        description: Option<&VhostUserInflight>,
    ) -> Result<()> {
        let inflight =
            Inflight::open(duplicate(message, file)?).map_err(|why| format!("{message}: {why}"))?;
        let made = (inflight.bytes(), 0, inflight.queues(), inflight.entries());
        if description.is_some_and(|g| (g.mmap_size, g.mmap_offset, g.num_queues, g.queue_size) != made) {
            return refuse(format!(
                "{message}: size, offset, queues or entries differ from those of GET_INFLIGHT_FD"
            ));
        }
        self.check_all_stopped(message)?;
        let (queues, has) = (inflight.queues(), self.vrings.len());
        if usize::from(queues) < has {
            return refuse(format!("{message}: the region is for {queues} queues, but the port has {has}"));
        }
        self.service.shared().other = true;
        self.use_inflight(message, inflight)
    }

    fn use_inflight(&mut self, message: &str, inflight: Inflight) -> Result<()> {
        let file = self.numbered(message, Arc::new(duplicate(message, inflight.fd())?))?;
        let before = (self.inflight_file.replace(file), self.inflight.replace(inflight));
        self.service.errands.give_up(before);
        Ok(())
    }

    fn check_all_stopped(&self, message: &str) -> Result<()> {
        match self.vrings.iter().position(|vring| vring.running) {
            Some(index) => refuse(format!("{message}: queue {index} is running")),
            None => Ok(()),
        }
    }

    /// Returns the part of queue `index` in the region, made if missing.
    pub(super) fn queue_inflight(&mut self, index: u16, size: u16) -> Result<QueueInflight> {
        const MESSAGE: &str = "SET_VRING_KICK";
        if self.inflight.is_none() {
            // Of any size: unwritten parts take no memory.
            let made = Inflight::create(self.queue_pairs * 2, MAX_ENTRIES);
            self.use_inflight(MESSAGE, made.map_err(|why| format!("{MESSAGE}: in-flight region: {why}"))?)?;
        }
        let Some(inflight) = &self.inflight else { return refuse("no in-flight region") };
        let (queues, entries) = (inflight.queues(), inflight.entries());
        match inflight.queue(index).filter(|_| size <= entries) {
            Some(queue) => Ok(queue),
            None => refuse(format!(
                "{MESSAGE}: queue {index} of {size} entries, but the in-flight region is for \
                 {queues} queues of {entries}"
            )),
        }
    }
}

fn duplicate(message: &str, file: impl AsFd) -> Result<OwnedFd> {
    Ok(file.as_fd().try_clone_to_owned().map_err(|why| format!("{message}: {why}"))?)
}
