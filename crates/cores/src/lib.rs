//! Which CPU does which part of a packet's work: the model and the planner. No I/O.
//!
//! ```text
//!  Machine: CPUs, cores, caches, nodes ─┐
//!  Stage: a thread, interrupt or queue  ├─▶ Problem ─▶ planner ─▶ Plan: a CPU for each stage, a worker for each vNIC,
//!  Link: frames from stage to stage    ─┤                          its cost, a lower bound, and what is not possible
//!  Costs: priors, or measured          ─┘
//! ```
//!
//! A *stage* is one part of the work for a vNIC's frames that runs on one CPU at a time: a NIC's interrupt, its softirq, vhost-net's
//! thread, a virtual CPU, a thread of the emulator, a worker of the host switch.
//!
//! - [`cpus`]: sets of CPUs, as text
//! - [`machine`]: CPUs, and how far they are from each other
//! - [`stage`]: the work, its load, and frames from stage to stage
//! - [`costs`]: costs of stages that share a CPU, and of frames that go from CPU to CPU
//! - [`problem`]: a question to the planner, and its answer
//! - [`planner`]: the answer: exact for small hosts, with a stated gap for large ones
//! - [`directions`]: the part of a plan that the host switch carries out

pub mod costs;
pub mod cpus;
pub mod directions;
pub mod machine;
pub mod planner;
pub mod problem;
pub mod stage;
