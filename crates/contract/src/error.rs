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

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if self.line > 0 {
            write!(f, ":{}", self.line)?;
        }
        if self.column > 0 {
            write!(f, ":{}", self.column)?;
        }
        if !self.key.is_empty() {
            write!(f, ": {}", self.key)?;
        }
        write!(f, ": {}", self.message)?;
        if let Some(excerpt) = &self.excerpt {
            let gutter = " ".repeat(self.line.to_string().len());
            // The same tabs as in the line, so that the carets stand below their text.
            let indent: String = excerpt
                .text
                .chars()
                .take(self.column.saturating_sub(1))
                .map(|c| if c == '\t' { '\t' } else { ' ' })
                .collect();
            write!(f, "\n{gutter} |\n{} | {}", self.line, excerpt.text)?;
            write!(f, "\n{gutter} | {indent}{}", "^".repeat(excerpt.width))?;
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
