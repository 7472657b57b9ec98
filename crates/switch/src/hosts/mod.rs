//! What this host's switch knows of other hosts, and tells them, beside the frames between them.
//!
//! ```text
//!  exchanges of notices ─▶ Clocks: offset and error of each peer's clock ─▶ worker: Tr - Ts of an arrival
//!  worker ─▶ Late: an arrival that missed its deadline ─▶ notice to the sender's host
//! ```
//!
//! - [`clocks`]: the offsets between clocks, as workers read them
//! - [`late`]: frames of other hosts that missed their deadlines
//! - [`notices`]: the thread that exchanges, tells and announces

pub mod clocks;
pub mod late;
pub mod notices;

pub use clocks::Clocks;
pub use late::Late;
pub use notices::Notices;
