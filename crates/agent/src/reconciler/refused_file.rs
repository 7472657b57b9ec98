//! A contract file whose present contents are not in force.

use crate::commands::ApplyError;
use std::path::Path;
use tidegate_contract::{Document, Errors, Vnic};

/// A file whose present contents are not in force.
#[derive(Debug)]
pub(crate) struct RefusedFile {
    /// Empty until it was tried.
    pub(super) why: String,
    /// The line that `why` is about, from 1; 0 where it is about none.
    pub(super) line: usize,
    pub(super) contents: Contents,
}

/// What a file says.
#[derive(Clone, Debug)]
pub(super) enum Contents {
    /// To be tried again.
    Read(Document),
    /// It is gone, and what it said has to go; to be tried again.
    Gone,
    /// Nothing that could be tried; the vNICs that it names, with their lines.
    Unreadable(Vec<(String, usize)>),
}

impl RefusedFile {
    /// Whether there is something to try.
    pub(super) fn is_open(&self) -> bool {
        !matches!(self.contents, Contents::Unreadable(_))
    }

    /// The vNICs that it names, with their lines.
    pub(super) fn names(&self) -> Vec<(&str, usize)> {
        match &self.contents {
            Contents::Read(document) => {
                document.vnics.iter().map(|v| (v.value.name.as_str(), v.line)).collect()
            }
            Contents::Gone => vec![],
            Contents::Unreadable(names) => names.iter().map(|(name, line)| (name.as_str(), *line)).collect(),
        }
    }

    /// What it says of a vNIC, where that can be read.
    pub(super) fn contract(&self, name: &str) -> Option<&Vnic> {
        let Contents::Read(document) = &self.contents else { return None };
        document.vnics.iter().map(|v| &v.value).find(|v| v.name == name)
    }

    /// The line of it that a refusal is about: where an error says so, else where the vNIC stands that it names first.
    pub(super) fn line_of(&self, path: &Path, error: &ApplyError) -> usize {
        if let ApplyError::Invalid(Errors(errors)) = error {
            let of_it = errors.iter().filter(|e| Path::new(&e.file) == path).map(|e| e.line);
            if let Some(line) = of_it.filter(|line| *line > 0).min() {
                return line;
            }
        }
        let text = error.to_string();
        let words = || text.split(|c: char| !(c.is_ascii_alphanumeric() || "._-".contains(c)));
        let names = self.names();
        words().find_map(|word| names.iter().find(|(name, _)| *name == word)).map_or(0, |(_, line)| *line)
    }
}
