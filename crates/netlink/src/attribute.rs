//! Attributes: type, length, value, padded to 4 bytes; a value may be attributes again.

use netlink_packet_core::{DefaultNla, Emitable, NlasIterator};

/// Attributes being written, after a message's fixed part.
#[derive(Clone, Debug, Default)]
pub struct Attributes(pub Vec<u8>);

impl Attributes {
    /// An attribute with these bytes.
    pub fn put(&mut self, kind: u16, value: &[u8]) {
        let attribute = DefaultNla::new(kind, value.to_vec());
        let start = self.0.len();
        self.0.resize(start + attribute.buffer_len(), 0);
        attribute.emit(&mut self.0[start..]);
    }

    /// A number.
    pub fn put_u32(&mut self, kind: u16, value: u32) {
        self.put(kind, &value.to_ne_bytes());
    }

    /// A number.
    pub fn put_u64(&mut self, kind: u16, value: u64) {
        self.put(kind, &value.to_ne_bytes());
    }

    /// A string, with a terminating 0.
    pub fn put_str(&mut self, kind: u16, value: &str) {
        self.put(kind, &[value.as_bytes(), &[0]].concat());
    }

    /// An attribute whose value is the attributes that `fill` puts.
    pub fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        let mut inner = Self::default();
        fill(&mut inner);
        self.put(kind, &inner.0);
    }
}

/// The attributes of a message or of a value, up to the first that is cut short.
pub fn read(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    // A guest cannot write here, but a kernel may be newer than we are: what is not understood is skipped.
    NlasIterator::new(bytes).map_while(Result::ok).map(|a| {
        let end = usize::from(a.length());
        (a.kind(), &a.into_inner()[4..end])
    })
}

/// The value of one attribute.
pub fn find(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    read(bytes).find(|(k, _)| *k == kind).map(|(_, value)| value)
}

/// A string, up to its terminating 0.
pub fn string(value: &[u8]) -> String {
    let end = value.iter().position(|b| *b == 0).unwrap_or(value.len());
    String::from_utf8_lossy(&value[..end]).into_owned()
}

/// The number at an offset.
pub fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(offset..offset + 2)?.try_into().ok()?))
}

/// The number at an offset.
pub fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(offset..offset + 4)?.try_into().ok()?))
}

/// The number at an offset.
pub fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(offset..offset + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn nested_attributes_read_back() {
        let mut attributes = Attributes::default();
        attributes.put_str(1, "htb");
        attributes.nest(2, |inner| {
            inner.put(9, &[1, 2, 3]);
            inner.put_u64(6, 1 << 40);
        });
        let options = find(&attributes.0, 2).expect("there");
        assert_eq!(find(&attributes.0, 1).map(string).as_deref(), Some("htb"));
        assert_eq!(find(options, 9), Some(&[1, 2, 3][..]));
        assert_eq!(find(options, 6).and_then(|v| u64_at(v, 0)), Some(1 << 40));
        assert_eq!(attributes.0.len() % 4, 0);
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            for (_, value) in read(&bytes) {
                let _ = (string(value), u32_at(value, 0), u64_at(value, 4), read(value).count());
            }
        }
    }
}
