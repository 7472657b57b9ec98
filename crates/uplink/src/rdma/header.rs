//! What stands before each frame in a datagram.
//!
//! ```text
//!  0     2     3     4        8     9       10      12       14         16          18       32
//!  │magic│ver. │flags│sequence│flags│gso    │hdr_len│gso_size│csum_start│csum_offset│ zero   │ frame …
//!  │     big-endian           │ virtio_net_hdr, little-endian (virtio 1.2, 5.1.6) │
//! ```
//!
//! The virtio header travels so that a checksum which the guest left to its device stays unfinished up to the
//! receiving guest. No frame is a super-frame here: `gso`, `hdr_len` and `gso_size` are 0. What a sender of this
//! version leaves at 0 has to be 0: a later version may give it a meaning that must not be missed.

/// Bytes of the header.
pub const LEN: usize = 32;

/// First two bytes: "tr".
const MAGIC: u16 = 0x7472;
/// Layout of the header.
const VERSION: u8 = 1;
/// Bytes before the reserved ones.
const USED: usize = 18;
/// VIRTIO_NET_HDR_F_NEEDS_CSUM.
const NEEDS_CSUM: u8 = 1;
/// VIRTIO_NET_HDR_F_DATA_VALID.
const DATA_VALID: u8 = 2;

/// What stands before one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Number among the datagrams from one queue pair to one other, modulo 2^32.
    pub sequence: u32,
    /// The state of the frame's checksum.
    pub checksum: Checksum,
}

/// The state of a frame's TCP or UDP checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksum {
    /// It stands in the frame, if the frame has one.
    #[default]
    Complete,
    /// It was verified, or needs no verification (VIRTIO_NET_HDR_F_DATA_VALID).
    Verified,
    /// It is partial (VIRTIO_NET_HDR_F_NEEDS_CSUM). Hostile until the frame's parser has compared both with the
    /// frame: any value may come from the wire, also one beyond the frame's end.
    Partial {
        /// Start of the checksummed bytes, from the start of the frame (bytes).
        start: u16,
        /// Offset of the checksum from `start` (bytes).
        offset: u16,
    },
}

/// Why a datagram is none of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// The datagram ends within the header.
    #[error("{0} bytes, fewer than the RDMA header's 32")]
    Short(usize),
    /// Another magic.
    #[error("RDMA header with magic {0:#06x}, not 0x7472: no frame of Tidegate")]
    Magic(u16),
    /// A header of another release.
    #[error(
        "RDMA header of version {0}; this release reads version {VERSION}: install the same release at both hosts"
    )]
    Version(u8),
    /// A flag that this version does not know.
    #[error("RDMA header with flags {0:#04x}; version {VERSION} has none")]
    Flags(u8),
    /// A virtio header that no sender writes: a super-frame, a flag besides the two, or a place of a checksum without
    /// the flag.
    #[error(
        "RDMA header with virtio flags {flags:#04x}, gso_type {gso:#04x}, and fields that these do not have"
    )]
    Virtio {
        /// Its flags.
        flags: u8,
        /// Its gso_type.
        gso: u8,
    },
    /// A reserved byte is not 0.
    #[error("RDMA header with a reserved byte that is not 0")]
    Reserved,
}

impl Header {
    /// Writes the header.
    #[inline]
    pub fn write(&self) -> [u8; LEN] {
        let (flags, start, offset) = match self.checksum {
            Checksum::Complete => (0, 0, 0),
            Checksum::Verified => (DATA_VALID, 0, 0),
            Checksum::Partial { start, offset } => (NEEDS_CSUM, start, offset),
        };
        let [m0, m1] = MAGIC.to_be_bytes();
        let mut bytes = [0; LEN];
        bytes[..4].copy_from_slice(&[m0, m1, VERSION, 0]);
        bytes[4..8].copy_from_slice(&self.sequence.to_be_bytes());
        bytes[8] = flags;
        bytes[14..16].copy_from_slice(&start.to_le_bytes());
        bytes[16..18].copy_from_slice(&offset.to_le_bytes());
        bytes
    }

    /// Reads the header at the start of a datagram (without its GRH), and returns it with the bytes behind it.
    ///
    /// # Errors
    /// Why the datagram is none of a frame.
    #[inline]
    pub fn read(datagram: &[u8]) -> Result<(Self, &[u8]), HeaderError> {
        let Some((bytes, frame)) = datagram.split_first_chunk::<LEN>() else {
            return Err(HeaderError::Short(datagram.len()));
        };
        let [m0, m1, version, flags, q0, q1, q2, q3, virtio_flags, gso, h0, h1, g0, g1, s0, s1, o0, o1, ..] =
            *bytes;
        let magic = u16::from_be_bytes([m0, m1]);
        if magic != MAGIC {
            return Err(HeaderError::Magic(magic));
        }
        if version != VERSION {
            return Err(HeaderError::Version(version));
        }
        if flags != 0 {
            return Err(HeaderError::Flags(flags));
        }
        let (start, offset) = (u16::from_le_bytes([s0, s1]), u16::from_le_bytes([o0, o1]));
        let is_plain = [gso, h0, h1, g0, g1] == [0; 5];
        let checksum = match (virtio_flags, start, offset) {
            (0, 0, 0) if is_plain => Checksum::Complete,
            (DATA_VALID, 0, 0) if is_plain => Checksum::Verified,
            (NEEDS_CSUM, ..) if is_plain => Checksum::Partial { start, offset },
            (flags, ..) => return Err(HeaderError::Virtio { flags, gso }),
        };
        if bytes[USED..] != [0; LEN - USED] {
            return Err(HeaderError::Reserved);
        }
        Ok((Self { sequence: u32::from_be_bytes([q0, q1, q2, q3]), checksum }, frame))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn headers() -> impl Strategy<Value = Header> {
        let checksum = prop_oneof![
            Just(Checksum::Complete),
            Just(Checksum::Verified),
            any::<(u16, u16)>().prop_map(|(start, offset)| Checksum::Partial { start, offset }),
        ];
        (any::<u32>(), checksum).prop_map(|(sequence, checksum)| Header { sequence, checksum })
    }

    proptest! {
        #[test]
        fn a_header_is_read_back(header in headers(), frame: Vec<u8>) {
            let datagram = [&header.write()[..], &frame].concat();
            prop_assert_eq!(Header::read(&datagram), Ok((header, &frame[..])));
        }

        /// What is read is what a sender wrote: no two spellings of one header.
        #[test]
        fn only_what_a_sender_writes_is_read(mut bytes: [u8; LEN], like in headers(), from in 0..LEN) {
            bytes[..from].copy_from_slice(&like.write()[..from]);
            if let Ok((header, rest)) = Header::read(&bytes) {
                prop_assert_eq!(header.write(), bytes);
                prop_assert!(rest.is_empty());
            }
        }

        #[test]
        fn each_cut_is_refused(header in headers(), len in 0..LEN) {
            let bytes = header.write();
            prop_assert_eq!(Header::read(&bytes[..len]), Err(HeaderError::Short(len)));
        }
    }

    /// Computed by hand from the layout above: a change of the format changes these bytes.
    #[test]
    fn the_bytes_of_a_header() {
        let checksum = Checksum::Partial { start: 34, offset: 16 };
        let bytes = Header { sequence: 0x0102_0304, checksum }.write();
        let mut expected = [0; LEN];
        expected[..18].copy_from_slice(&[0x74, 0x72, 1, 0, 1, 2, 3, 4, 1, 0, 0, 0, 0, 0, 34, 0, 16, 0]);
        assert_eq!(bytes, expected);
    }

    #[test]
    fn wrong_headers_are_named() {
        let bytes = Header { sequence: 1, checksum: Checksum::Complete }.write();
        let changed = |at: usize, to: u8| {
            let mut bytes = bytes;
            bytes[at] = to;
            Header::read(&bytes).map(|_| ())
        };
        assert_eq!(changed(1, 0x64), Err(HeaderError::Magic(0x7464)), "a stamp's");
        assert_eq!(changed(2, 2), Err(HeaderError::Version(2)));
        assert_eq!(changed(3, 0x80), Err(HeaderError::Flags(0x80)));
        assert_eq!(changed(8, 3), Err(HeaderError::Virtio { flags: 3, gso: 0 }), "both flags");
        assert_eq!(changed(8, 4), Err(HeaderError::Virtio { flags: 4, gso: 0 }));
        for (gso, at) in [(1, 9), (0, 10), (0, 11), (0, 12), (0, 13), (0, 14), (0, 15), (0, 16), (0, 17)] {
            assert_eq!(changed(at, 1), Err(HeaderError::Virtio { flags: 0, gso }), "byte {at}");
        }
        for at in 18..LEN {
            assert_eq!(changed(at, 1), Err(HeaderError::Reserved), "byte {at}");
        }
    }
}
