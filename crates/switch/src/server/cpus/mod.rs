//! A CPU of its own for each worker that carries frames with deadlines.
//!
//! ```text
//!  Host (before confinement: what the process may use, which CPUs are threads of one core)
//!    │
//!    ▼                    ┌── contracts changed, a port moved, or a second passed
//!  assigner: check ◀───────┘
//!    ├─ which workers carry real-time frames ─┐
//!    ├─ which CPUs may be used now, and are ──┴▶ choice (pure) ─▶ a CPU for each, or none
//!    ├─ each worker, between two loops: to its CPU, or to those that are left
//!    └─ `housekeeping`: all other threads, to those that are left
//! ```
//!
//! - [`choice`]: which worker gets which CPU. Pure
//! - [`load`]: how much of each CPU other threads use
//! - [`list`]: CPU lists as the kernel and the command line write them. Pure
//! - [`host`]: the CPUs of the host
//! - [`assigner`]: the thread that applies the choice

pub mod assigner;
pub mod choice;
pub mod host;
pub mod list;
pub mod load;

pub use host::Host;

/// The CPUs of workers: the option `--cpus`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Cpus {
    /// The switch chooses a CPU for each worker that carries frames with deadlines.
    #[default]
    Auto,
    /// The kernel chooses for every thread.
    None,
    /// A fixed list, in the order of the workers. Workers after its end have no CPU of their own.
    List(Vec<usize>),
}

impl Cpus {
    /// Checks a list against what this process may use.
    ///
    /// # Errors
    /// The forbidden CPUs of the list, and the allowed ones.
    pub fn check(&self, host: &Host) -> Result<(), String> {
        let Self::List(wanted) = self else { return Ok(()) };
        let allowed =
            host.allowed().map_err(|error| format!("cannot read the CPUs of this process: {error}"))?;
        let wrong: Vec<usize> = wanted.iter().copied().filter(|cpu| !allowed.contains(cpu)).collect();
        if wrong.is_empty() {
            return Ok(());
        }
        Err(format!(
            "--cpus: this process may not run on CPU {}: the CPU does not exist, is offline, or is excluded \
             by a cpuset or an affinity (CPUAffinity=, AllowedCPUs=, taskset); the process may use {}",
            list::text(&wrong),
            list::text(&allowed)
        ))
    }
}
