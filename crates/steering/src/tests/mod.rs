//! The program in C against the one in Rust, by test runs of the kernel.

mod chained;
mod frames;
mod host;
mod looking_up;
mod parsing;
mod run;
mod tunnels;
mod veth;
