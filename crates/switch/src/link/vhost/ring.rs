//! One virtqueue and its notifications.

use crate::vhost_user::kick::Kick;
use crate::vhost_user::notifier::Call;
use crate::vhost_user::{VringSetup, used_bytes};
use crate::virtio::{DirtyLog, Queue};

/// One virtqueue and its notifications. Fields in this order: a turn needs the first ones.
#[repr(C)]
pub struct Ring {
    /// SET_VRING_ENABLE.
    pub enabled: bool,
    /// Entries were completed and not yet published.
    pub dirty: bool,
    /// The ring.
    pub queue: Queue,
    /// Our notification of the driver.
    pub call: Option<Call>,
    /// The driver's notification.
    pub kick: Option<Kick>,
    /// Its part in the dirty log.
    pub written: Box<Written>,
}

/// A ring's parts that the device writes: addresses of the front end, and bytes.
pub struct Written {
    /// The used ring, or the event suppression of a packed one.
    used: (u64, u64),
    /// The descriptors of a packed ring; otherwise empty.
    descriptors: (u64, u64),
    /// A guest address at which the front end wants the used ring noted too.
    pub used_log: Option<u64>,
}

impl Written {
    pub(super) fn new(setup: &VringSetup, packed: bool) -> Self {
        let entries = if packed { setup.size } else { 0 };
        Self {
            used: (setup.used, used_bytes(packed, setup.size)),
            descriptors: (setup.desc, 16 * u64::from(entries)),
            used_log: setup.log,
        }
    }

    #[cold]
    fn mark(&self, log: &DirtyLog) {
        let Self { used, descriptors, used_log } = self;
        log.mark_user(used.0, used.1);
        log.mark_user(descriptors.0, descriptors.1);
        if let Some(at) = used_log {
            log.mark_guest(*at, used.1);
        }
    }
}

impl Ring {
    /// Shows completions to the driver, and calls it if it asked for that.
    #[inline]
    pub fn flush(&mut self, log: Option<&DirtyLog>) {
        if !std::mem::take(&mut self.dirty) {
            return;
        }
        let wanted = self.queue.publish();
        if let Some(log) = log {
            self.mark(log);
        }
        if wanted && let Some(call) = &self.call {
            call.signal();
        }
    }

    /// Notes all device-written parts of the ring: few pages, and no state.
    pub fn mark(&self, log: &DirtyLog) {
        self.written.mark(log);
    }
}
