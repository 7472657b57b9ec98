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
//! - `listener`: clients come and go, none keeps others waiting
//! - `room`: how many clients, and which one has to go for another
//! - `turns`: one change of each user at a time
//! - `written`: answers, off the thread that serves clients
//! - `metrics`: Prometheus text

pub mod status;
pub mod types;

pub(crate) mod capture;
pub(crate) mod error;
pub(crate) mod listener;
pub(crate) mod metrics;
pub(crate) mod room;
pub(crate) mod routes;
pub(crate) mod turns;
pub(crate) mod written;
