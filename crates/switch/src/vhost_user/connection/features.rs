//! Negotiation: virtio's features, and the protocol's own.

use super::super::features::{self, F_RING_PACKED, VHOST_F_LOG_ALL, VHOST_USER_F_PROTOCOL_FEATURES};
use super::super::reply::{Result, refuse};
use super::Connection;

impl Connection<'_> {
    /// SET_FEATURES.
    pub(super) fn set_features(&mut self, features: u64) -> Result<()> {
        let excess = features & !features::offered(self.queue_pairs);
        if excess != 0 {
            return refuse(format!("SET_FEATURES: {} not offered", features::names(excess).join(", ")));
        }
        let logs = features & VHOST_F_LOG_ALL != 0;
        let features = features & !VHOST_F_LOG_ALL;
        if std::mem::replace(&mut self.logging.all, logs) != logs {
            self.set_log("SET_FEATURES")?;
        }
        if self.features == Some(features) {
            return Ok(());
        }
        if let Some(index) = self.vrings.iter().position(|vring| vring.running) {
            return refuse(format!(
                "SET_FEATURES: the features cannot change while queue {index} is running"
            ));
        }
        if (features ^ self.features.unwrap_or(0)) & F_RING_PACKED != 0 {
            // A base of one layout is none of the other. Before the first SET_FEATURES, front ends send
            // none.
            self.vrings.iter_mut().for_each(|vring| vring.base = None);
        }
        self.features = Some(features);
        let virtio = features & !VHOST_USER_F_PROTOCOL_FEATURES;
        self.control.set_features(virtio);
        self.status.update(|now| now.features = virtio);
        Ok(())
    }

    /// SET_PROTOCOL_FEATURES.
    pub(super) fn set_protocol_features(&mut self, features: u64) -> Result<()> {
        features::check_protocol(features)?;
        self.protocol_features = features;
        self.status.update(|now| now.protocol_features = features);
        Ok(())
    }

    /// Rings are enabled only by message, if protocol features were negotiated
    /// (vhost-user, "Ring states").
    pub(super) fn starts_enabled(&self) -> bool {
        self.features.unwrap_or(0) & VHOST_USER_F_PROTOCOL_FEATURES == 0
    }

    /// Rings are packed (virtio 1.2, 2.8).
    pub(super) fn is_packed(&self) -> bool {
        self.features.unwrap_or(0) & F_RING_PACKED != 0
    }
}
