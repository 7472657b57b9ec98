//! The cores place: which CPU does which part of a packet's work, on the whole host.
//!
//! ```text
//!  sysfs, proc, cgroups ─▶ machine, discover, load, conflicts ─▶ Found ────────────────┐
//!  all places: stages, contracts, evidence ────────────────────────────────────────────┴▶ plan (pure) ─┐
//!       ┌───────────────────────┬──────────────────────────────────────────────────────────────────────┘
//!       ▼                       ▼
//!  Consider ─▶ planner     Keep ─▶ settings: threads, interrupts, queues, halts ─▶ record: each value before, on disk
//!  the next look           └▶ directions: CPU of each worker, worker of each vNIC ─▶ the host switch
//!  has its plan
//! ```
//!
//! No vNIC is attached here. Without a plan (`[host.cores] placement`) the place keeps the CPUs of real-time workers free, no more.
//!
//! The place:
//! - `place`: as the agent knows it
//! - `action`, `plan`: from the work of the whole host to actions (pure)
//! - `question`: the planner's question (pure)
//! - `in_force`: the placement that an earlier agent left (pure)
//! - `choice`: whose choice the CPUs of a stage are (pure)
//! - `immovable`: stages that could not be moved (pure)
//! - `placed`: from a plan to settings (pure)
//! - `workers`, `keep_off`: CPUs of real-time workers, without a plan (pure)
//! - `sight`: whether the switch answers, and real-time frames flow
//! - `facts`: what a look found
//! - `background`, `planner`: plans, and looks, in threads of their own
//! - `target`, `settled`: the values of settings, and when they are set
//! - `kept`, [`settings`]: settings set, kept, put back
//! - `threads`: the agent's own threads
//! - `steered`: received frames of NICs to CPUs, by flow
//!
//! Costs:
//! - [`calibrate`]: what stages that share a CPU, and handovers, cost on this machine
//!
//! Discovery:
//! - [`roots`]: the folders that it reads
//! - [`machine`]: the host's CPUs
//! - [`discover`]: stages, and frames between them
//! - [`load`]: what stages cost
//! - [`conflicts`]: other software that places the same work
//! - `watched`: the knowledge that a look needs
//! - `report`: the machine, the stages and the plan, for readers (pure)

mod action;
mod background;
pub mod calibrate;
mod choice;
pub mod conflicts;
pub mod discover;
mod facts;
mod immovable;
mod in_force;
mod keep_off;
mod kept;
pub mod load;
pub mod machine;
mod place;
mod placed;
mod plan;
mod planner;
mod question;
mod report;
pub mod roots;
pub mod settings;
mod settled;
mod sight;
mod steered;
mod target;
mod threads;
mod watched;
mod workers;

pub use keep_off::KeepOff;
pub use place::{CoresPlace, Options, install};
