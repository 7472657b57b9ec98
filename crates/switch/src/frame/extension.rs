//! IPv6 extension headers by their numbers (RFC 8200, 4; IANA, protocol numbers).

const PROTO_HOP_BY_HOP: u8 = 0;
pub(super) const PROTO_ROUTING: u8 = 43;
pub(super) const PROTO_FRAGMENT: u8 = 44;
pub(super) const PROTO_AUTHENTICATION: u8 = 51;
const PROTO_DESTINATION: u8 = 60;
const PROTO_MOBILITY: u8 = 135;
const PROTO_HIP: u8 = 139;
const PROTO_SHIM6: u8 = 140;

/// Whether an IPv6 next-header value names an extension header that leads to another header.
#[inline]
pub(super) const fn is_extension(protocol: u8) -> bool {
    matches!(
        protocol,
        PROTO_HOP_BY_HOP
            | PROTO_ROUTING
            | PROTO_AUTHENTICATION
            | PROTO_DESTINATION
            | PROTO_MOBILITY
            | PROTO_HIP
            | PROTO_SHIM6
    )
}
