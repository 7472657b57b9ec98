//! Cuts a pcapng stream into its blocks (draft-ietf-opsawg-pcapng, section 3.1).

/// Type of the Section Header Block; the same in both byte orders.
const SECTION: u32 = 0x0A0D_0D0A;
/// Types of the blocks that hold a frame: simple and enhanced packet.
const PACKETS: [u32; 2] = [3, 6];
const MAGIC: u32 = 0x1A2B_3C4D;
/// Longest block accepted (bytes); the agent sends none that is longer.
const LONGEST: usize = 16 << 20;

/// A buffer that takes bytes in pieces and returns whole blocks.
#[derive(Debug, Default)]
pub struct Blocks {
    bytes: Vec<u8>,
    /// Length of the part of `bytes` already returned.
    taken: usize,
    big_endian: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block<'a> {
    /// The whole block, with its type and both lengths.
    pub bytes: &'a [u8],
    pub is_packet: bool,
}

impl Blocks {
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.taken);
        self.taken = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the next block; `None` until it is complete.
    ///
    /// # Errors
    /// The bytes are no pcapng.
    pub fn next_block(&mut self) -> Result<Option<Block<'_>>, &'static str> {
        let rest = &self.bytes[self.taken..];
        let word = |at: usize| rest.get(at..at + 4).and_then(|b| b.try_into().ok());
        let (Some(kind), Some(length), Some(magic)) = (word(0), word(4), word(8)) else { return Ok(None) };
        if u32::from_le_bytes(kind) == SECTION {
            self.big_endian = match (u32::from_le_bytes(magic), u32::from_be_bytes(magic)) {
                (MAGIC, _) => false,
                (_, MAGIC) => true,
                _ => return Err("the stream is not pcapng: a section without byte-order magic"),
            };
        }
        let number = if self.big_endian { u32::from_be_bytes } else { u32::from_le_bytes };
        let (kind, length) = (number(kind), number(length) as usize);
        if length < 12 || length % 4 != 0 || length > LONGEST {
            return Err("the stream is not pcapng: a block of impossible length");
        }
        if rest.len() < length {
            return Ok(None);
        }
        let start = self.taken;
        self.taken += length;
        Ok(Some(Block { bytes: &self.bytes[start..start + length], is_packet: PACKETS.contains(&kind) }))
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    fn block(kind: u32, content: &[u8], big_endian: bool) -> Vec<u8> {
        let number = |n: u32| if big_endian { n.to_be_bytes() } else { n.to_le_bytes() };
        let length = number(12 + content.len() as u32);
        [&number(kind), &length, content, &length].concat()
    }

    pub fn header() -> Vec<u8> {
        block(SECTION, &[&MAGIC.to_le_bytes()[..], &[1, 0, 0, 0], &[0xff; 8]].concat(), false)
    }

    pub fn packet(byte: u8) -> Vec<u8> {
        block(6, &[byte; 24], false)
    }

    #[test]
    fn blocks_come_whole_however_the_bytes_come() {
        let stream = [header(), block(1, &[0; 8], false), packet(7)].concat();
        for chunk in [1, 5, 12, 1000] {
            let mut blocks = Blocks::default();
            let (mut out, mut packets) = (Vec::new(), 0);
            for part in stream.chunks(chunk) {
                blocks.push(part);
                while let Some(block) = blocks.next_block().unwrap() {
                    out.extend_from_slice(block.bytes);
                    packets += u32::from(block.is_packet);
                }
            }
            assert_eq!((out, packets), (stream.clone(), 1), "in chunks of {chunk}");
        }
    }

    #[test]
    fn either_byte_order() {
        let mut blocks = Blocks::default();
        blocks.push(&block(SECTION, &[&MAGIC.to_be_bytes()[..], &[0; 12]].concat(), true));
        blocks.push(&block(3, &[0; 8], true));
        assert!(!blocks.next_block().unwrap().unwrap().is_packet);
        assert!(blocks.next_block().unwrap().unwrap().is_packet);
    }

    #[test]
    fn other_streams_are_refused() {
        let mut blocks = Blocks::default();
        blocks.push(b"<html>not a capture</html>");
        assert!(blocks.next_block().is_err());
        let mut blocks = Blocks::default();
        blocks.push(&block(SECTION, &[0; 16], false));
        assert!(blocks.next_block().is_err());
    }
}
