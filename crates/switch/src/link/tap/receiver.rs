//! A tap's abilities.

use crate::frame::VnetHdr;
use crate::link::Receiver;

/// The kernel takes everything but UDP super-frames, which kernels before 6.2 refuse.
pub const RECEIVER: Receiver = Receiver {
    csum: true,
    tso4: true,
    tso6: true,
    ecn: true,
    uso4: false,
    uso6: false,
    mergeable: true,
    header_len: VnetHdr::LEN,
};
