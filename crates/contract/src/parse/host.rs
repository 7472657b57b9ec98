//! The `[host]` table to a [`Host`].

use super::{cores, keys, reader::Table};
use crate::{Aggregate, Control, Host, Nic, Rate, Segment};
use std::str::FromStr;

/// A key of older releases.
const MOVED: &str = "uplink";

pub(super) fn read(table: &Table<'_>) -> Host {
    table.check_known_keys(&keys::HOST.iter().copied().chain([MOVED]).collect::<Vec<_>>());
    if table.has(MOVED) {
        let rate = table.as_str(MOVED).unwrap_or("10gbit");
        let instead = format!(
            "an uplink has a table of its own: remove this line, and write [uplink.NAME] with rate = {rate:?}, \
             local = \"ADDRESS\" and its peers"
        );
        table.report(MOVED, instead);
    }
    let default = Host::default();
    let host = Host {
        host_latency: table
            .text_of_either(
                "host-latency",
                "host_latency",
                "a duration such as \"250us\"",
                default.host_latency,
            )
            .unwrap_or(default.host_latency),
        busy_poll: table
            .text_of_either("busy-poll", "busy_poll", "a duration such as \"250ms\"", default.busy_poll)
            .unwrap_or(default.busy_poll),
        uplink: (),
        flood: table.text("flood", "a rate such as \"10mbit\"", default.flood).unwrap_or(default.flood),
        flood_burst: table
            .text_of_either("flood-burst", "flood_burst", "a size such as \"100kB\"", default.flood_burst)
            .unwrap_or(default.flood_burst),
        nic: table.table("nic").map_or_else(Default::default, |nics| {
            nics.tables().into_iter().map(|(name, nic)| (name, read_nic(&nic))).collect()
        }),
        cores: table.table("cores").map_or_else(Default::default, |cores| cores::read(&cores)),
        flow: table.table("flow").map_or_else(Default::default, |flows| {
            let read = |(name, flow): (String, Table<'_>)| Some((name, cores::read_flow(&flow)?));
            flows.tables().into_iter().filter_map(read).collect()
        }),
    };
    table.report_problems(crate::check::check_host(&host));
    host
}

fn read_nic(table: &Table<'_>) -> Nic {
    table.check_known_keys(keys::NIC);
    let default = Nic::default();
    let segments = table.table("segment").map_or_else(Vec::new, |segments| {
        let read = |(id, aggregate): (String, Table<'_>)| match id.parse::<Segment>() {
            Ok(segment) => Some((segment, read_aggregate(&aggregate))),
            Err(error) => {
                segments.report(&id, error);
                None
            }
        };
        segments.tables().into_iter().filter_map(read).collect()
    });
    Nic {
        capacity: table.text("capacity", "a rate such as \"10gbit\"", Rate::MAX),
        control: table
            .text("control", "\"auto\", \"on\" or \"off\"", default.control)
            .unwrap_or(default.control),
        period: table
            .text("period", "a duration such as \"100ms\"", default.period)
            .unwrap_or(default.period),
        segment: segments.into_iter().collect(),
    }
}

fn read_aggregate(table: &Table<'_>) -> Aggregate {
    table.check_known_keys(keys::AGGREGATE);
    let smallest = Rate::from_bits(1).expect("in range");
    Aggregate {
        max: table.text("max", "a rate such as \"2gbit\"", Rate::MAX),
        min: table.text("min", "a rate such as \"500mbit\"", smallest),
    }
}

impl FromStr for Control {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "on" => Ok(Self::On),
            "off" => Ok(Self::Off),
            _ => Err(format!("unknown control {text:?}; \"auto\", \"on\" or \"off\"")),
        }
    }
}
