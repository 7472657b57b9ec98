//! The program in Rust, against which the one in C is tested: the flow of a frame, its entry, its place. Pure.

use crate::key::{EXACT, Fields};
use crate::table::{Entry, PEER, Table};
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// Why a frame has no flow: `enum outcome` of `flow.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum No {
    Fragment = 4,
    Truncated = 5,
    Unknown = 6,
}

/// What of a frame is left.
struct Rest<'f>(&'f [u8]);

impl<'f> Rest<'f> {
    fn take(&mut self, size: usize) -> Result<&'f [u8], No> {
        let (taken, rest) = self.0.split_at_checked(size).ok_or(No::Truncated)?;
        self.0 = rest;
        Ok(taken)
    }

    fn take_u16(&mut self) -> Result<u16, No> {
        let bytes = self.take(2)?;
        Ok(u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    fn take_u32(&mut self) -> Result<u32, No> {
        Ok(u32::from(self.take_u16()?) << 16 | u32::from(self.take_u16()?))
    }

    /// Returns the destination, the first VLAN and the type.
    fn take_ethernet(&mut self) -> Result<([u8; 6], u16, u16), No> {
        let header = self.take(12)?;
        let (mut vlan, mut tags, mut kind) = (0, 0, self.take_u16()?);
        while tags < 2 && (kind == 0x8100 || kind == 0x88a8) {
            let tag = self.take(4)?;
            let id = u16::from_be_bytes([tag[0], tag[1]]) & 0xfff;
            (vlan, kind) = (if tags == 0 { id } else { vlan }, u16::from_be_bytes([tag[2], tag[3]]));
            tags += 1;
        }
        Ok((header[..6].try_into().expect("six bytes"), vlan, kind))
    }

    fn take_ip(&mut self, kind: u16, flow: &mut Fields) -> Result<(), No> {
        match kind {
            0x0800 => {
                let header = self.take(20)?;
                let words = header[0] & 15;
                if header[0] >> 4 != 4 || words < 5 {
                    return Err(No::Unknown);
                }
                self.take(usize::from(words - 5) * 4)?;
                if (header[6] & 0x3f, header[7]) != (0, 0) {
                    return Err(No::Fragment);
                }
                (flow.from, flow.to) = ([0; 16], [0; 16]);
                flow.from[..4].copy_from_slice(&header[12..16]);
                flow.to[..4].copy_from_slice(&header[16..]);
                (flow.family, flow.protocol) = (4, header[9]);
            }
            0x86dd => {
                let header = self.take(40)?;
                if header[0] >> 4 != 6 {
                    return Err(No::Unknown);
                }
                flow.from.copy_from_slice(&header[8..24]);
                flow.to.copy_from_slice(&header[24..]);
                (flow.family, flow.protocol) = (6, header[6]);
                for extension in 0.. {
                    match flow.protocol {
                        44 => return Err(No::Fragment),
                        0 | 43 | 60 => {}
                        _ => break,
                    }
                    let header = self.take(8)?;
                    self.take(usize::from(header[1]) * 8)?;
                    flow.protocol = header[0];
                    if extension == 4 {
                        return Err(No::Unknown);
                    }
                }
            }
            _ => return Err(No::Unknown),
        }
        Ok(())
    }

    fn take_ports(&mut self, flow: &mut Fields) -> Result<(), No> {
        // TCP, UDP, DCCP, SCTP, UDP-Lite.
        if [6, 17, 33, 132, 136].contains(&flow.protocol) {
            (flow.from_port, flow.to_port) = (self.take_u16()?, self.take_u16()?);
        }
        Ok(())
    }
}

/// Returns the flow of a frame.
pub(crate) fn parse(frame: &[u8], vxlan_port: u16, peers: &BTreeSet<[u8; PEER]>) -> Result<Fields, No> {
    let (mut rest, mut flow) = (Rest(frame), Fields::default());
    let (mac, vlan, kind) = rest.take_ethernet()?;
    (flow.mac, flow.vlan) = (mac, vlan);
    rest.take_ip(kind, &mut flow)?;
    let kind = match flow.protocol {
        50 => {
            (flow.tunnel, flow.id) = (4, rest.take_u32()?);
            return Ok(flow);
        }
        47 => {
            flow.tunnel = 3;
            let (flags, kind) = (rest.take_u16()?, rest.take_u16()?);
            if flags & 0x4007 != 0 {
                return Err(No::Unknown);
            }
            if flags & 0x8000 != 0 {
                rest.take(4)?;
            }
            if flags & 0x2000 != 0 {
                flow.id = rest.take_u32()?;
            }
            if flags & 0x1000 != 0 {
                rest.take(4)?;
            }
            kind
        }
        17 => {
            rest.take_ports(&mut flow)?;
            if flow.to_port != vxlan_port && flow.to_port != 6081 {
                return Ok(flow);
            }
            rest.take(4)?;
            let header = rest.take(8)?;
            flow.id = u32::from_be_bytes([0, header[4], header[5], header[6]]);
            if flow.to_port == vxlan_port {
                flow.tunnel = 1;
                flow.peer = peers.iter().any(|peer| *peer == flow.key(0)[..PEER]).into();
                if header[0] & 0x0c != 0x08 {
                    return Err(No::Unknown);
                }
                0x6558
            } else {
                flow.tunnel = 2;
                if header[0] >> 6 != 0 || header[1] >> 7 != 0 {
                    return Err(No::Unknown);
                }
                rest.take(usize::from(header[0] & 0x3f) * 4)?;
                u16::from_be_bytes([header[2], header[3]])
            }
        }
        _ => {
            rest.take_ports(&mut flow)?;
            return Ok(flow);
        }
    };
    (flow.from_port, flow.to_port, flow.mac) = (0, 0, [0; 6]);
    let kind = if kind == 0x6558 {
        let (mac, _, kind) = rest.take_ethernet()?;
        flow.mac = mac;
        kind
    } else {
        kind
    };
    rest.take_ip(kind, &mut flow)?;
    rest.take_ports(&mut flow)?;
    Ok(flow)
}

/// Returns the entry of a flow: of those that match, the exact one, else one with the most bits, else one that compares the same fields
/// as the earliest entry does.
pub(crate) fn entry<'t>(table: &'t Table, flow: &Fields) -> Option<&'t Entry> {
    let flow = flow.key(0);
    let matches = table.entries.iter().filter(|entry| {
        let (wanted, mask) = (entry.pattern.flow.key(0), entry.pattern.mask.key(0));
        flow.iter().zip(mask).map(|(byte, mask)| byte & mask).eq(wanted)
    });
    matches.max_by_key(|entry| {
        let mask = entry.pattern.mask;
        let first = table.entries.iter().position(|other| other.pattern.mask == mask);
        let bits: u32 = mask.key(0).iter().map(|byte| byte.count_ones()).sum();
        (mask == EXACT, bits, Reverse(first))
    })
}

/// Returns the place of a flow without an entry.
pub(crate) fn place(flow: &Fields, seed: u64) -> usize {
    let key = flow.key(0);
    let word = |at: usize| u64::from_ne_bytes(key[at * 8..at * 8 + 8].try_into().expect("eight bytes"));
    let words = [word(0), word(1), word(2), word(3)];
    let more = [
        u64::from(flow.id) << 8 | u64::from(flow.protocol),
        u64::from(flow.from_port) << 16 | u64::from(flow.to_port),
    ];
    let hash = words.into_iter().chain(more).fold(seed, |hash, word| {
        let hash = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        hash ^ hash >> 32
    });
    (hash.wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 54) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_with_consecutive_ports_are_spread_evenly_with_any_seed() {
        for seed in (0..200).map(|n: u64| n.wrapping_mul(0x1234_5678_9abc_def1)) {
            for ports in [(0, 1), (1, 0), (1, 1)] {
                let flow = |n: u16| {
                    let (from_port, to_port) = (6000 + n * ports.0, 6000 + n * ports.1);
                    Fields {
                        from_port,
                        to_port,
                        tunnel: 1,
                        id: 42,
                        protocol: 17,
                        family: 4,
                        ..Fields::default()
                    }
                };
                for cpus in [2, 3, 4, 7] {
                    let mut counts = vec![0; cpus];
                    (0..512).for_each(|n| counts[place(&flow(n), seed) % cpus] += 1);
                    let fair = 512 / cpus;
                    assert!(
                        counts.iter().all(|count| (fair / 3..fair * 2).contains(count)),
                        "{seed:x}: {counts:?}"
                    );
                }
            }
        }
    }
}
