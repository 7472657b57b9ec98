//! Faults of contracts, and their places: file, line, column, key.
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

/// A value, and the place where it was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Located<T> {
    /// The value.
    pub value: T,
    /// The file, or another source such as `API`.
    pub file: String,
    /// Line of its table, from 1; 0 if there is none.
    pub line: usize,
}

impl<T> Located<T> {
    /// Locates `value` in a source without lines, such as `API`.
    pub fn without_line(value: T, origin: impl Into<String>) -> Self {
        Self { value, file: origin.into(), line: 0 }
    }

    /// Returns `file:line`, or the file alone.
    pub fn place(&self) -> String {
        match self.line {
            0 => self.file.clone(),
            line => format!("{}:{line}", self.file),
        }
    }
}

/// One fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Error {
    /// The file, or another source.
    pub file: String,
    /// Line, from 1; 0 if there is none.
    pub line: usize,
    /// Column (characters), from 1; 0 if there is none.
    pub column: usize,
    /// Path of the key, such as `vnic.plc1.tx.max`; empty if the fault concerns none.
    pub key: String,
    /// What was wrong, what was expected, what to do.
    pub message: String,
    /// The line, if there is one.
    pub excerpt: Option<Excerpt>,
}

/// A line of the source, with the fault underlined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Excerpt {
    /// The line, without its end.
    pub text: String,
    /// Wrong characters from the error's column on; at least 1.
    pub width: usize,
}

fn displayed_line(line: &str) -> String {
    visible(&line.replace('\t', "    ")).into_owned()
}

/// Quotes a user's text: characters that act on a terminal or hide are written out.
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
            let width = |chars: &mut dyn Iterator<Item = char>| {
                displayed_line(&chars.collect::<String>()).chars().count()
            };
            let before = self.column.saturating_sub(1);
            let indent = " ".repeat(width(&mut excerpt.text.chars().take(before)));
            let marked = width(&mut excerpt.text.chars().skip(before).take(excerpt.width)).max(1);
            write!(f, "\n{gutter} |\n{} | {}", self.line, displayed_line(&excerpt.text))?;
            write!(f, "\n{gutter} | {indent}{}", "^".repeat(marked))?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

/// All faults, in the order of the source; never empty.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Errors(pub Vec<Error>);

impl Errors {
    /// Returns `value` if there are no errors.
    pub(crate) fn into_result<T>(errors: Vec<Error>, value: T) -> Result<T, Self> {
        if errors.is_empty() { Ok(value) } else { Err(Self(errors)) }
    }
}

/// Errors as they are found: the first hundred, and the count of further ones, which cost nothing.
#[derive(Debug, Default)]
pub(crate) struct ErrorList {
    errors: Vec<Error>,
    omitted: usize,
}

/// Most errors reported at once.
pub(crate) const MOST: usize = 100;

impl ErrorList {
    /// Notes an error, which is made only if it will be reported.
    pub(crate) fn note(&mut self, error: impl FnOnce() -> Error) {
        if self.errors.len() < MOST {
            self.errors.push(error());
        } else {
            self.omitted += 1;
        }
    }

    /// Returns the count of all errors.
    pub(crate) fn count(&self) -> usize {
        self.errors.len() + self.omitted
    }

    /// Returns the errors to report, in the order of the text; the last one counts the others.
    pub(crate) fn into_errors(self) -> Vec<Error> {
        let Self { mut errors, omitted } = self;
        errors.sort_by_key(|error| (error.line, error.column));
        if let Some(last) = errors.last().filter(|_| omitted > 0) {
            let message = format!("{omitted} more errors follow; correct these first");
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
