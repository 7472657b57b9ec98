//! Reading XML with errors that point at line and column.

use roxmltree::{Attribute, Document, Node, ParsingOptions};
use std::ops::Range;
use tidegate_contract::error::Excerpt;
use tidegate_contract::{Error, Errors};

/// Longest line in an error (characters): some programs write a domain in one.
const LONGEST: usize = 200;

/// A text and its origin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source<'a> {
    pub text: &'a str,
    pub origin: &'a str,
}

impl<'a> Source<'a> {
    /// Parses it. Document type definitions, and so growing entities, are refused.
    pub fn parse(self) -> Result<Document<'a>, Errors> {
        let options = ParsingOptions { allow_dtd: false, ..ParsingOptions::default() };
        Document::parse_with_options(self.text, options).map_err(|e| {
            let at = e.pos();
            let (line, column) = (at.row as usize, at.col as usize);
            let message = format!("this text is not valid XML: {e}");
            Errors(vec![Error { line, column, message, ..self.whole_text_error() }])
        })
    }

    /// Returns an error at an element.
    pub fn error_at_element(self, node: Node<'_, '_>, key: &str, message: impl Into<String>) -> Error {
        // The start tag's name, not the whole element.
        let start = node.range().start;
        let end = self.text[start..].find(|c: char| c == '>' || c == '/' || c.is_whitespace());
        self.error(start..start + end.unwrap_or(1), key, message.into())
    }

    /// Returns an error at an attribute.
    pub fn error_at_attribute(
        self,
        attribute: Attribute<'_, '_>,
        key: &str,
        message: impl Into<String>,
    ) -> Error {
        self.error(attribute.range(), key, message.into())
    }

    fn error(self, span: Range<usize>, key: &str, message: String) -> Error {
        let before = &self.text[..span.start];
        let begin = before.rfind('\n').map_or(0, |i| i + 1);
        let line = self.text[begin..].lines().next().unwrap_or_default();
        let column = self.text[begin..span.start].chars().count() + 1;
        let width = self.text[span.start..span.end.min(begin + line.len()).max(span.start)].chars().count();
        let excerpt =
            (line.chars().count() <= LONGEST).then(|| Excerpt { text: line.into(), width: width.max(1) });
        Error {
            line: before.matches('\n').count() + 1,
            column,
            key: key.into(),
            message,
            excerpt,
            ..self.whole_text_error()
        }
    }

    /// Returns an error of the whole text.
    pub fn whole_text_error(self) -> Error {
        Error {
            file: self.origin.into(),
            line: 0,
            column: 0,
            key: String::new(),
            message: String::new(),
            excerpt: None,
        }
    }
}

/// Returns the child elements of this name in no namespace: libvirt's own.
pub(crate) fn children<'a, 'i>(node: Node<'a, 'i>, name: &'static str) -> impl Iterator<Item = Node<'a, 'i>> {
    node.children()
        .filter(move |n| n.is_element() && n.tag_name().namespace().is_none() && n.tag_name().name() == name)
}

/// Returns the first child element of this name.
pub(crate) fn child<'a, 'i>(node: Node<'a, 'i>, name: &'static str) -> Option<Node<'a, 'i>> {
    children(node, name).next()
}

/// An attribute of a child element.
pub(crate) fn child_attribute<'a>(
    node: Node<'a, '_>,
    name: &'static str,
    attribute: &str,
) -> Option<&'a str> {
    child(node, name)?.attribute(attribute)
}
