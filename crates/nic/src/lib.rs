//! SR-IOV virtual functions: what the host says to a NIC and hears from it.

pub mod control;
