//! A guest without a virtual machine: a vhost-user front end with its own
//! memory and the driver's side of the virtqueues, for tests and benchmarks.

pub mod attack;
pub mod driver;
pub mod front_end;
pub mod memory;
mod queue;
