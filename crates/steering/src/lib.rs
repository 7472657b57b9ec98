//! Received frames of a NIC to CPUs by flow (source: VSE, a virtual switch extension), by XDP.
