//! What a service and the service manager that started it tell each other (sd_notify(3)), descriptors that processes
//! pass each other, and the CPUs of its threads.
//!
//! ```text
//!  service ── READY=1, WATCHDOG=1, MAINPID= ──▶ socket NOTIFY_SOCKET ──▶ systemd
//!          ◀─ WATCHDOG_USEC= in the environment ───────────────────────┘
//! ```
//!
//! - `notifier`: the connection to the service manager
//! - [`watchdog`]: how often it wants to hear that the service is alive
//! - `group`: the service that a process belongs to
//! - `descriptors`: all file descriptors that the service may have
//! - [`scm`]: descriptors that go with bytes over a Unix socket
//! - [`foreign`]: descriptors that another process made
//! - [`housekeeping`]: the CPUs of threads that are no workers

mod descriptors;
pub mod foreign;
mod group;
pub mod housekeeping;
mod notifier;
pub mod scm;
mod watchdog;

pub use descriptors::raise_descriptors;
pub use group::service_of;
pub use notifier::Notifier;
pub use watchdog::watchdog;
