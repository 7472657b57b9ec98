//! Durations of frames, or of a worker's loops.

use crate::Histogram;
use serde::{Deserialize, Serialize};

/// Statistics of durations (ns): of frames (Tr - Ts), or of a worker's loops.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delay {
    /// Number of frames delivered, or of loops.
    pub count: u64,
    /// Median.
    pub p50: u64,
    /// 99 % took no longer.
    pub p99: u64,
    /// 99.9 % took no longer.
    pub p999: u64,
    /// The longest, exactly.
    pub max: u64,
    /// Non-empty buckets: (largest value, count).
    pub buckets: Vec<(u64, u64)>,
}

impl From<&Histogram> for Delay {
    fn from(h: &Histogram) -> Self {
        Self {
            count: h.count(),
            p50: h.quantile(0.5),
            p99: h.quantile(0.99),
            p999: h.quantile(0.999),
            max: h.max(),
            buckets: h.occupied().collect(),
        }
    }
}
