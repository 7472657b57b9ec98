//! The rules of the `[host]` table.

use super::cores;
use super::rules::{Problem, Rules};
use super::vnic::{DEADLINE, SIZE, interface_name};
use crate::{Aggregate, Host, Nanos};
use std::ops::RangeInclusive;

/// `busy-poll`, of each second.
const BUSY_POLL: RangeInclusive<Nanos> = Nanos::new(0)..=Nanos::new(1_000_000_000);
/// Period of the traffic-engineering loop.
const PERIOD: RangeInclusive<Nanos> = Nanos::new(10_000_000)..=Nanos::new(1_000_000_000);

/// Checks the `[host]` table. Problems have its keys.
pub(crate) fn check_host(host: &Host) -> Result<(), Vec<Problem>> {
    let mut rules = Rules::default();
    rules.check_range("host-latency", host.host_latency, Nanos::new(1)..=*DEADLINE.end());
    rules.check_range("busy-poll", host.busy_poll, BUSY_POLL);
    rules.check_range("flood-burst", host.flood_burst, SIZE);
    for (name, nic) in &host.nic {
        if let Err(message) = interface_name(name) {
            rules.add_problem(&format!("nic.{name}"), message);
        }
        rules.check_range(&format!("nic.{name}.period"), nic.period, PERIOD);
        for (segment, Aggregate { max, min }) in &nic.segment {
            if let (Some(max), Some(min)) = (max, min)
                && min > max
            {
                let key = format!("nic.{name}.segment.{segment}.min");
                rules.add_problem(
                    &key,
                    format!("min {min} is over max {max}; a guarantee cannot exceed the limit"),
                );
            }
        }
    }
    cores::check(&mut rules, host);
    rules.result()
}
