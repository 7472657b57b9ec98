//! The folders that discovery reads, and bounded reads from them.
//!
//! ```text
//!  /sys, /proc, /run, /etc, /var, or copies of them ─▶ Roots ─▶ text, numbers, names
//! ```
//!
//! Processes decide on much of what is below `/proc`, and end while their files are read: each read is bounded, and a file that is
//! missing is no error. Nothing here reads the memory of another process (such as its `cmdline`), which can make a reader wait.

use std::fs::{File, ReadDir};
use std::io::Read;
use std::path::{Path, PathBuf};
use tidegate_cores::cpus::{self, Cpus};

/// Longest file, bytes: `/proc/stat` of a host of 1,000 CPUs has 100 kB.
const LONGEST: u64 = 1 << 20;

/// Most entries of a folder: a host may have four million processes.
const MOST_ENTRIES: usize = 1 << 17;

/// The folders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roots {
    /// sysfs(5), with `fs/cgroup`.
    pub sys: PathBuf,
    /// proc(5).
    pub proc: PathBuf,
    /// State of programs that run.
    pub run: PathBuf,
    /// Settings of programs.
    pub etc: PathBuf,
    /// State of programs that survives a boot.
    pub var: PathBuf,
}

impl Default for Roots {
    /// This host's.
    fn default() -> Self {
        Self::below(Path::new("/"))
    }
}

impl Roots {
    /// Returns the folders of a copy of a host's files, or of the host itself below `/`.
    pub fn below(root: &Path) -> Self {
        let [sys, proc, run, etc, var] = ["sys", "proc", "run", "etc", "var"].map(|name| root.join(name));
        Self { sys, proc, run, etc, var }
    }
}

/// Reads a file, without white space at its ends; the first MiB if it is longer. `None` if it is not there or unreadable.
pub fn text(path: impl AsRef<Path>) -> Option<String> {
    // Room for most files at once, as each read is a call.
    let mut bytes = Vec::with_capacity(4096);
    File::open(path).ok()?.take(LONGEST).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).trim().to_owned())
}

/// Reads a file that has one number.
pub fn number<T: std::str::FromStr>(path: impl AsRef<Path>) -> Option<T> {
    text(path)?.parse().ok()
}

/// Reads a file that has a list of CPUs.
pub fn list(path: impl AsRef<Path>) -> Option<Cpus> {
    cpus::from_list(&text(path)?)
}

/// Reads a file that has a mask of CPUs.
pub fn mask(path: impl AsRef<Path>) -> Option<Cpus> {
    cpus::from_mask(&text(path)?)
}

/// Returns the names in a folder; none if it cannot be read.
pub fn names(path: impl AsRef<Path>) -> Vec<String> {
    first_names(path, MOST_ENTRIES)
}

/// Returns the first `most` names in a folder.
pub fn first_names(path: impl AsRef<Path>, most: usize) -> Vec<String> {
    let entries = std::fs::read_dir(path).into_iter().flat_map(ReadDir::flatten);
    entries.take(most).filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// Returns the names in a folder that are numbers, sorted.
pub fn numbers<T: std::str::FromStr + Ord>(path: impl AsRef<Path>) -> Vec<T> {
    let mut found: Vec<T> = names(path).iter().filter_map(|name| name.parse().ok()).collect();
    found.sort_unstable();
    found
}

/// Returns the numbers after `prefix` of the names in a folder that are a prefix and a number, sorted.
pub fn numbered<T: std::str::FromStr + Ord>(path: impl AsRef<Path>, prefix: &str) -> Vec<T> {
    let names = names(path);
    let mut found: Vec<T> = names.iter().filter_map(|name| name.strip_prefix(prefix)?.parse().ok()).collect();
    found.sort_unstable();
    found
}

/// Returns the last part of a link's target.
pub fn target(path: impl AsRef<Path>) -> Option<String> {
    Some(std::fs::read_link(path).ok()?.file_name()?.to_str()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_and_malformed_files_are_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        assert_eq!((text(&path), list(&path), names(&path)), (None, None, vec![]));
        std::fs::write(&path, b" 3,\xff \n").unwrap();
        assert_eq!(text(&path).as_deref(), Some("3,\u{fffd}"));
        assert_eq!((number::<u32>(&path), list(&path), mask(&path)), (None, None, None));
        std::fs::write(&path, "00000000,00000003\n").unwrap();
        assert_eq!(mask(&path), Some([0, 1].into()));
    }

    #[test]
    fn numbers_in_a_folder() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["12", "3", "self", "rx-1", "rx-0", "rx-", "-1"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        assert_eq!(numbers::<u32>(folder.path()), [3, 12]);
        assert_eq!(numbered::<u16>(folder.path(), "rx-"), [0, 1]);
    }
}
