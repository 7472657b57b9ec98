//! Contract files: brings their contents into force, or notes why not.
//!
//! ```text
//!  folder ─ poll ─▶ new contents ─▶ taken together, or if that fails one by one
//!                                        └─ the others: refused, kept, tried again, and shown
//! ```

use super::Reconciler;
use super::refused_file::Contents;
pub(super) use super::refused_file::RefusedFile;
use crate::commands::ApplyError;
use crate::store::files::Unreadable;
use crate::views::{FileView, RefusedBy};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use tidegate_contract::Vnic;

/// Joins reasons into one line, without the lines of the file that they quote.
fn without_excerpts(why: &str) -> String {
    let is_quoted = |line: &str| {
        line.trim_start_matches([' ', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9']).starts_with('|')
    };
    why.lines().filter(|line| !line.is_empty() && !is_quoted(line)).collect::<Vec<_>>().join("; ")
}

impl Reconciler {
    pub(super) fn look_at_files(&mut self, at_once: bool) {
        let changes = match self.files.poll(at_once) {
            Ok(changes) => changes,
            Err(e) => {
                return self.problem("files", Some(format!("cannot read the configuration folder: {e}")));
            }
        };
        self.problem("files", None);
        if changes.is_empty() {
            return;
        }
        for change in changes {
            let untried = |contents| RefusedFile { why: String::new(), line: 0, contents };
            let file = match change.contents {
                Ok(Some(document)) => untried(Contents::Read(Box::new(document))),
                Ok(None) => untried(Contents::Gone),
                Err(Unreadable { why, line, names }) => {
                    tracing::error!(
                        file = %change.path.display(),
                        "this file has errors; {}: {}",
                        self.what_stays_in_force(&change.path),
                        without_excerpts(&why)
                    );
                    RefusedFile { why, line, contents: Contents::Unreadable(names) }
                }
            };
            self.refused_files.insert(change.path, file);
        }
        self.retry_files();
    }

    /// Takes all new contents together, or if that fails file by file.
    pub(super) fn retry_files(&mut self) {
        let open: Vec<PathBuf> =
            self.refused_files.iter().filter(|(_, f)| f.is_open()).map(|(p, _)| p.clone()).collect();
        if open.is_empty() || self.take_files(&open).is_ok() {
            return;
        }
        for path in open {
            let Err(error) = self.take_files(std::slice::from_ref(&path)) else { continue };
            let why = error.to_string();
            let remains = self.what_stays_in_force(&path);
            if let Some(file) = self.refused_files.get_mut(&path)
                && file.why != why
            {
                tracing::error!(
                    file = %path.display(),
                    "this file is refused; {remains}: {}",
                    without_excerpts(&why)
                );
                file.line = file.line_of(&path, &error);
                file.why = why;
            }
        }
    }

    fn take_files(&mut self, paths: &[PathBuf]) -> Result<(), ApplyError> {
        let mut wanted = self.contracts.clone();
        let mut taken_over = Vec::new();
        for path in paths {
            let contents = match self.refused_files.get(path).map(|f| &f.contents) {
                Some(Contents::Read(document)) => Some((**document).clone()),
                _ => None,
            };
            taken_over.extend(wanted.set_file(path, contents));
        }
        self.enact_or_defer(wanted)?;
        for path in paths {
            self.refused_files.remove(path);
            tracing::info!(file = %path.display(), "its contracts are accepted");
        }
        for what in taken_over {
            tracing::warn!("{what} was set by the API and belongs to a file now");
        }
        Ok(())
    }

    pub(super) fn file_views(&self) -> Vec<FileView> {
        let paths: BTreeSet<&PathBuf> =
            self.contracts.files.keys().chain(self.refused_files.keys()).collect();
        let view = |path: &PathBuf| {
            let refused = self.refused_files.get(path);
            FileView {
                path: path.display().to_string(),
                vnics: self.owned_by(path),
                error: refused.map(|f| f.why.clone()),
                line: refused.map(|f| f.line).filter(|line| *line > 0),
                refused: refused.map_or_else(Vec::new, |f| {
                    f.names().iter().map(|(name, _)| (*name).to_owned()).collect()
                }),
            }
        };
        paths.into_iter().map(view).collect()
    }

    /// Says what of a refused file is in force.
    fn what_stays_in_force(&self, path: &Path) -> &'static str {
        if self.contracts.files.contains_key(path) {
            "its earlier contracts stay in force"
        } else {
            "no contract of this file is in force"
        }
    }

    fn owned_by(&self, path: &Path) -> Vec<String> {
        let document = self.contracts.files.get(path);
        document.map_or_else(Vec::new, |d| d.vnics.iter().map(|v| v.value.name.clone()).collect())
    }

    /// Returns by vNIC the refused file that names or owns it, and the vNIC's contract there if it can be read.
    pub(super) fn refused_vnics(&self) -> BTreeMap<String, (RefusedBy, Option<Vnic>)> {
        let mut refused = BTreeMap::new();
        for (path, file) in &self.refused_files {
            let owned = self.owned_by(path);
            // vNICs that the file names come first: their lines are known.
            let named = file.names().into_iter().chain(owned.iter().map(|name| (name.as_str(), 0)));
            for (name, line) in named {
                refused.entry(name.to_owned()).or_insert_with(|| {
                    let by = RefusedBy {
                        file: path.display().to_string(),
                        line: (line > 0).then_some(line),
                        reason: file.why.clone(),
                    };
                    (by, file.contract(name).cloned())
                });
            }
        }
        refused
    }
}
