//! Families of metrics, as OpenMetrics text has them.
//!
//! ```text
//!  name, help, (labels, value), ... ──▶ Families::family ──┐
//!  name, help, (labels, Delay), ... ──▶ Families::delays ──┴──▶ DescriptorEncoder
//! ```

use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder};
use prometheus_client::metrics::MetricType;
use std::fmt;
use tidegate_evidence::{Delay, total};

/// Upper ends of the delay buckets, microseconds: 1, 2, 5 in every decade from 1 us to 10 s.
const BUCKETS: [u64; 22] = [
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000,
    500_000, 1_000_000, 2_000_000, 5_000_000, 10_000_000,
];

pub(super) const NANOS: f64 = 1e-9;

pub(super) type Labels<'a> = Vec<(&'static str, &'a str)>;

#[derive(Clone, Copy)]
pub(super) enum Kind {
    Counter,
    Gauge,
}
use Kind::{Counter, Gauge};

/// Where families of metrics are written to.
pub(super) struct Families<'a, 'b>(pub(super) &'a mut DescriptorEncoder<'b>);

impl Families<'_, '_> {
    /// Writes a family of metrics; none without a value.
    pub(super) fn family<'l>(
        &mut self,
        name: &str,
        help: &str,
        kind: Kind,
        values: impl Iterator<Item = (Labels<'l>, f64)>,
    ) -> fmt::Result {
        let metric_type = match kind {
            Counter => MetricType::Counter,
            Gauge => MetricType::Gauge,
        };
        let mut values = values.peekable();
        if values.peek().is_none() {
            return Ok(());
        }
        let mut encoder = self.0.encode_descriptor(name, help, None, metric_type)?;
        for (labels, value) in values {
            if labels.is_empty() {
                write(&mut encoder, kind, value)?;
            } else {
                write(&mut encoder.encode_family(&labels)?, kind, value)?;
            }
        }
        Ok(())
    }

    /// Writes a family of histograms; none without a histogram.
    pub(super) fn delays<'l>(
        &mut self,
        help: &str,
        name: &str,
        values: impl Iterator<Item = (Labels<'l>, &'l Delay)>,
    ) -> fmt::Result {
        let mut values = values.peekable();
        if values.peek().is_none() {
            return Ok(());
        }
        let mut encoder = self.0.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for (labels, delay) in values {
            encoder.encode_family(&labels)?.encode_histogram::<[(&str, &str); 0]>(
                sum(delay),
                total(delay.buckets.iter().map(|(_, n)| *n)),
                &buckets(delay),
                None,
            )?;
        }
        Ok(())
    }
}

fn write(encoder: &mut MetricEncoder<'_>, kind: Kind, value: f64) -> fmt::Result {
    match kind {
        Counter => encoder.encode_counter::<[(&str, &str); 0], f64, f64>(&value, None),
        Gauge => encoder.encode_gauge(&value),
    }
}

fn sum(delay: &Delay) -> f64 {
    // Not `sum`: the sum of nothing is -0.0.
    delay.buckets.iter().fold(0.0, |sum, (upper, n)| sum + *upper as f64 * *n as f64) * NANOS
}

/// Returns pairs: le in seconds, frames in this bucket. A fine bucket counts where its upper end lies.
fn buckets(delay: &Delay) -> Vec<(f64, u64)> {
    let mut rest = delay.buckets.iter().peekable();
    let mut up_to = |limit: u64| {
        let mut n = 0;
        while let Some((_, count)) = rest.next_if(|(upper, _)| *upper <= limit) {
            n = count.saturating_add(n);
        }
        n
    };
    let mut buckets: Vec<(f64, u64)> =
        BUCKETS.iter().map(|us| (*us as f64 / 1e6, up_to(us * 1_000))).collect();
    buckets.push((f64::INFINITY, up_to(u64::MAX)));
    buckets
}
