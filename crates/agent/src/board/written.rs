//! Answers made from a published state, stored so that each is made once.

use axum::body::Bytes;
use std::sync::OnceLock;

/// The answers, by path.
#[derive(Clone, Debug, Default)]
pub struct Written {
    /// `/v1/host`.
    pub host: OnceLock<Bytes>,
    /// `/v1/status`.
    pub status: OnceLock<Bytes>,
    /// `/v1/vnics`.
    pub vnics: OnceLock<Bytes>,
    /// `/v1/uplinks`.
    pub uplinks: OnceLock<Bytes>,
    /// `/v1/cores`.
    pub cores: OnceLock<Bytes>,
    /// `/metrics`.
    pub metrics: OnceLock<Bytes>,
}
