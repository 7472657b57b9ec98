//! The traffic-engineering loop: from what was counted to what limits shall be. Pure.
