//! Netlink attributes, rewritten one by one. Pure.

use crate::tc::netlink::attribute::{Attributes, read as attributes};

/// The attributes in `bytes`, each with the value that `change` returns; `None` leaves an attribute out.
pub fn rewrite(bytes: &[u8], mut change: impl FnMut(u16, &[u8]) -> Option<Vec<u8>>) -> Vec<u8> {
    let mut out = Attributes::default();
    for (kind, value) in attributes(bytes) {
        if let Some(value) = change(kind, value) {
            out.put(kind, &value);
        }
    }
    out.0
}
