//! Received frames of NICs to CPUs, by flow: `[host.cores] steer`.
//!
//! ```text
//!  contracts, [host.flow] ─▶ flows ─▶ stages ─▶ planner ─▶ a CPU for each flow ─▶ tables ─▶ Steerer ─▶ XDP programs
//!                                                            CPUs for all others ─┘            └▶ counters ─▶ report
//! ```
//!
//! - [`flows`]: which flows a NIC has (pure)
//! - [`tables`]: where they go (pure)
//! - [`repairs`]: whether another program takes a table away again and again (pure)
//! - [`steerer`]: tables at devices

pub mod flows;
pub mod repairs;
pub mod steerer;
pub mod tables;
