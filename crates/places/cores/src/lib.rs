//! The cores place: which CPU does which part of a packet's work, on the whole host.
