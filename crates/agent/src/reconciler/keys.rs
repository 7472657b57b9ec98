//! Reads the keys of segments from their files. They stay in memory: no state file and no answer of the API holds one.
//!
//! ```text
//!  [segment.ID] ─▶ file: opened once, regular, own, for no other user ─▶ 32 hex digits ─▶ SegmentKey ─▶ places
//!                    └─ no ─▶ the key read before, for an unchanged table; else refused: what to do
//! ```
//!
//! Files are read with each change by an operator. Repairs use the keys that were read last. Keys of the network's
//! controller are looked up each time: they change by themselves.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use tidegate_contract::{Located, SecretKey, SegmentKey, SegmentKeys, Table};
use tidegate_place::KeyRing;

/// Most bytes of a file: 32 digits with space around them.
const LONGEST: usize = 128;

/// The keys that were read last, with their tables.
#[derive(Clone, Debug, Default)]
pub struct KnownKeys {
    read: Vec<(SegmentKeys, SegmentKey)>,
    /// Those that the network's controller gives.
    pub ring: KeyRing,
}

/// When files are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// All.
    Fresh,
    /// Those of tables whose keys are not known.
    Unknown,
}

/// The outcome of reading.
#[derive(Debug, Default)]
pub struct ReadKeys {
    /// Keys to use.
    pub known: KnownKeys,
    /// Tables without a key to use, and why.
    pub refusals: Vec<String>,
    /// Files that cannot be read, of which the former key is used.
    pub notes: Vec<String>,
}

impl KnownKeys {
    /// Returns the keys, sorted by segment.
    pub fn keys(&self) -> Vec<SegmentKey> {
        let mut keys: Vec<SegmentKey> = self.read.iter().map(|(_, keys)| *keys).collect();
        keys.sort_by_key(|keys| keys.segment);
        keys
    }

    /// Reads the files of tables; a file that cannot be read keeps the key that is known of an equal table.
    pub fn read<'a>(
        &self,
        tables: impl Iterator<Item = &'a Located<SegmentKeys>>,
        reading: Reading,
    ) -> ReadKeys {
        let mut read = ReadKeys::default();
        read.known.ring = self.ring.clone();
        for located in tables {
            let table = &located.value;
            let Some(file) = &table.key_file else {
                match self.ring.key(table.segment) {
                    Some(keys) => read.known.read.push((table.clone(), keys)),
                    None => read.notes.push(format!(
                        "{}: the network's controller has not given its key yet; until then frames of this segment have no \
                         deadline between hosts",
                        table.what()
                    )),
                }
                continue;
            };
            let known = self.read.iter().find(|(known, _)| known == table).map(|(_, keys)| *keys);
            let keys = match known.filter(|_| reading == Reading::Unknown) {
                Some(keys) => keys,
                None => match (keys_of(table, file), known) {
                    (Ok(keys), _) => keys,
                    (Err(why), Some(keys)) => {
                        let what = table.what();
                        read.notes.push(format!("{what}: {why}; the key that was read before stays in use"));
                        keys
                    }
                    (Err(why), None) => {
                        read.refusals.push(format!("{} ({}): {why}", table.what(), located.place()));
                        continue;
                    }
                },
            };
            read.known.read.push((table.clone(), keys));
        }
        read
    }
}

/// Reads the keys of a segment.
fn keys_of(table: &SegmentKeys, key_file: &Path) -> Result<SegmentKey, String> {
    let key = key_in(key_file)?;
    let next = table.next_key_file.as_deref().map(key_in).transpose()?;
    if let (Some(next), Some(file)) = (next, &table.next_key_file)
        && next.is_odd() == key.is_odd()
    {
        let (has, wanted) = if key.is_odd() { ("odd", "even") } else { ("even", "odd") };
        return Err(format!(
            "the last hex digit of the keys in {} and {} is {has} in both, and a stamp tells its key by that: write \
             another key into {}, whose last hex digit is {wanted}",
            key_file.display(),
            file.display(),
            file.display()
        ));
    }
    Ok(SegmentKey { segment: table.segment, key, next })
}

/// Reads the key in a file.
fn key_in(path: &Path) -> Result<SecretKey, String> {
    let shown = path.display();
    let found = find(path).map_err(|error| match error.raw_os_error() {
        Some(libc::ENOENT) => format!("key file {shown} does not exist; {}", how(path)),
        _ => format!("key file {shown} cannot be opened: {error}; let the agent's user read it"),
    })?;
    let metadata = found.metadata().map_err(|error| format!("key file {shown}: {error}"))?;
    if metadata.is_symlink() {
        return Err(format!("key file {shown} is a symbolic link; name the file itself"));
    }
    if !metadata.is_file() {
        return Err(format!("key file {shown} is no regular file; {}", how(path)));
    }
    // SAFETY: the call only returns a number.
    let own = unsafe { libc::geteuid() };
    if metadata.uid() != own {
        return Err(format!(
            "key file {shown} belongs to user {}, not to the agent's, {own}: chown {own} {shown}",
            metadata.uid()
        ));
    }
    if metadata.mode() & 0o077 != 0 {
        return Err(format!(
            "key file {shown} has mode {:04o}, so others may read the key: chmod 0600 {shown}, and write a new key \
             if others had access",
            metadata.mode() & 0o7777
        ));
    }
    let file = open(&found).map_err(|error| format!("key file {shown} cannot be opened: {error}"))?;
    let mut text = Vec::with_capacity(LONGEST);
    let read = file.take(LONGEST as u64).read_to_end(&mut text);
    read.map_err(|error| format!("key file {shown} cannot be read: {error}"))?;
    SecretKey::parse(&text)
        .ok_or_else(|| format!("key file {shown} holds something else than 32 hex digits; {}", how(path)))
}

/// Finds a file without opening it: an opened device or pipe may act. The checks are made on what was found, and that is
/// read.
fn find(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_NOFOLLOW).open(path)
}

/// Opens a found file for reading.
fn open(found: &File) -> io::Result<File> {
    File::open(format!("/proc/self/fd/{}", found.as_raw_fd()))
}

fn how(path: &Path) -> String {
    let shown = path.display();
    format!(
        "write the segment's key there: (umask 077; openssl rand -hex 16 >{shown}), the same on all its hosts"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{Permissions, set_permissions, write};
    use std::os::unix::fs::{PermissionsExt, symlink};
    use tempfile::TempDir;

    const EVEN: &str = "00112233445566778899aabbccddeef0";
    const ODD: &str = "00112233445566778899aabbccddeef1";

    fn key_file(folder: &TempDir, name: &str, text: &str) -> std::path::PathBuf {
        let path = folder.path().join(name);
        write(&path, text).unwrap();
        set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        path
    }

    fn table(folder: &TempDir, next: Option<&str>) -> Located<SegmentKeys> {
        let file = |name: &str| folder.path().join(name).display().to_string();
        let next = next.map(|next| format!("next-key-file = \"{}\"\n", file(next))).unwrap_or_default();
        let text = format!("[segment.42]\nkey-file = \"{}\"\n{next}", file("key"));
        tidegate_contract::parse(&text, "t.toml").unwrap().segments.remove(0)
    }

    fn refusal(folder: &TempDir, next: Option<&str>) -> String {
        let read = KnownKeys::default().read([&table(folder, next)].into_iter(), Reading::Fresh);
        assert!(read.known.keys().is_empty());
        read.refusals.concat()
    }

    #[test]
    fn keys_of_the_controller_are_looked_up_each_time() {
        let table = tidegate_contract::parse("[segment.42]\nkey = \"controller\"\n", "t.toml")
            .unwrap()
            .segments
            .remove(0);
        let mut known = KnownKeys::default();
        let ring = known.ring.clone();
        for reading in [Reading::Fresh, Reading::Unknown] {
            let read = known.read([&table].into_iter(), reading);
            assert!(read.refusals.is_empty() && read.known.keys().is_empty());
            assert!(
                read.notes[0].starts_with("[segment.42]: the network's controller has not given its key yet")
            );
        }
        for text in [EVEN, ODD] {
            let key = SecretKey::parse(text.as_bytes()).unwrap();
            ring.tell([SegmentKey { segment: table.value.segment, key, next: None }]);
            known = known.read([&table].into_iter(), Reading::Unknown).known;
            assert_eq!(String::from(known.keys()[0].key), text);
        }
        assert!(!format!("{known:?}").contains("00112233"), "no log has a key");
    }

    #[test]
    fn keys_are_read_and_the_next_one_has_another_parity() {
        let folder = TempDir::new().unwrap();
        key_file(&folder, "key", &format!("{EVEN}\n"));
        key_file(&folder, "next", ODD);
        let read = KnownKeys::default().read([&table(&folder, Some("next"))].into_iter(), Reading::Fresh);
        let keys = read.known.keys();
        assert_eq!((keys.len(), keys[0].key.is_odd()), (1, false));
        assert_eq!(keys[0].next.map(|next| next.is_odd()), Some(true));
        key_file(&folder, "next", EVEN);
        let why = refusal(&folder, Some("next"));
        assert!(why.contains("is even in both") && why.contains("whose last hex digit is odd"), "{why}");
    }

    #[test]
    fn a_file_that_is_not_only_ours_is_refused_with_what_to_do() {
        let folder = TempDir::new().unwrap();
        assert!(refusal(&folder, None).contains("does not exist; write the segment's key there: "));
        let path = key_file(&folder, "key", "0123");
        assert!(refusal(&folder, None).contains("something else than 32 hex digits"));
        write(&path, EVEN).unwrap();
        set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        let why = refusal(&folder, None);
        assert!(why.starts_with("[segment.42] (t.toml:1): key file "), "{why}");
        assert!(why.contains("has mode 0640") && why.contains("chmod 0600"), "{why}");
        std::fs::rename(&path, folder.path().join("other")).unwrap();
        symlink(folder.path().join("other"), &path).unwrap();
        assert!(refusal(&folder, None).contains("is a symbolic link"));
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(refusal(&folder, None).contains("is no regular file"));
    }

    #[test]
    fn a_known_key_stays_while_its_file_cannot_be_read() {
        let folder = TempDir::new().unwrap();
        let path = key_file(&folder, "key", EVEN);
        let table = table(&folder, None);
        let read = |known: &KnownKeys, reading| known.read([&table].into_iter(), reading);
        let known = read(&KnownKeys::default(), Reading::Fresh).known;
        write(&path, ODD).unwrap();
        assert!(!read(&known, Reading::Unknown).known.keys()[0].key.is_odd(), "not read again");
        assert!(read(&known, Reading::Fresh).known.keys()[0].key.is_odd());
        std::fs::remove_file(&path).unwrap();
        let after = read(&known, Reading::Fresh);
        assert_eq!((after.known.keys(), after.refusals.len()), (known.keys(), 0));
        assert!(after.notes.concat().contains("the key that was read before stays in use"));
    }
}
