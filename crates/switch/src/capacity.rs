//! Size limits of a switch.

/// Most vNICs of one switch.
pub const VNICS: usize = 1024;
/// Most workers of one switch.
pub const WORKERS: usize = 64;
