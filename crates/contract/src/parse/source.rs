//! Converts byte offsets of a text to lines, columns and excerpts.

use crate::{Error, error::Excerpt};
use std::ops::Range;

/// Longest line that an error shows (bytes).
const LONGEST: usize = 1_000;

pub(super) struct Source<'a> {
    pub text: &'a str,
    origin: &'a str,
    /// Offset at which each line begins.
    lines: Vec<usize>,
}

impl<'a> Source<'a> {
    pub(super) fn new(text: &'a str, origin: &'a str) -> Self {
        let after_newline = text.match_indices('\n').map(|(at, _)| at + 1);
        Self { text, origin, lines: std::iter::once(0).chain(after_newline).collect() }
    }

    /// Returns the line in which `span` begins, from 1.
    pub(super) fn line(&self, span: &Range<usize>) -> usize {
        self.lines.partition_point(|begin| *begin <= span.start)
    }

    pub(super) fn error(&self, span: Range<usize>, key: &str, message: String) -> Error {
        let boundary = |at: &usize| self.text.is_char_boundary(*at);
        let clamp = |at: usize| (0..=at.min(self.text.len())).rev().find(boundary).unwrap_or(0);
        let (mut start, end) = (clamp(span.start), clamp(span.end));
        // An error at the end of the text is shown after its last character, not on an empty line below it.
        if start == self.text.len() {
            start = self.text.trim_end().len();
        }
        let line = self.line(&(start..end));
        let begin = self.lines[line - 1];
        let text = self.text[begin..].lines().next().unwrap_or_default();
        let until = end.clamp(start, (begin + text.len()).max(start));
        Error {
            file: self.origin.into(),
            line,
            column: self.text[begin..start].chars().count() + 1,
            key: key.into(),
            message,
            // A longer line is of no use to people.
            excerpt: (text.len() <= LONGEST).then(|| Excerpt {
                text: text.into(),
                width: self.text[start..until].chars().count().max(1),
            }),
        }
    }
}
