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
//! - `json`: JSON as answers have it
//! - `error`: errors and their status codes
//! - `capture`: a pipe as a response body
//! - `listener`: clients come and go, and none delays others
//! - `room`: the number of clients, and the one that has to go for another
//! - `turns`: one change of each user at a time
//! - `writer`: answers, made off the thread that serves clients
//! - `metrics`: Prometheus text

pub mod capture;
pub mod error;
pub mod json;
pub mod listener;
pub mod metrics;
pub mod room;
pub mod routes;
pub mod socket;
pub mod turns;
pub mod writer;
