//! Bytes to lines of bounded length.

/// Longest request, bytes without the line's end.
pub const REQUEST: usize = 256;
/// Longest line of an answer.
pub const REPLY: usize = 1024;

/// A piece of input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// A line, without its end.
    Text(String),
    /// A line that is not printable ASCII.
    Garbage,
    /// The first bytes of a line that is too long; its rest is dropped.
    TooLong,
    /// Further bytes of that line were dropped, as many as the longest line has.
    Dropped,
}

/// Splits bytes into lines; stores at most the longest line.
#[derive(Debug)]
pub struct Lines {
    longest: usize,
    line: Vec<u8>,
    /// Within a line that is too long: bytes dropped since the last report.
    dropping: Option<usize>,
}

impl Lines {
    /// Returns a splitter for lines of at most `longest` bytes: [`REQUEST`] or [`REPLY`].
    pub fn new(longest: usize) -> Self {
        Self { longest, line: Vec::new(), dropping: None }
    }

    /// Returns the next piece of `input`, and removes its bytes from it. `None` if `input` is used up.
    pub fn next(&mut self, input: &mut &[u8]) -> Option<Line> {
        while let Some((byte, rest)) = input.split_first() {
            *input = rest;
            match (byte, &mut self.dropping) {
                (b'\n', dropping @ Some(_)) => *dropping = None,
                (_, Some(dropped)) => {
                    *dropped += 1;
                    if *dropped >= self.longest {
                        *dropped = 0;
                        return Some(Line::Dropped);
                    }
                }
                (b'\n', None) => return Some(text(std::mem::take(&mut self.line))),
                (_, None) if self.line.len() == self.longest => {
                    self.line.clear();
                    self.dropping = Some(0);
                    return Some(Line::TooLong);
                }
                (byte, None) => self.line.push(*byte),
            }
        }
        None
    }
}

fn text(mut line: Vec<u8>) -> Line {
    // Line ends of terminals or other systems.
    if line.last() == Some(&b'\r') {
        line.pop();
    }
    let printable = |byte: &u8| matches!(byte, b' '..=b'~' | b'\t');
    match String::from_utf8(line) {
        Ok(text) if text.bytes().all(|byte| printable(&byte)) => Line::Text(text),
        _ => Line::Garbage,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(chunks: &[Vec<u8>]) -> Vec<Line> {
        let mut lines = Lines::new(REQUEST);
        let mut found = Vec::new();
        for chunk in chunks {
            let mut input = chunk.as_slice();
            while let Some(line) = lines.next(&mut input) {
                assert!(lines.line.len() <= REQUEST);
                found.push(line);
            }
            assert!(input.is_empty());
        }
        found
    }

    #[test]
    fn valid_and_invalid_lines_are_distinguished() {
        let long = "x".repeat(REQUEST);
        let bytes = format!("a b\r\n\n{long}\n{long}{long}{long}\nü\nlast");
        let text = |t: &str| Line::Text(t.into());
        assert_eq!(
            all(&[bytes.into_bytes()]),
            [text("a b"), text(""), text(&long), Line::TooLong, Line::Dropped, Line::Garbage]
        );
    }

    proptest! {
        #[test]
        fn the_split_of_the_bytes_does_not_matter(
            chunks in prop::collection::vec(prop::collection::vec(prop_oneof![9 => any::<u8>(), 1 => Just(b'\n')], 0..400), 0..8),
        ) {
            let whole = all(&[chunks.concat()]);
            prop_assert_eq!(all(&chunks), whole);
        }

        #[test]
        fn as_the_standard_library_splits_lines(lines in prop::collection::vec("[ -~]{0,256}", 0..6)) {
            let bytes: String = lines.iter().map(|line| format!("{line}\n")).collect();
            let found: Vec<Line> = lines.into_iter().map(Line::Text).collect();
            prop_assert_eq!(all(&[bytes.into_bytes()]), found);
        }
    }
}
