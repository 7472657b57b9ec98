//! The virtio header before every frame (virtio 1.2, 5.1.6).
//!
//! ```text
//!  0      1         2         4          6            8             10            12
//!  │flags │gso_type │ hdr_len │ gso_size │ csum_start │ csum_offset │ num_buffers │  frame…
//! ```
//!
//! All fields are little endian. A tap may use the 10-byte form, which lacks `num_buffers`.

/// Flag: the checksum at `csum_start + csum_offset` is partial.
pub const NEEDS_CSUM: u8 = 1;
/// Flag, towards a driver only: the checksum was verified.
pub const DATA_VALID: u8 = 2;

/// A plain frame.
pub const GSO_NONE: u8 = 0;
/// TCP over IPv4, to be segmented (TSO).
pub const GSO_TCPV4: u8 = 1;
/// UDP to be fragmented (UFO). Refused, see [`crate::frame::offload`].
pub const GSO_UDP: u8 = 3;
/// TCP over IPv6, to be segmented (TSO).
pub const GSO_TCPV6: u8 = 4;
/// UDP to be segmented into datagrams (USO).
pub const GSO_UDP_L4: u8 = 5;
/// Added to a TCP type: the frame carries CWR, which belongs in the first segment only.
pub const GSO_ECN: u8 = 0x80;

/// `struct virtio_net_hdr`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VnetHdr {
    /// [`NEEDS_CSUM`], [`DATA_VALID`].
    pub flags: u8,
    /// One of the `GSO_` types, possibly with [`GSO_ECN`].
    pub gso_type: u8,
    /// Length of all headers (bytes); an unreliable hint of the sender.
    pub hdr_len: u16,
    /// L4 payload of one segment (bytes).
    pub gso_size: u16,
    /// Start of the checksummed bytes, from the start of the frame (bytes).
    pub csum_start: u16,
    /// Offset of the checksum from `csum_start` (bytes).
    pub csum_offset: u16,
    /// Merged receive buffers (device to driver).
    pub num_buffers: u16,
}

impl VnetHdr {
    /// Bytes of the header.
    pub const LEN: usize = 12;
    /// Bytes of the form without `num_buffers`.
    pub const LEGACY_LEN: usize = 10;

    /// Reads the header at the start of `bytes`; `None` if they are fewer than 12.
    #[inline]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let b = bytes.first_chunk::<{ Self::LEN }>()?;
        let mut hdr = Self::read_legacy(b)?;
        hdr.num_buffers = u16::from_le_bytes([b[10], b[11]]);
        Some(hdr)
    }

    /// Reads the 10-byte form, with `num_buffers` 0; `None` if `bytes` are fewer.
    #[inline]
    pub fn read_legacy(bytes: &[u8]) -> Option<Self> {
        let b = bytes.first_chunk::<{ Self::LEGACY_LEN }>()?;
        Some(Self {
            flags: b[0],
            gso_type: b[1],
            hdr_len: u16::from_le_bytes([b[2], b[3]]),
            gso_size: u16::from_le_bytes([b[4], b[5]]),
            csum_start: u16::from_le_bytes([b[6], b[7]]),
            csum_offset: u16::from_le_bytes([b[8], b[9]]),
            num_buffers: 0,
        })
    }

    /// Writes the header.
    #[inline]
    pub fn write(&self, out: &mut [u8; Self::LEN]) {
        let [head @ .., n0, n1] = out;
        self.write_legacy(head);
        [*n0, *n1] = self.num_buffers.to_le_bytes();
    }

    /// Writes the 10-byte form.
    #[inline]
    pub fn write_legacy(&self, out: &mut [u8; Self::LEGACY_LEN]) {
        let [h, g, c, o] =
            [self.hdr_len, self.gso_size, self.csum_start, self.csum_offset].map(u16::to_le_bytes);
        *out = [self.flags, self.gso_type, h[0], h[1], g[0], g[1], c[0], c[1], o[0], o[1]];
    }

    /// Whether the checksum is partial.
    #[inline]
    pub const fn needs_csum(&self) -> bool {
        self.flags & NEEDS_CSUM != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fields_are_where_virtio_puts_them() {
        let bytes = [1, 0x81, 54, 0, 0xb4, 5, 34, 0, 16, 0, 3, 0];
        let hdr = VnetHdr {
            flags: NEEDS_CSUM,
            gso_type: GSO_TCPV4 | GSO_ECN,
            hdr_len: 54,
            gso_size: 1460,
            csum_start: 34,
            csum_offset: 16,
            num_buffers: 3,
        };
        assert_eq!(VnetHdr::read(&bytes), Some(hdr));
        let mut out = [0; 12];
        hdr.write(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn short_input_is_none() {
        assert_eq!(VnetHdr::read(&[0; 11]), None);
        assert_eq!(VnetHdr::read_legacy(&[0; 9]), None);
        assert!(VnetHdr::read_legacy(&[0; 10]).is_some());
    }

    proptest! {
        #[test]
        fn write_inverts_read(bytes: [u8; 12]) {
            let hdr = VnetHdr::read(&bytes).unwrap();
            let mut out = [0; 12];
            hdr.write(&mut out);
            prop_assert_eq!(out, bytes);

            let mut legacy = [0; 10];
            hdr.write_legacy(&mut legacy);
            prop_assert_eq!(&legacy[..], &bytes[..10]);
            let back = VnetHdr::read_legacy(&legacy).unwrap();
            prop_assert_eq!(back, VnetHdr { num_buffers: 0, ..hdr });
        }
    }
}
