//! Copying between scatter lists, against concatenation.

use super::super::{Chain, Span, SpanWriter};
use proptest::prelude::*;

/// Pieces of `buffer`, one after the other with a gap of one byte, as spans.
fn cut(buffer: &mut [u8], lens: &[u32]) -> Vec<Span> {
    // One pointer for all spans: a second borrow of `buffer` would end the right of the first span's pointer.
    let base = buffer.as_mut_ptr();
    let mut at = 0;
    lens.iter()
        .map(|&len| {
            assert!(at + len as usize <= buffer.len());
            let ptr = base.wrapping_add(at);
            at += len as usize + 1;
            Span { ptr, len }
        })
        .collect()
}

fn needed(lens: &[u32]) -> usize {
    lens.iter().map(|&len| len as usize + 1).sum()
}

proptest! {
    #[test]
    fn header_and_payload_are_written_until_there_is_no_room(
        header in prop::collection::vec(any::<u8>(), 0..20),
        source_lens in prop::collection::vec(1u32..50, 0..8),
        chain_lens in prop::collection::vec(prop::collection::vec(1u32..50, 0..4), 0..5),
    ) {
        let mut source: Vec<u8> = (0..needed(&source_lens)).map(|i| i as u8 | 1).collect();
        let before = source.clone();
        let spans = cut(&mut source, &source_lens);
        let flat: Vec<u32> = chain_lens.concat();
        let mut target = vec![0; needed(&flat)];
        let mut targets = cut(&mut target, &flat).into_iter();
        let chains: Vec<Chain> = (0u16..).zip(&chain_lens).map(|(i, lens)| {
            let mut chain = Chain::new();
            chain.reset(100 + i);
            for _ in lens { chain.push(targets.next().unwrap()).unwrap() }
            chain
        }).collect();

        // SAFETY: the chains lead into `target`, which is not touched before the last write.
        let mut writer = unsafe { SpanWriter::new(&chains) };
        let header_written = writer.write(&header);
        // SAFETY: the spans lead into `source`.
        let written = header_written + unsafe { writer.write_spans(&spans) };

        let mut sent = header.clone();
        let mut at = 0;
        for &len in &source_lens {
            sent.extend(&before[at..at + len as usize]);
            at += len as usize + 1;
        }
        let room = flat.iter().sum::<u32>() as usize;
        prop_assert_eq!(written, sent.len().min(room));
        prop_assert_eq!(writer.written() as usize, written);
        sent.resize(room, 0); // what was not written is still zero
        let mut received: Vec<u8> = Vec::new();
        let mut at = 0;
        for &len in &flat {
            received.extend(&target[at..at + len as usize]);
            at += len as usize;
            prop_assert_eq!(target[at], 0, "the gap between buffers");
            at += 1;
        }
        prop_assert_eq!(&received, &sent);

        let mut left = written as u32;
        let mut used = Vec::new();
        for (i, lens) in (0u16..).zip(&chain_lens) {
            let len = lens.iter().sum::<u32>().min(left);
            left -= len;
            used.push((100 + i, len));
        }
        prop_assert_eq!(writer.used().collect::<Vec<_>>(), used);
        prop_assert_eq!(source, before);
    }
}

#[test]
fn sending_from_the_buffer_that_receives_is_a_move() {
    let mut memory = *b"abcdef..";
    let base = memory.as_mut_ptr();
    let mut chain = Chain::new();
    chain.push(Span { ptr: base.wrapping_add(2), len: 6 }).unwrap();
    let chains = [chain];
    // SAFETY: both spans are in `memory`.
    let written = unsafe { SpanWriter::new(&chains).write_spans(&[Span { ptr: base, len: 6 }]) };
    assert_eq!(written, 6);
    assert_eq!(&memory, b"ababcdef");
}
