//! The HTTP API on a Unix socket.
//!
//! ```text
//!  command line, curl ──▶ routes ── reads ───▶ Board (the last half second)
//!                           │  └─── changes ─▶ Command ─▶ reconciler ─▶ answer
//!                           ├─ capture ──▶ place ─▶ pipe ─▶ body
//!                           └─ /metrics, /openapi.json
//! ```
//!
//! - `socket`: the socket file
//! - `routes`: the handler of each path
//! - `json`: JSON of answers
//! - `error`: errors and their status codes
//! - `events`: events as a stream
//! - `capture`: a pipe as a response body
//! - `listener`: clients come and go, and none delays others
//! - `room`: the clients that have a place, and the one that makes room for another
//! - `turns`: one change of each user at a time
//! - `writer`: answers, made off the thread that serves clients
//! - `metrics`: Prometheus text

pub mod capture;
pub mod error;
mod events;
pub mod json;
pub mod listener;
pub mod metrics;
pub mod room;
pub mod routes;
pub mod socket;
pub mod turns;
pub mod writer;
