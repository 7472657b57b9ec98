//! Fields of a message, big-endian, into and out of bounded memory.
//!
//! ```text
//!  fields ─▶ Writer: at most N bytes ─▶ message ─▶ Reader: None at the end ─▶ fields
//! ```

/// Writes fields one after the other. What exceeds N bytes is left out; all layouts here are shorter.
pub(super) struct Writer<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Default for Writer<N> {
    fn default() -> Self {
        Self { bytes: [0; N], len: 0 }
    }
}

impl<const N: usize> Writer<N> {
    pub(super) fn bytes(&mut self, field: &[u8]) {
        let end = self.len + field.len();
        debug_assert!(end <= N, "{end} bytes of {N}");
        if let Some(room) = self.bytes.get_mut(self.len..end) {
            room.copy_from_slice(field);
            self.len = end;
        }
    }

    pub(super) fn u8(&mut self, field: u8) {
        self.bytes(&[field]);
    }

    pub(super) fn u16(&mut self, field: u16) {
        self.bytes(&field.to_be_bytes());
    }

    pub(super) fn u32(&mut self, field: u32) {
        self.bytes(&field.to_be_bytes());
    }

    pub(super) fn u64(&mut self, field: u64) {
        self.bytes(&field.to_be_bytes());
    }

    pub(super) fn written(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    pub(super) fn finish(self) -> ([u8; N], usize) {
        (self.bytes, self.len)
    }
}

/// Reads fields one after the other.
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*field)
    }

    pub(super) fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_be_bytes)
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    pub(super) fn is_at_end(&self) -> bool {
        self.0.is_empty()
    }
}
