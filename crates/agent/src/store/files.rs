//! The configuration folder: which of its `*.toml` changed.
//!
//! A file counts as changed when two looks in a row show the same new stamp: an editor that has written half
//! of it is not read.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tidegate_contract::parse::names;
use tidegate_contract::{Document, parse};

#[derive(Debug)]
pub struct Files {
    folder: PathBuf,
    read: BTreeMap<PathBuf, Stamp>,
    unconfirmed: BTreeMap<PathBuf, Option<Stamp>>,
}

/// The stamp of a file, which changes with every write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    mtime: (i64, i64),
    size: u64,
    ino: u64,
}

#[derive(Debug, PartialEq, Eq)]
pub struct FileChange {
    pub path: PathBuf,
    /// The new contents, `None` if the file is gone; or what is wrong.
    pub contents: Result<Option<Document>, Unreadable>,
}

/// A file without usable contents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unreadable {
    /// All that is wrong, with file and line.
    pub why: String,
    /// The first line that is wrong, from 1; 0 if none is.
    pub line: usize,
    /// The vNICs that the file names, each with its line.
    pub names: Vec<(String, usize)>,
}

impl Files {
    /// Watches `folder`; `known` are the files whose contents are in force already.
    pub fn new(folder: &Path, known: impl IntoIterator<Item = PathBuf>) -> Self {
        // No real file has this stamp, so the first look reads each file, or notices that it is gone.
        let never = Stamp { mtime: (0, -1), size: 0, ino: 0 };
        let read = known.into_iter().map(|path| (path, never)).collect();
        Self { folder: folder.to_owned(), read, unconfirmed: BTreeMap::new() }
    }

    /// Looks once; returns the changed files. With `at_once`, changes count without a second look.
    ///
    /// # Errors
    /// The folder cannot be read; nothing counts as changed then. A missing folder is an empty one.
    pub fn poll(&mut self, at_once: bool) -> io::Result<Vec<FileChange>> {
        let now = self.stamps()?;
        let gone = self.read.keys().filter(|p| !now.contains_key(*p)).map(|p| (p.clone(), None));
        let new =
            now.iter().filter(|(p, s)| self.read.get(*p) != Some(*s)).map(|(p, s)| (p.clone(), Some(*s)));
        let different: BTreeMap<PathBuf, Option<Stamp>> = gone.chain(new).collect();
        let settled = different.iter().filter(|(p, s)| at_once || self.unconfirmed.get(*p) == Some(*s));
        let settled: Vec<_> = settled.map(|(p, s)| (p.clone(), *s)).collect();
        self.unconfirmed = different;
        Ok(settled
            .into_iter()
            .map(|(path, stamp)| {
                self.unconfirmed.remove(&path);
                let contents = match stamp {
                    None => {
                        self.read.remove(&path);
                        Ok(None)
                    }
                    Some(stamp) => {
                        self.read.insert(path.clone(), stamp);
                        read(&path).map(Some)
                    }
                };
                FileChange { path, contents }
            })
            .collect())
    }

    /// Returns whether the agent reads `path`: a visible `*.toml` in the folder.
    pub fn reads(&self, path: &Path) -> bool {
        let hidden = path.file_name().is_none_or(|n| n.as_encoded_bytes().starts_with(b"."));
        path.parent() == Some(&self.folder) && !hidden && path.extension().is_some_and(|e| e == "toml")
    }

    fn stamps(&self) -> io::Result<BTreeMap<PathBuf, Stamp>> {
        let entries = match std::fs::read_dir(&self.folder) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
            other => other?,
        };
        let mut stamps = BTreeMap::new();
        for entry in entries {
            let path = entry?.path();
            if !self.reads(&path) {
                continue;
            }
            match std::fs::metadata(&path) {
                Ok(meta) if meta.is_file() => {
                    let mtime = (meta.mtime(), meta.mtime_nsec());
                    stamps.insert(path, Stamp { mtime, size: meta.len(), ino: meta.ino() });
                }
                Ok(_) => {}
                // Removed since it was listed.
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Err(e),
            }
        }
        Ok(stamps)
    }
}

fn read(path: &Path) -> Result<Document, Unreadable> {
    let text = std::fs::read_to_string(path).map_err(|e| {
        let why = format!("cannot read {}: {e}", path.display());
        Unreadable { why, ..Unreadable::default() }
    })?;
    parse(&text, &path.display().to_string()).map_err(|errors| {
        let line = errors.0.first().map_or(0, |error| error.line);
        Unreadable { why: errors.to_string(), line, names: names(&text) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use tidegate_testkit::contract::vnic;

    #[test]
    fn a_changed_file_is_read_after_two_equal_looks() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.toml");
        let mut files = Files::new(dir.path(), []);
        assert_eq!(files.poll(true).unwrap(), []);
        fs::write(&path, "[vnic.a").unwrap();
        fs::write(dir.path().join(".a.toml.swp"), "x").unwrap();
        fs::write(dir.path().join(".b.toml"), "x").unwrap();
        assert_eq!(files.poll(false).unwrap(), []);
        fs::write(&path, vnic("a", 1).to_toml()).unwrap();
        assert_eq!(files.poll(false).unwrap(), [], "the half-written file was read");
        let [change] = &files.poll(false).unwrap()[..] else { panic!("one change") };
        assert_eq!(change.contents.as_ref().unwrap().as_ref().unwrap().vnics[0].value, vnic("a", 1));
        assert_eq!(files.poll(false).unwrap(), []);

        fs::write(&path, "[vnic.a").unwrap();
        let [change] = &files.poll(true).unwrap()[..] else { panic!("one change") };
        assert!(change.contents.as_ref().unwrap_err().why.contains("a.toml:1"), "{change:?}");
        fs::remove_file(&path).unwrap();
        assert_eq!(files.poll(false).unwrap(), []);
        assert_eq!(files.poll(false).unwrap(), [FileChange { path, contents: Ok(None) }]);
    }

    #[test]
    fn a_file_that_vanished_while_no_agent_ran_is_reported_as_gone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.toml");
        let mut files = Files::new(&dir.path().join("missing"), [path.clone()]);
        assert_eq!(files.poll(true).unwrap(), [FileChange { path, contents: Ok(None) }]);
    }
}
