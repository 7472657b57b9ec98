//! Waits of each netdev's frames, measured by eBPF programs.
//!
//! Measurement is no part of a promise: without it, limits hold all the same, and the vNIC states why there
//! is no delay.

use crate::ebpf::{ArrivalSource, Meter, MeterError, Queue};
use std::collections::BTreeMap;
use tidegate_evidence::{Delay, Histogram};

/// The programs, once there is something to measure.
#[derive(Debug, Default)]
pub struct WaitMeter {
    meter: Option<Result<Meter, String>>,
    /// The measured queues.
    watched: BTreeMap<Queue, ArrivalSource>,
}

/// The results of one direction.
#[derive(Clone, Debug, Default)]
pub struct Waited {
    /// Waits of its frames.
    pub delay: Delay,
    /// Time with frames waiting for tokens, ns.
    pub throttled_ns: u64,
}

impl WaitMeter {
    /// Measures these queues and no others; returns the known results. An error has the reason of a missing
    /// measurement.
    pub fn measure(
        &mut self,
        queues: &BTreeMap<Queue, ArrivalSource>,
    ) -> Result<BTreeMap<Queue, Waited>, String> {
        if queues.is_empty() {
            // The programs end with it: a host without limits pays nothing per frame.
            self.meter = None;
            self.watched.clear();
            return Ok(BTreeMap::new());
        }
        let load = || {
            let loaded = Meter::load().map_err(|e| e.to_string());
            loaded.inspect_err(|why| tracing::warn!("how long frames wait is not measured: {why}"))
        };
        match self.meter.get_or_insert_with(load) {
            Ok(meter) => read(meter, &mut self.watched, queues).map_err(|e| e.to_string()),
            Err(why) => Err(why.clone()),
        }
    }
}

fn read(
    meter: &Meter,
    watched: &mut BTreeMap<Queue, ArrivalSource>,
    queues: &BTreeMap<Queue, ArrivalSource>,
) -> Result<BTreeMap<Queue, Waited>, MeterError> {
    // A queue whose frames now come in another way begins anew.
    let goes_on = |queue: &Queue, arrival: &ArrivalSource| queues.get(queue) == Some(arrival);
    let gone: Vec<Queue> =
        watched.iter().filter(|(q, arrival)| !goes_on(q, arrival)).map(|(q, _)| *q).collect();
    for queue in gone {
        watched.remove(&queue);
        meter.forget(queue)?;
    }
    let mut measured = BTreeMap::new();
    for (queue, arrival) in queues {
        if !watched.contains_key(queue) {
            meter.watch(*queue, *arrival)?;
            watched.insert(*queue, *arrival);
        }
        if *arrival != ArrivalSource::Unknown
            && let Some(waits) = meter.read(*queue)?
            && let Some(histogram) = Histogram::recorded(waits.max, waits.sum, waits.buckets)
        {
            let delay = Delay::from(&histogram);
            measured.insert(*queue, Waited { delay, throttled_ns: waits.throttled_ns });
        }
    }
    Ok(measured)
}
