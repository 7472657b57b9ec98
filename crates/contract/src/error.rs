//! What is wrong with a contract, and where: file, line, column, key.
//!
//! ```text
//! web.toml:4:16: vnic.web.tx.max: rate "500" has no unit; write "500mbit" (units: …)
//!   |
//! 4 | tx = { max = "500" }
//!   |              ^^^^^
//! ```

use serde::{Deserialize, Serialize};
use std::fmt;
use tidegate_visible::visible;

/// A value and where it was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Located<T> {
    /// What was read.
    pub value: T,
    /// The file, or what else it came from, such as `API`.
    pub file: String,
    /// Line of its table, from 1; 0 where there is no line.
    pub line: usize,
}

impl<T> Located<T> {
    /// `value`, from a source without lines, such as `API`.
    pub fn without_line(value: T, origin: impl Into<String>) -> Self {
        Self { value, file: origin.into(), line: 0 }
    }

    /// `file:line`, or the file alone.
    pub fn place(&self) -> String {
        match self.line {
            0 => self.file.clone(),
            line => format!("{}:{line}", self.file),
        }
    }
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Error {
    /// The file, or what else was read.
    pub file: String,
    /// Line, from 1; 0 where there is none.
    pub line: usize,
    /// Column in characters, from 1; 0 where there is none.
    pub column: usize,
    /// Path of the key, such as `vnic.plc1.tx.max`; empty where none is concerned.
    pub key: String,
    /// What was wrong, what was expected, what to do.
    pub message: String,
    /// The line, where there is one.
    pub excerpt: Option<Excerpt>,
}

/// A line of the source, with what is wrong in it underlined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Excerpt {
    /// The line, without its end.
    pub text: String,
    /// How many characters are wrong, from the error's column on; at least 1.
    pub width: usize,
}

/// A line of the source, as it is shown.
fn shown(line: &str) -> String {
    visible(&line.replace('\t', "    ")).into_owned()
}

/// It quotes text that a user wrote: characters that act on a terminal or hide are written out.
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&visible(&self.file))?;
        if self.line > 0 {
            write!(f, ":{}", self.line)?;
        }
        if self.column > 0 {
            write!(f, ":{}", self.column)?;
        }
        if !self.key.is_empty() {
            write!(f, ": {}", visible(&self.key))?;
        }
        write!(f, ": {}", visible(&self.message))?;
        if let Some(excerpt) = &self.excerpt {
            let gutter = " ".repeat(self.line.to_string().len());
            // The carets stand below their text as it is shown.
            let width =
                |chars: &mut dyn Iterator<Item = char>| shown(&chars.collect::<String>()).chars().count();
            let before = self.column.saturating_sub(1);
            let indent = " ".repeat(width(&mut excerpt.text.chars().take(before)));
            let marked = width(&mut excerpt.text.chars().skip(before).take(excerpt.width)).max(1);
            write!(f, "\n{gutter} |\n{} | {}", self.line, shown(&excerpt.text))?;
            write!(f, "\n{gutter} | {indent}{}", "^".repeat(marked))?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

/// Everything that is wrong, in the order of the source; never empty.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Errors(pub Vec<Error>);

impl Errors {
    /// `value` where nothing is wrong.
    pub(crate) fn unless_empty<T>(errors: Vec<Error>, value: T) -> Result<T, Self> {
        if errors.is_empty() { Ok(value) } else { Err(Self(errors)) }
    }
}

/// Errors as they are found. Who writes a text that is wrong a million times is told of the first hundred: those beyond
/// are counted, and cost nothing.
#[derive(Debug, Default)]
pub(crate) struct Found {
    errors: Vec<Error>,
    more: usize,
}

/// Most errors that are told at once.
pub(crate) const MOST: usize = 100;

impl Found {
    /// One more, made only where it is told.
    pub(crate) fn note(&mut self, error: impl FnOnce() -> Error) {
        if self.errors.len() < MOST {
            self.errors.push(error());
        } else {
            self.more += 1;
        }
    }

    /// Those to tell, in the order of the text; the last one says how many there are besides.
    pub(crate) fn into_errors(self) -> Vec<Error> {
        let Self { mut errors, more } = self;
        errors.sort_by_key(|error| (error.line, error.column));
        if let Some(last) = errors.last().filter(|_| more > 0) {
            let message = format!("{more} more things are wrong; correct these first");
            errors.push(Error {
                file: last.file.clone(),
                line: 0,
                column: 0,
                key: String::new(),
                message,
                excerpt: None,
            });
        }
        errors
    }
}

impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, error) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str("\n\n")?;
            }
            error.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for Errors {}
