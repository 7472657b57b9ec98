//! TOML to contracts, with errors that point at file, line and key.
//!
//! ```text
//!  text ──▶ toml_edit ──▶ reader: typed values, unknown keys ──▶ tables ──▶ check ──▶ Document
//!              │             │                                                 │
//!              └─ syntax ────┴───────────── source: line, column, excerpt ◀────┘──▶ Errors
//! ```
//!
//! All faults of a text are reported at once, but a syntax error hides the others. `names` works on any text.

mod controller;
mod cores;
mod host;
pub(crate) mod keys;
mod names;
mod reader;
mod remote;
mod source;
mod uplink;
mod vnic;

pub use names::names;

use crate::{Document, Errors, Located, Segment};
use reader::{Reader, Table};
use source::Source;

/// Reads contracts, and checks each by itself; `origin` is the file's name, for errors.
///
/// [`crate::check_set`] checks the rules between contracts, which may be in several files.
///
/// # Errors
/// All faults, in the order of the text.
pub fn parse(text: &str, origin: &str) -> Result<Document, Errors> {
    let source = Source::new(text, origin);
    if text.trim().is_empty() {
        // A crash between creating and writing a file must not silently end every contract in it.
        return Err(Errors(vec![source.error(
            0..0,
            "",
            "the file is empty: was it written completely? Remove it, or put a comment in it".into(),
        )]));
    }
    let document = toml_edit::Document::parse(text).map_err(|error| {
        let span = error.span().unwrap_or(text.len()..text.len());
        let mut message = error.message().trim_end().to_owned();
        if span.end >= text.trim_end().len() {
            message.push_str("; the text ends too early: was the file written completely?");
        }
        Errors(vec![source.error(span, "", message)])
    })?;
    let reader = Reader::new(&source);
    let root = Table::root(&reader, document.as_table());
    root.check_known_keys(keys::ROOT);
    let host = root.table("host").map(|table| Located {
        value: host::read(&table),
        file: origin.into(),
        line: source.line(&table.key_span),
    });
    let controller = root.table("controller").map(|table| Located {
        value: controller::read(&table),
        file: origin.into(),
        line: source.line(&table.key_span),
    });
    let tables = |kind| root.table(kind).map_or_else(Vec::new, |tables| tables.tables());
    let at = |table: &Table<'_>| source.line(&table.key_span);
    let file = || origin.to_owned();
    let vnic = |(name, table)| Located { line: at(&table), value: vnic::read(&table, name), file: file() };
    let uplink =
        |(name, table)| Located { line: at(&table), value: uplink::read(&table, name), file: file() };
    let remote =
        |(name, table)| Located { line: at(&table), value: remote::read(&table, name), file: file() };
    let segment = |(id, table): (String, Table<'_>)| {
        if let Err(error) = id.parse::<Segment>() {
            table.report("", error);
        }
        Some(Located { line: at(&table), value: uplink::read_keys(&table, &id)?, file: file() })
    };
    let document = Document {
        host,
        controller,
        vnics: tables("vnic").into_iter().map(vnic).collect(),
        uplinks: tables("uplink").into_iter().map(uplink).collect(),
        remotes: tables("remote").into_iter().map(remote).collect(),
        segments: tables("segment").into_iter().filter_map(segment).collect(),
        peers: Vec::new(),
    };
    Errors::into_result(reader.into_errors(), document)
}

#[cfg(test)]
mod tests;
