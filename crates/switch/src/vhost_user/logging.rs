//! The dirty log, from the front end's messages.
//!
//! ```text
//!  SET_LOG_BASE ───────────── area ─┐
//!  SET_FEATURES ──────────── LOG_ALL ├─▶ DirtyLog ─▶ PortControl::set_log
//!  SET_VRING_ADDR ─ VHOST_VRING_F_LOG┘
//! ```
//!
//! Either of the two begins it, and then all writes are noted, used rings too: a page too many is only sent
//! once more.

use super::saved::{Numbered, SavedLog};
use crate::quota::Charge;
use crate::virtio::log::LogError;
use crate::virtio::{DirtyLog, GuestMemory, LogArea};
use std::sync::Arc;

/// SET_LOG_BASE and LOG_ALL.
#[derive(Default)]
pub struct Logging {
    /// SET_FEATURES with LOG_ALL.
    pub all: bool,
    /// Writes are noted now.
    pub on: bool,
    base: Option<Base>,
}

/// SET_LOG_BASE.
pub struct Base {
    area: Arc<LogArea>,
    /// For the agent, which stores it for a restart.
    file: Numbered,
    size: u64,
    offset: u64,
}

impl Logging {
    /// SET_LOG_BASE: maps the log. Returns the one before, to be given up.
    ///
    /// # Errors
    /// It cannot be used.
    pub fn set_base(
        &mut self,
        file: Numbered,
        size: u64,
        offset: u64,
        charge: Charge,
    ) -> Result<Option<Base>, LogError> {
        let area = Arc::new(LogArea::map(&file, size, offset)?.charged(charge));
        Ok(self.base.replace(Base { area, file, size, offset }))
    }

    /// Returns the log for writes to `memory`, if there is one. `rings` are the used rings to note: guest
    /// address and bytes of each.
    ///
    /// # Errors
    /// The log has no bit for some of it.
    pub fn log(
        &self,
        memory: Option<&Arc<GuestMemory>>,
        rings: &[(u64, u64)],
    ) -> Result<Option<DirtyLog>, LogError> {
        let (Some(base), Some(memory)) = (&self.base, memory) else { return Ok(None) };
        if !self.all && rings.is_empty() {
            return Ok(None);
        }
        let log = DirtyLog::new(base.area.clone(), memory.clone())?;
        rings.iter().try_for_each(|(at, len)| log.covers(*at, *len))?;
        Ok(Some(log))
    }

    /// Returns the state that another process needs, and the descriptor.
    pub fn saved_log(&self) -> Option<(SavedLog, Numbered)> {
        self.base.as_ref().map(|Base { file, size, offset, .. }| {
            (SavedLog { file: file.number(), size: *size, offset: *offset }, file.clone())
        })
    }
}
