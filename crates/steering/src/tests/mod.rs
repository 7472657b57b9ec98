//! The program in C against the one in Rust, by test runs of the kernel.

#[cfg(feature = "guest-tests")]
mod chained;
mod frames;
mod host;
mod looking_up;
mod parsing;
mod run;
#[cfg(feature = "guest-tests")]
mod stock;
mod tunnels;
mod veth;
