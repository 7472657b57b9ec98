//! The HTTP API on a Unix socket.
//!
//! ```text
//!  command line, curl ──▶ routes ── reads ───▶ Published (last half second)
//!                           │  └─── changes ─▶ Command ─▶ reconciler ─▶ answer
//!                           ├─ capture ──▶ place ─▶ pipe ─▶ body
//!                           └─ /metrics, /openapi.json
//! ```
//!
//! - [`types`], [`status`]: what is answered
//! - `routes`: who answers it
//! - `error`: refusals and their status codes
//! - `capture`: a pipe as a response body
//! - `listener`: how many clients, and for how long
//! - `metrics`: Prometheus text

pub mod status;
pub mod types;

pub(crate) mod capture;
pub(crate) mod error;
pub(crate) mod listener;
pub(crate) mod metrics;
pub(crate) mod routes;
