//! A `[remote.NAME]` table to a [`Remote`].

use super::{keys, reader::Table};
use crate::{Bytes, Envelope, Mac, Nanos, Rate, Remote, Segment};

pub(super) fn read(table: &Table<'_>, name: String) -> Remote {
    table.check_known_keys(keys::REMOTE);
    for (key, example) in [
        ("mac", "mac = \"52:54:00:00:00:09\""),
        ("segment", "segment = 42"),
        ("peer", "peer = \"host2\" (a peer of an uplink: the host where it is)"),
    ] {
        if !table.has(key) {
            table.report_missing(key, example);
        }
    }
    let placeholder = Mac([2, 0, 0, 0, 0, 0]);
    let mac = table.text("mac", "a MAC address such as \"52:54:00:00:00:09\"", placeholder);
    let segment = table.integer("segment", &(0..=(1u32 << 24) - 1));
    let remote = Remote {
        name,
        mac: mac.unwrap_or(placeholder),
        segment: segment.and_then(Segment::new).unwrap_or_else(|| Segment::new(0).expect("in range")),
        peer: table
            .text("peer", "the name of a peer", "stand-in".into())
            .unwrap_or_else(|| "stand-in".into()),
        addresses: table.texts("addresses", "an IP address such as \"10.9.0.2\""),
        tx: table.table("tx").map_or_else(Envelope::default, |tx| read_envelope(&tx)),
        deadline: table.text("deadline", "a duration such as \"500us\"", Nanos::new(1_000_000_000)),
        to: table.texts("to", "the name of a vNIC of this host"),
    };
    table.report_problems(remote.check());
    remote
}

fn read_envelope(table: &Table<'_>) -> Envelope {
    table.check_known_keys(keys::REMOTE_TX);
    Envelope {
        max: table.text("max", "a rate such as \"10mbit\"", Rate::MAX),
        burst: table.text("burst", "a size such as \"4kB\"", Bytes::new(1_000_000_000)),
    }
}
