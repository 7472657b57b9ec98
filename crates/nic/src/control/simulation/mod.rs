//! Links, senders and late counters, simulated.
