//! Congestion marks through a tunnel (RFC 6040, normal mode).
//!
//! ```text
//!  inner mark ── copied ──▶ outer mark ── network may set CE ──▶ combined ──┬▶ inner mark for the receiver
//!      └───────────────────────────────────────────────────────────▲       └▶ none: the frame is dropped
//! ```

/// The sender does not understand marks.
pub const NOT_ECT: u8 = 0;
/// The sender understands marks; a network may treat such frames as low-latency (RFC 9331).
pub const ECT_1: u8 = 1;
/// The sender understands marks.
pub const ECT_0: u8 = 2;
/// Congestion experienced.
pub const CE: u8 = 3;

/// Returns the mark of a frame that leaves the tunnel (RFC 6040, section 4.2); `None` if the frame must be dropped: the
/// network signals congestion, and the sender would not understand. Only the lowest two bits of both marks count.
#[inline]
pub const fn combined(inner: u8, outer: u8) -> Option<u8> {
    match (inner & 3, outer & 3) {
        (NOT_ECT, CE) => None,
        (NOT_ECT, _) => Some(NOT_ECT),
        (_, CE) | (CE, _) => Some(CE),
        (ECT_0, ECT_1) => Some(ECT_1),
        (inner, _) => Some(inner),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Figure 4 of RFC 6040, row by row.
    #[test]
    fn the_table_of_the_rfc() {
        let outers = [NOT_ECT, ECT_0, ECT_1, CE];
        let table = [
            (NOT_ECT, [Some(NOT_ECT), Some(NOT_ECT), Some(NOT_ECT), None]),
            (ECT_0, [Some(ECT_0), Some(ECT_0), Some(ECT_1), Some(CE)]),
            (ECT_1, [Some(ECT_1), Some(ECT_1), Some(ECT_1), Some(CE)]),
            (CE, [Some(CE), Some(CE), Some(CE), Some(CE)]),
        ];
        for (inner, expected) in table {
            assert_eq!(outers.map(|outer| combined(inner, outer)), expected, "inner {inner}");
            assert_eq!(outers.map(|outer| combined(inner | 0xb8, outer | 0xb8)), expected, "with a DSCP");
        }
    }
}
