//! Contract files: what they say is in force, or why it is not.
//!
//! ```text
//!  folder ─ poll ─▶ new contents ─▶ taken together, or those that can be had one by one
//!                                        └─ the others: refused, kept, tried again
//! ```

use super::Reconciler;
use crate::api::types::FileView;
use std::collections::BTreeSet;
use std::path::PathBuf;
use tidegate_contract::Document;

/// A file whose present contents are not in force.
#[derive(Debug)]
pub(super) struct RefusedFile {
    why: String,
    /// What to try again: `Some(None)` is its removal; `None` where it does not parse.
    contents: Option<Option<Document>>,
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
            let contents = match change.contents {
                Ok(contents) => RefusedFile { why: String::new(), contents: Some(contents) },
                Err(why) => {
                    tracing::error!(
                        file = %change.path.display(),
                        "this file is bad, what it said before stays in force:\n{why}"
                    );
                    RefusedFile { why, contents: None }
                }
            };
            self.refused_files.insert(change.path, contents);
        }
        self.retry_files();
    }

    /// Takes all new contents together, or where that fails those that can be had one by one.
    pub(super) fn retry_files(&mut self) {
        let open: Vec<PathBuf> =
            self.refused_files.iter().filter(|(_, f)| f.contents.is_some()).map(|(p, _)| p.clone()).collect();
        if open.is_empty() || self.take_files(&open).is_ok() {
            return;
        }
        for path in open {
            let Err(why) = self.take_files(std::slice::from_ref(&path)) else { continue };
            if let Some(file) = self.refused_files.get_mut(&path)
                && file.why != why
            {
                tracing::error!(
                    file = %path.display(),
                    "this file is refused, what it said before stays in force:\n{why}"
                );
                file.why = why;
            }
        }
    }

    pub(super) fn take_files(&mut self, paths: &[PathBuf]) -> Result<(), String> {
        let mut wanted = self.contracts.clone();
        let mut taken = Vec::new();
        for path in paths {
            let contents = self.refused_files.get(path).and_then(|f| f.contents.clone());
            taken.extend(wanted.set_file(path, contents.flatten()));
        }
        self.enact_or_defer(wanted).map_err(|e| e.to_string())?;
        for path in paths {
            self.refused_files.remove(path);
            tracing::info!(file = %path.display(), "its contracts are accepted");
        }
        for what in taken {
            tracing::warn!("{what} was set by the API and belongs to a file now");
        }
        Ok(())
    }

    pub(super) fn file_views(&self) -> Vec<FileView> {
        let paths: BTreeSet<&PathBuf> =
            self.contracts.files.keys().chain(self.refused_files.keys()).collect();
        paths
            .into_iter()
            .map(|path| FileView {
                path: path.display().to_string(),
                vnics: self
                    .contracts
                    .files
                    .get(path)
                    .map_or_else(Vec::new, |d| d.vnics.iter().map(|v| v.value.name.clone()).collect()),
                error: self.refused_files.get(path).map(|f| f.why.clone()),
            })
            .collect()
    }
}
