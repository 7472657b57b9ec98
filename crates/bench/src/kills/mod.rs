//! What [`kills`](crate::commands::kills) is made of.
//!
//! ```text
//!  host: agent and switch, child processes     guests: two, on a thread of their own
//! ```

pub mod guests;
pub mod host;
