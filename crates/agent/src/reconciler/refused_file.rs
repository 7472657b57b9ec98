//! A contract file whose present contents are not in force.

use crate::commands::ApplyError;
use std::path::Path;
use tidegate_contract::{Document, Errors, Vnic};

#[derive(Debug)]
pub(crate) struct RefusedFile {
    /// The reason; empty until the contents were tried.
    pub(super) why: String,
    /// The line that `why` is about, from 1; 0 if none.
    pub(super) line: usize,
    pub(super) contents: Contents,
}

/// The present contents of a file.
#[derive(Clone, Debug)]
pub(super) enum Contents {
    /// To be tried again.
    Read(Box<Document>),
    /// The file is gone, and its contracts have to go; to be tried again.
    Gone,
    /// Not to be tried; the vNICs that the file names, with their lines.
    Unreadable(Vec<(String, usize)>),
}

impl RefusedFile {
    /// Returns whether the contents can be tried.
    pub(super) fn is_open(&self) -> bool {
        !matches!(self.contents, Contents::Unreadable(_))
    }

    /// Returns the vNICs that the file names, with their lines.
    pub(super) fn names(&self) -> Vec<(&str, usize)> {
        match &self.contents {
            Contents::Read(document) => {
                document.vnics.iter().map(|v| (v.value.name.as_str(), v.line)).collect()
            }
            Contents::Gone => vec![],
            Contents::Unreadable(names) => names.iter().map(|(name, line)| (name.as_str(), *line)).collect(),
        }
    }

    /// Returns the file's contract of a vNIC, if it can be read.
    pub(super) fn contract(&self, name: &str) -> Option<&Vnic> {
        let Contents::Read(document) = &self.contents else { return None };
        document.vnics.iter().map(|v| &v.value).find(|v| v.name == name)
    }

    /// Returns the line that a refusal is about: the first that an error names, else that of the first vNIC in the
    /// refusal's text; 0 if neither.
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
