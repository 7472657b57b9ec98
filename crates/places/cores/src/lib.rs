//! The cores place: which CPU does which part of a packet's work, on the whole host.
//!
//! ```text
//!  all places: stages, contracts, evidence ─▶ plan (pure) ─┬▶ Consider ─▶ planner, in the background ─▶ the next look has its plan
//!                                                          └▶ Keep ─▶ settings: threads, interrupts, queues, halts
//!  directions: CPU of each worker, worker of each vNIC ◀─────┘              └▶ record: each value before, on disk
//! ```
//!
//! No vNIC is attached here. Without a plan (`[host.cores] placement`) the place keeps the CPUs of real-time workers free, no more.
//!
//! - `place`: the place, as the agent knows it
//! - `action`, `plan`: from the work of the whole host to actions (pure)
//! - `question`: the planner's question (pure)
//! - `placed`: from a plan to settings (pure)
//! - `workers`, `keep_off`: CPUs of real-time workers, without a plan (pure)
//! - `sight`: whether the switch answers, and real-time frames flow
//! - `watched`: contracts, as the next look has to know them
//! - `planner`: plans in a thread of its own
//! - `target`, `settled`: the values of settings, and when they are set
//! - `kept`, [`settings`]: settings set, kept, put back
//! - `threads`: the agent's own threads

mod action;
mod keep_off;
mod kept;
mod place;
mod placed;
mod plan;
mod planner;
mod question;
pub mod settings;
mod settled;
mod sight;
mod target;
mod threads;
mod watched;
mod workers;

pub use keep_off::KeepOff;
pub use place::{CoresPlace, Options, install};
