//! State that survives a killed process.
//!
//! ```text
//!  Journal<E> ── save, reserve ──▶ StateFile ── stage, commit ──▶ NAME, NAME.previous
//!  (entries by key, in memory)      │
//!                                   └─ cut::point(): a test lets the process die here
//! ```
//!
//! - `state_file`: one value in one file, replaced wholly or not at all
//! - `journal`: entries by key, written before the first step that depends on them
//! - [`cut`]: the points between two steps that leave something behind

pub mod cut;
mod journal;
mod state_file;

pub use journal::Journal;
pub use state_file::{Damage, DurableError, Loaded, Staged, StateFile};
