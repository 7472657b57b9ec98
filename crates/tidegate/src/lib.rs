//! The assembly of Tidegate: the one crate that names the places and hands them to the agent. Everything else of it is the binary's.

pub mod places;
