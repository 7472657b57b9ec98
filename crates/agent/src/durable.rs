//! Files that survive a crash: a save is seen whole or not at all.
//!
//! ```text
//!  save: NAME.new ─ write, fsync ─▶ NAME kept as NAME.previous ─ rename ─▶ NAME ─ fsync dir
//!  load: NAME ─ damaged? ─▶ kept as NAME.damaged-SECONDS ─▶ NAME.previous
//! ```

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Version of every file written here.
const VERSION: u32 = 1;

/// A value kept in one file.
#[derive(Debug)]
pub struct Durable {
    path: PathBuf,
}

/// What was found on disk.
#[derive(Debug, PartialEq, Eq)]
pub struct Loaded<T> {
    /// The value; `None` where nothing usable was there.
    pub value: Option<T>,
    /// What was damaged, where it was put and what is used instead.
    pub damage: Option<String>,
}

/// Why a file was not saved or loaded.
#[derive(Debug, thiserror::Error)]
pub enum DurableError {
    /// The operating system said no.
    #[error("cannot {what} {path}: {source}")]
    Io {
        /// What was being done.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What happened.
        source: io::Error,
    },
    /// A newer release wrote it.
    #[error("{path} has version {found}, this release reads {VERSION}: install the release that wrote it")]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
}

#[derive(Serialize)]
struct Saved<'a, T> {
    version: u32,
    value: &'a T,
}

#[derive(Deserialize)]
struct Versioned {
    version: u32,
    value: serde_json::Value,
}

enum Content<T> {
    Absent,
    Good(T),
    Damaged(String),
}

impl Durable {
    /// The file at `path`; its folder must exist.
    pub fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// Replaces the value. When this returns `Ok` the value is on disk; otherwise the old one is in force.
    pub fn save<T: Serialize>(&self, value: &T) -> Result<(), DurableError> {
        let new = self.beside("new");
        let bytes = serde_json::to_vec_pretty(&Saved { version: VERSION, value })
            .map_err(|e| self.error("write", &self.path, e.into()))?;
        let write = || -> io::Result<()> {
            let mut file = File::create(&new)?;
            file.write_all(&bytes)?;
            file.sync_all()
        };
        write().map_err(|e| self.error("write", &new, e))?;
        self.keep_previous()?;
        fs::rename(&new, &self.path).map_err(|e| self.error("replace", &self.path, e))?;
        let folder = self.path.parent().unwrap_or(Path::new("."));
        File::open(folder).and_then(|f| f.sync_all()).map_err(|e| self.error("sync", folder, e))
    }

    /// A link, so that the current file has its name at every moment.
    fn keep_previous(&self) -> Result<(), DurableError> {
        let previous = self.beside("previous");
        let linked = self.beside("previous.new");
        let _ = fs::remove_file(&linked);
        match fs::hard_link(&self.path, &linked) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(e) => Err(self.error("link", &linked, e)),
            Ok(()) => fs::rename(&linked, &previous).map_err(|e| self.error("replace", &previous, e)),
        }
    }

    /// The value on disk. A damaged file is moved aside, reported, and the one saved before it used.
    pub fn load<T: DeserializeOwned>(&self) -> Result<Loaded<T>, DurableError> {
        let reason = match self.read(&self.path)? {
            Content::Good(value) => return Ok(Loaded { value: Some(value), damage: None }),
            Content::Absent => return Ok(Loaded { value: None, damage: None }),
            Content::Damaged(reason) => reason,
        };
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let aside = self.beside(&format!("damaged-{seconds}"));
        fs::rename(&self.path, &aside).map_err(|e| self.error("move aside", &self.path, e))?;
        let damage = format!("{} is damaged ({reason}); kept as {}", self.path.display(), aside.display());
        let previous = self.beside("previous");
        Ok(match self.read(&previous)? {
            Content::Good(value) => Loaded {
                value: Some(value),
                damage: Some(format!("{damage}; the copy saved before it is used")),
            },
            Content::Absent => {
                Loaded { value: None, damage: Some(format!("{damage}; there is no earlier copy")) }
            }
            Content::Damaged(why) => Loaded {
                value: None,
                damage: Some(format!(
                    "{damage}; the earlier copy {} is damaged too ({why})",
                    previous.display()
                )),
            },
        })
    }

    fn read<T: DeserializeOwned>(&self, path: &Path) -> Result<Content<T>, DurableError> {
        let bytes = match fs::read(path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Content::Absent),
            Err(e) => return Err(self.error("read", path, e)),
        };
        let file: Versioned = match serde_json::from_slice(&bytes) {
            Ok(file) => file,
            Err(e) => return Ok(Content::Damaged(e.to_string())),
        };
        if file.version > VERSION {
            return Err(DurableError::Newer { path: path.to_owned(), found: file.version });
        }
        Ok(match serde_json::from_value(file.value) {
            Ok(value) => Content::Good(value),
            Err(e) => Content::Damaged(e.to_string()),
        })
    }

    fn beside(&self, suffix: &str) -> PathBuf {
        let mut name = self.path.as_os_str().to_owned();
        name.push(".");
        name.push(suffix);
        name.into()
    }

    fn error(&self, what: &'static str, path: &Path, source: io::Error) -> DurableError {
        DurableError::Io { what, path: path.to_owned(), source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(dir: &tempfile::TempDir) -> Durable {
        Durable::new(dir.path().join("state.json"))
    }

    #[test]
    fn loads_what_was_saved() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(file(&dir).load::<String>().unwrap(), Loaded { value: None, damage: None });
        for text in ["one", "two", "three"] {
            file(&dir).save(&text).unwrap();
            assert_eq!(
                file(&dir).load::<String>().unwrap(),
                Loaded { value: Some(text.into()), damage: None }
            );
        }
    }

    #[test]
    fn a_damaged_file_is_kept_and_the_previous_one_used() {
        let dir = tempfile::tempdir().unwrap();
        file(&dir).save(&"one").unwrap();
        file(&dir).save(&"two").unwrap();
        fs::write(dir.path().join("state.json"), b"{\"version\":1,\"val").unwrap();
        let loaded = file(&dir).load::<String>().unwrap();
        assert_eq!(loaded.value.as_deref(), Some("one"));
        let aside = fs::read_dir(dir.path()).unwrap().flatten();
        let aside = aside.map(|e| e.file_name()).find(|n| n.to_string_lossy().contains("damaged-")).unwrap();
        assert_eq!(fs::read(dir.path().join(&aside)).unwrap(), b"{\"version\":1,\"val");
        assert!(loaded.damage.unwrap().contains(&*aside.to_string_lossy()));
        // The next save has nothing to keep and must still work.
        file(&dir).save(&"three").unwrap();
        assert_eq!(file(&dir).load::<String>().unwrap().value.as_deref(), Some("three"));
    }

    #[test]
    fn a_newer_version_is_not_damage() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("state.json"), b"{\"version\":2,\"value\":\"x\"}").unwrap();
        assert!(matches!(file(&dir).load::<String>(), Err(DurableError::Newer { found: 2, .. })));
        assert!(dir.path().join("state.json").exists());
    }
}
