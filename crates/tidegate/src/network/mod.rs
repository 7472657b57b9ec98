//! The controllers of the network, as the command line asks them.
//!
//! ```text
//!  options, environment ─┐
//!  operator.toml ────────┴─▶ Reach ──▶ Client ──▶ answers ─▶ shown: no text of others acts on a terminal
//!                                             └─▶ errors ──▶ Failure: what to do, and the exit code
//! ```
//!
//! - [`reach`]: the options, and what they mean with the file
//! - `operator`: the file
//! - [`answer`]: answers and errors of controllers, for people

pub mod answer;
mod operator;
pub mod reach;
