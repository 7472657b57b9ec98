//! The VXLAN header (RFC 7348, section 5).
//!
//! ```text
//!  0      8               32                     56      64
//!  │ flags │ reserved      │ VNI                  │ reserved │   bits
//! ```

/// Bytes of the header.
pub const LEN: usize = 8;
/// UDP destination port that IANA assigned to VXLAN.
pub const PORT: u16 = 4789;
/// Largest VNI: 24 bits.
pub const VNI_MAX: u32 = (1 << 24) - 1;

/// The I flag: the VNI is valid.
const VALID_VNI: u8 = 0x08;

/// Why a datagram is not a VXLAN frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VxlanError {
    /// The datagram ends within the header.
    #[error("{0} bytes, fewer than the VXLAN header's 8")]
    Short(usize),
    /// The I flag is clear, so the header names no segment (RFC 7348, section 5: it MUST be set).
    #[error("VXLAN flags {0:#04x} without the I flag: the header names no VNI")]
    NoVni(u8),
    /// Flags of VXLAN-GPE or GBP, whose payload or VNI may mean something else.
    #[error("VXLAN flags {0:#04x}: extensions (GBP, GPE) are not supported")]
    Extension(u8),
}

/// Makes the header of a frame in segment `vni`. Ignores the bits of `vni` above the 24th.
#[inline]
pub const fn header(vni: u32) -> [u8; LEN] {
    let [_, a, b, c] = vni.to_be_bytes();
    [VALID_VNI, 0, 0, 0, a, b, c, 0]
}

/// Returns the VNI of a datagram and the Ethernet frame behind the header.
///
/// A receiver ignores reserved bits (RFC 7348), except those of the first byte: GBP and GPE use them, and a GPE payload
/// need not be an Ethernet frame.
///
/// # Errors
/// The datagram is too short, names no VNI, or has an extension.
#[inline]
pub fn parse(datagram: &[u8]) -> Result<(u32, &[u8]), VxlanError> {
    let Some((header, frame)) = datagram.split_first_chunk::<LEN>() else {
        return Err(VxlanError::Short(datagram.len()));
    };
    let [flags, _, _, _, a, b, c, _] = *header;
    if flags & VALID_VNI == 0 {
        return Err(VxlanError::NoVni(flags));
    }
    if flags != VALID_VNI {
        return Err(VxlanError::Extension(flags));
    }
    Ok((u32::from_be_bytes([0, a, b, c]), frame))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_header_is_read_back(vni in 0..=VNI_MAX, frame: Vec<u8>) {
            let datagram = [&header(vni)[..], &frame].concat();
            prop_assert_eq!(parse(&datagram), Ok((vni, &frame[..])));
        }

        #[test]
        fn any_datagram_is_parsed_without_panic(datagram: Vec<u8>) {
            if let Ok((vni, frame)) = parse(&datagram) {
                prop_assert!(vni <= VNI_MAX);
                prop_assert_eq!(frame.len() + LEN, datagram.len());
            }
        }
    }

    /// Bytes as tshark shows them of a frame in VNI 42 that Linux 6.1 sent.
    #[test]
    fn the_kernels_header_is_equal() {
        assert_eq!(header(42), [0x08, 0, 0, 0, 0, 0, 0x2a, 0]);
        assert_eq!(parse(&[0x08, 1, 2, 3, 0, 1, 0, 0xff, 9]), Ok((256, &[9][..])));
    }

    #[test]
    fn wrong_datagrams_are_named() {
        assert_eq!(parse(&[8, 0, 0, 0, 0, 0, 1]), Err(VxlanError::Short(7)));
        assert_eq!(parse(&[0; 20]), Err(VxlanError::NoVni(0)));
        assert_eq!(parse(&[0x0c; 20]), Err(VxlanError::Extension(0x0c)));
        assert_eq!(parse(&[0x88; 20]), Err(VxlanError::Extension(0x88)));
    }
}
