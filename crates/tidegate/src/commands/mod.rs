//! One file per command. A command returns its failure; `main` turns it into the exit code.

pub mod agent;
pub mod apply;
pub mod calibrate;
pub mod capture;
pub mod clock;
pub mod completions;
pub mod controller;
pub mod cores;
pub mod decisions;
pub mod demo;
pub mod events;
mod frame_times;
pub mod libvirt;
mod not_in_force;
pub mod path;
pub mod plan;
mod rdma;
pub mod runtime;
#[cfg(test)]
mod samples;
pub mod show;
mod source;
pub mod status;
pub mod switch;
pub mod top;
pub mod topology;
pub mod uplink;
pub mod vnic;
pub mod why;
pub mod window;
