//! How long frames, or loops of a worker, took.

use crate::Histogram;
use serde::{Deserialize, Serialize};

/// How long each of many took, in nanoseconds: frames (Tr - Ts), or loops of a worker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delay {
    /// How many: frames delivered, or loops.
    pub count: u64,
    /// Median.
    pub p50: u64,
    /// 99 % took no longer.
    pub p99: u64,
    /// 99.9 % took no longer.
    pub p999: u64,
    /// The worst, exactly.
    pub max: u64,
    /// Non-empty buckets: (largest value, how many).
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
