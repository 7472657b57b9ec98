//! State files: a save becomes visible wholly or not at all, and a load returns the saved value or reports the damage.
//!
//! ```text
//!  stage:  NAME.new ─ write, fsync; NAME also NAME.previous.new      all that needs room on the disk
//!  commit: NAME.previous.new ─ rename ─▶ NAME.previous; NAME.new ─ rename ─▶ NAME; fsync folder
//!  load:   NAME ─ damaged? ─▶ renamed to NAME.damaged-DATE ─▶ NAME.previous
//! ```

use crate::cut;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Version of every file written here. Version 1 had no checksum.
const VERSION: u32 = 2;

/// One value in one file.
#[derive(Clone, Debug)]
pub struct StateFile {
    path: PathBuf,
}

/// Damage of a state file: the name of the problem, and what was done about it.
pub type Damage = (&'static str, String);

/// The content of a state file.
#[derive(Debug, PartialEq, Eq)]
pub struct Loaded<T> {
    /// The value; `None` if there is no file, or no undamaged one.
    pub value: Option<T>,
    /// The damage, the file's new name, and the copy that replaces it; `None` if the file was good.
    pub damage: Option<String>,
}

/// Why a file was not saved or loaded.
#[derive(Debug, thiserror::Error)]
pub enum DurableError {
    /// A system call failed.
    #[error("cannot {what} {path}: {source}{}", advice(path, source))]
    Io {
        /// The operation, as a verb.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// A newer release wrote it.
    #[error(
        "{path} has version {found}, this release reads up to {VERSION}: install the release that wrote it"
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
}

/// Advice for the operator, for errors that have a usual cure.
fn advice(path: &Path, source: &io::Error) -> String {
    let folder = path.parent().unwrap_or(Path::new(".")).display();
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            format!(": make room there (df -h {folder}; df -i {folder}), then try again")
        }
        io::ErrorKind::ReadOnlyFilesystem => format!(": make {folder} writable, then try again"),
        io::ErrorKind::PermissionDenied => format!(": the agent has to own {folder}"),
        _ => String::new(),
    }
}

#[derive(Serialize)]
struct Saved<'a> {
    version: u32,
    /// CRC-32 of the version and of `value` without white space and with sorted keys. Later versions keep it
    /// so, or this release takes their files for damaged ones.
    checksum: u32,
    value: &'a serde_json::Value,
}

#[derive(Deserialize)]
struct Versioned {
    version: u32,
    checksum: Option<u32>,
    value: serde_json::Value,
}

enum Content<T> {
    Absent,
    Good(T),
    Damaged(String),
}

/// A new value, written beside the current one. [`Staged::commit`] replaces the current one; dropping it deletes the new one.
#[derive(Debug)]
pub struct Staged {
    file: StateFile,
    /// There is a current value, which becomes the previous one.
    replaces: bool,
    committed: bool,
}

impl StateFile {
    /// The file at `path`; its folder is made where it is missing.
    pub fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// Whether the file exists; its content is not checked.
    pub fn exists(&self) -> bool {
        self.path.exists()
    }

    /// Replaces the value.
    ///
    /// # Errors
    /// The file cannot be written; the old value is unchanged.
    pub fn save<T: Serialize>(&self, value: &T) -> Result<(), DurableError> {
        self.stage(value)?.commit()
    }

    /// Writes the value beside the current one. The later [`Staged::commit`] needs no more room on the disk.
    ///
    /// # Errors
    /// The file cannot be written, for example because the disk is full.
    pub fn stage<T: Serialize>(&self, value: &T) -> Result<Staged, DurableError> {
        let new = self.beside("new");
        let bytes = serde_json::to_value(value)
            .and_then(|value| {
                let checksum = checksum(VERSION, &value);
                serde_json::to_vec_pretty(&Saved { version: VERSION, checksum, value: &value })
            })
            .map_err(|e| self.error("write", &self.path, e.into()))?;
        // Its Drop removes partial files after an error.
        let mut staged = Staged { file: self.clone(), replaces: false, committed: false };
        let write = || -> io::Result<()> {
            cut::point();
            let mut file = self.create(&new)?;
            let (first, second) = bytes.split_at(bytes.len() / 2);
            file.write_all(first)?;
            cut::point();
            file.write_all(second)?;
            file.sync_all()?;
            cut::point();
            Ok(())
        };
        write().map_err(|e| self.error("write", &new, e))?;
        // A link, so that the current file has its name at every moment.
        let linked = self.beside("previous.new");
        let _ = fs::remove_file(&linked);
        match fs::hard_link(&self.path, &linked) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(self.error("link", &linked, e)),
            Ok(()) => staged.replaces = true,
        }
        cut::point();
        Ok(staged)
    }

    /// Makes the folder again if another program removed it: the contracts in force must be on disk. Writes into no file that is there: it
    /// may be a link that another user made.
    fn create(&self, new: &Path) -> io::Result<File> {
        // One of ours is left if its process died.
        let _ = fs::remove_file(new);
        match (File::create_new(new), self.path.parent()) {
            (Err(e), Some(folder)) if e.kind() == io::ErrorKind::NotFound => {
                fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
                tracing::error!(folder = %folder.display(), "the state folder was gone; made it again");
                File::create_new(new)
            }
            (other, _) => other,
        }
    }

    /// Reads the value. A damaged file is renamed and reported, and the previous copy is read instead.
    ///
    /// # Errors
    /// The file cannot be read, or a newer release wrote it.
    pub fn load<T: DeserializeOwned>(&self) -> Result<Loaded<T>, DurableError> {
        let previous = self.beside("previous");
        let damage = match self.read(&self.path)? {
            Content::Good(value) => return Ok(Loaded { value: Some(value), damage: None }),
            // No save ends like this: an earlier load renamed the damaged file, or another program removed it.
            Content::Absent if previous.exists() => format!("{} is missing", self.path.display()),
            Content::Absent => return Ok(Loaded { value: None, damage: None }),
            Content::Damaged(reason) => {
                let aside = self.aside();
                fs::rename(&self.path, &aside).map_err(|e| self.error("move aside", &self.path, e))?;
                cut::point();
                format!("{} is damaged ({reason}); kept as {}", self.path.display(), aside.display())
            }
        };
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
        let sum = checksum(file.version, &file.value);
        // A damaged version number does not fit the checksum.
        if file.version > VERSION && file.checksum.is_none_or(|c| c == sum) {
            return Err(DurableError::Newer { path: path.to_owned(), found: file.version });
        }
        match (file.version, file.checksum) {
            (1, None) => {}
            (VERSION, Some(stored)) if stored == sum => {}
            (VERSION, Some(_)) => return Ok(Content::Damaged("its checksum does not fit".into())),
            (version, _) => {
                return Ok(Content::Damaged(format!("version {version} without its checksum")));
            }
        }
        Ok(match serde_json::from_value(file.value) {
            Ok(value) => Content::Good(value),
            Err(e) => Content::Damaged(e.to_string()),
        })
    }

    /// An unused file name: the clock may have been set back.
    fn aside(&self) -> PathBuf {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let date = date(now);
        let names = (1..).map(|n| match n {
            1 => self.beside(&format!("damaged-{date}")),
            n => self.beside(&format!("damaged-{date}-{n}")),
        });
        let mut free = names.skip_while(|path| fs::symlink_metadata(path).is_ok());
        free.next().unwrap_or_else(|| self.beside("damaged"))
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

impl Staged {
    /// Makes the new value the current one.
    ///
    /// # Errors
    /// A rename failed; the old value is unchanged.
    pub fn commit(mut self) -> Result<(), DurableError> {
        let Self { file, replaces, .. } = &self;
        let rename = |from: &str, to: &Path| {
            fs::rename(file.beside(from), to).map_err(|e| file.error("replace", to, e))
        };
        if *replaces {
            rename("previous.new", &file.beside("previous"))?;
            // rename(2) does nothing if both names already are the same file.
            let _ = fs::remove_file(file.beside("previous.new"));
            cut::point();
        }
        rename("new", &file.path)?;
        self.committed = true;
        cut::point();
        // Readers see the new value now; a power cut could still restore the old one.
        let folder = self.file.path.parent().unwrap_or(Path::new("."));
        if let Err(error) = File::open(folder).and_then(|f| f.sync_all()) {
            tracing::error!(folder = %folder.display(), %error, "cannot sync: a power cut may lose the last change");
        }
        Ok(())
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        // The next save removes the files of a killed process.
        if self.committed || std::thread::panicking() {
            return;
        }
        for name in ["new", "previous.new"] {
            let _ = fs::remove_file(self.file.beside(name));
        }
    }
}

fn checksum(version: u32, value: &serde_json::Value) -> u32 {
    crc32(format!("{version}{value}").as_bytes())
}

/// CRC-32 as in IEEE 802.3: every change of up to 32 bits in a row is noticed.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ if crc & 1 == 1 { 0xedb8_8320 } else { 0 })
    })
}

/// Such as `20261121T115900Z`, from seconds since the epoch.
fn date(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Years begin on 1 March: the leap day is their last. 719468 days lie between 0000-03-01 and 1970-01-01.
    let day = days + 719_468;
    let (era, day) = (day / 146_097, day % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, month) = (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    let year = era * 400 + year + u64::from(month <= 2);
    format!("{year:04}{month:02}{day:02}T{:02}{:02}{:02}Z", rest / 3_600, rest / 60 % 60, rest % 60)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::fs::PermissionsExt;

    fn file(dir: &tempfile::TempDir) -> StateFile {
        StateFile::new(dir.path().join("state.json"))
    }

    fn names(dir: &tempfile::TempDir) -> Vec<String> {
        let entries = fs::read_dir(dir.path()).unwrap().flatten();
        let mut names: Vec<_> = entries.map(|e| e.file_name().into_string().unwrap()).collect();
        names.sort();
        names
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
    fn a_planted_link_is_replaced_and_what_it_leads_to_stays() {
        let dir = tempfile::tempdir().unwrap();
        let others = dir.path().join("others");
        fs::write(&others, b"theirs").unwrap();
        for name in ["state.json.new", "state.json", "state.json.previous.new", "state.json.previous"] {
            std::os::unix::fs::symlink(&others, dir.path().join(name)).unwrap();
        }
        for text in ["one", "two"] {
            file(&dir).save(&text).unwrap();
            assert_eq!(file(&dir).load::<String>().unwrap().value.as_deref(), Some(text));
        }
        assert_eq!(fs::read(&others).unwrap(), b"theirs");
    }

    #[test]
    fn a_damaged_file_is_kept_and_the_previous_one_used() {
        let dir = tempfile::tempdir().unwrap();
        file(&dir).save(&"one").unwrap();
        file(&dir).save(&"two").unwrap();
        fs::write(dir.path().join("state.json"), b"{\"version\":1,\"val").unwrap();
        let loaded = file(&dir).load::<String>().unwrap();
        assert_eq!(loaded.value.as_deref(), Some("one"));
        let aside = names(&dir).into_iter().find(|n| n.contains("damaged-2")).unwrap();
        assert_eq!(fs::read(dir.path().join(&aside)).unwrap(), b"{\"version\":1,\"val");
        assert!(loaded.damage.unwrap().contains(&aside));
        // As long as nothing new is saved, every start finds the same.
        let again = file(&dir).load::<String>().unwrap();
        assert_eq!(again.value.as_deref(), Some("one"), "the second start lost it");
        assert!(again.damage.unwrap().contains("state.json is missing"));
        // The next save has nothing to keep and must still work.
        file(&dir).save(&"three").unwrap();
        let saved = file(&dir).load::<String>().unwrap();
        assert_eq!(saved, Loaded { value: Some("three".into()), damage: None });
    }

    #[test]
    fn every_damaged_file_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        for _ in 0..3 {
            fs::write(dir.path().join("state.json"), b"x").unwrap();
            assert!(file(&dir).load::<String>().unwrap().value.is_none());
        }
        assert_eq!(names(&dir).len(), 3, "{:?}", names(&dir));
    }

    #[test]
    fn a_newer_version_is_not_damage() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("state.json"), b"{\"version\":3,\"value\":\"x\"}").unwrap();
        assert!(matches!(file(&dir).load::<String>(), Err(DurableError::Newer { found: 3, .. })));
        assert!(dir.path().join("state.json").exists());
    }

    #[test]
    fn a_file_of_the_release_before_checksums_is_read() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("state.json"), b"{\"version\":1,\"value\":\"x\"}").unwrap();
        assert_eq!(file(&dir).load::<String>().unwrap().value.as_deref(), Some("x"));
    }

    #[test]
    fn a_dropped_staged_file_leaves_no_file() {
        let dir = tempfile::tempdir().unwrap();
        file(&dir).save(&"one").unwrap();
        file(&dir).save(&"two").unwrap();
        let before = names(&dir);
        drop(file(&dir).stage(&"three").unwrap());
        assert_eq!(names(&dir), before);
        assert_eq!(file(&dir).load::<String>().unwrap().value.as_deref(), Some("two"));
    }

    #[test]
    fn a_removed_folder_is_made_again() {
        let dir = tempfile::tempdir().unwrap();
        let file = StateFile::new(dir.path().join("state/state.json"));
        file.save(&"one").unwrap();
        fs::remove_dir_all(dir.path().join("state")).unwrap();
        file.save(&"two").unwrap();
        assert_eq!(file.load::<String>().unwrap().value.as_deref(), Some("two"));
        let mode = fs::metadata(dir.path().join("state")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }

    /// Two saves of which the second dies at every point: the file says one or the other.
    #[test]
    fn a_death_at_any_point_leaves_one_value_or_the_other() {
        for at in 0.. {
            let dir = tempfile::tempdir().unwrap();
            file(&dir).save(&"one").unwrap();
            file(&dir).save(&"two").unwrap();
            let survived = cut::testing::dies_at(at, || file(&dir).save(&"three").unwrap());
            let Loaded { value, damage } = file(&dir).load::<String>().unwrap();
            assert!(value == Some("two".into()) || value == Some("three".into()), "{value:?} at point {at}");
            assert_eq!(damage, None);
            file(&dir).save(&"four").unwrap();
            assert_eq!(names(&dir), ["state.json", "state.json.previous"], "left over at point {at}");
            if survived.is_some() {
                assert!(at >= 5, "only {at} points");
                return;
            }
        }
    }

    #[test]
    fn errors_say_what_to_do() {
        let error = |kind| {
            file(&tempfile::tempdir().unwrap()).error("write", Path::new("/s/x"), io::Error::from(kind))
        };
        assert!(error(io::ErrorKind::StorageFull).to_string().contains("make room there (df -h /s"));
        assert!(error(io::ErrorKind::ReadOnlyFilesystem).to_string().contains("writable"));
        assert!(error(io::ErrorKind::PermissionDenied).to_string().contains("own /s"));
    }

    #[test]
    fn dates_are_right() {
        assert_eq!(date(0), "19700101T000000Z");
        assert_eq!(date(951_782_399), "20000228T235959Z");
        assert_eq!(date(951_782_400), "20000229T000000Z");
        assert_eq!(date(1_795_262_340), "20261121T115900Z");
        assert_eq!(date(4_107_542_400), "21000301T000000Z");
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }

    fn value() -> std::collections::BTreeMap<String, u64> {
        (0..20).map(|n| (format!("vnic{n}"), 1_000_000 * n)).collect()
    }

    /// What a disk does to a file.
    #[derive(Clone, Debug)]
    enum Damage {
        Truncated(usize),
        Zeros(usize, usize),
        Garbage(usize, Vec<u8>),
        Flip(usize, u8),
    }

    fn damage() -> impl Strategy<Value = Damage> {
        prop_oneof![
            any::<usize>().prop_map(Damage::Truncated),
            (any::<usize>(), 1usize..600).prop_map(|(at, n)| Damage::Zeros(at, n)),
            (any::<usize>(), prop::collection::vec(any::<u8>(), 1..40))
                .prop_map(|(a, g)| Damage::Garbage(a, g)),
            (any::<usize>(), prop::collection::vec(b'0'..=b'9', 1..4))
                .prop_map(|(a, g)| Damage::Garbage(a, g)),
            (any::<usize>(), 0u8..8).prop_map(|(at, bit)| Damage::Flip(at, bit)),
        ]
    }

    impl Damage {
        fn apply(&self, bytes: &mut Vec<u8>) {
            let len = bytes.len();
            let mut put =
                |at: usize, new: &[u8]| bytes.iter_mut().skip(at % len).zip(new).for_each(|(b, n)| *b = *n);
            match self {
                Self::Truncated(at) => bytes.truncate(at % len),
                Self::Zeros(at, n) => put(*at, &vec![0; *n]),
                Self::Garbage(at, garbage) => put(*at, garbage),
                Self::Flip(at, bit) => bytes[at % len] ^= 1 << bit,
            }
        }
    }

    proptest! {
        #[test]
        fn a_wrong_value_is_never_read(damage in damage()) {
            let dir = tempfile::tempdir().unwrap();
            let previous = std::collections::BTreeMap::from([("before".to_owned(), 1)]);
            file(&dir).save(&previous).unwrap();
            file(&dir).save(&value()).unwrap();
            let path = dir.path().join("state.json");
            let mut bytes = fs::read(&path).unwrap();
            damage.apply(&mut bytes);
            fs::write(&path, &bytes).unwrap();
            match file(&dir).load::<std::collections::BTreeMap<String, u64>>() {
                // A white space more or less does no harm.
                Ok(Loaded { value: Some(got), damage: None }) => prop_assert_eq!(got, value()),
                Ok(Loaded { value: got, damage: Some(said) }) => {
                    prop_assert_eq!(got, Some(previous));
                    prop_assert!(said.contains("is damaged") && said.contains("damaged-2"), "{}", said);
                    let kept = names(&dir).into_iter().find(|n| n.contains("damaged-")).unwrap();
                    prop_assert_eq!(fs::read(dir.path().join(kept)).unwrap(), bytes);
                }
                other => prop_assert!(false, "{:?}", other),
            }
        }
    }
}
