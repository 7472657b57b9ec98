//! Trees of files for tests: listings as `tests/machines/make.py` writes them, and more files.

use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use tidegate_cores::cpus;
use tidegate_place_cores::roots::Roots;

/// A folder with `sys`, `proc` and so on.
pub struct Tree(TempDir);

#[allow(dead_code, reason = "each test program uses some of them")]
impl Tree {
    /// An empty one.
    pub fn new() -> Self {
        // Thousands of files: in memory, if that is there.
        Self(tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap())
    }

    /// That of a machine in `tests/machines`.
    pub fn of(machine: &str) -> Self {
        let tree = Self::new();
        let listing =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/machines").join(format!("{machine}.txt"));
        tree.listing(&fs::read_to_string(&listing).unwrap());
        tree
    }

    /// Adds the files of a listing.
    pub fn listing(&self, text: &str) {
        for line in text.lines().filter(|line| line.starts_with('/')) {
            let (path, content) = line.split_once(' ').unwrap_or((line, ""));
            let content = content.replace("\\n", "\n");
            match path.split_once('{').and_then(|(before, rest)| Some((before, rest.split_once('}')?))) {
                Some((before, (list, after))) => cpus::from_list(list)
                    .unwrap()
                    .iter()
                    .for_each(|number| self.file(&format!("{before}{number}{after}"), &content)),
                None => self.file(path, &content),
            }
        }
    }

    /// Writes a file, or a link if the content begins with `-> `.
    pub fn file(&self, path: &str, content: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        if let Some(target) = content.strip_prefix("-> ") {
            let _ = fs::remove_file(&path);
            std::os::unix::fs::symlink(target, &path).unwrap();
        } else {
            fs::write(&path, format!("{content}\n")).unwrap();
        }
    }

    /// Returns all files and links.
    pub fn files(&self) -> Vec<PathBuf> {
        let (mut open, mut found) = (vec![self.0.path().to_owned()], vec![]);
        while let Some(folder) = open.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let entry = entry.unwrap();
                let into = if entry.file_type().unwrap().is_dir() { &mut open } else { &mut found };
                into.push(entry.path());
            }
        }
        found.sort();
        found
    }

    /// Removes a file or a folder.
    pub fn remove(&self, path: &str) {
        let path = self.path(path);
        fs::remove_dir_all(&path).or_else(|_| fs::remove_file(&path)).unwrap();
    }

    /// A path in it.
    pub fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path.trim_start_matches('/'))
    }

    /// The folders.
    pub fn roots(&self) -> Roots {
        Roots::below(self.0.path())
    }
}

/// Replaces a file or a link, or removes it. Never writes through a link: one leads out of the tree.
#[allow(dead_code, reason = "each test program has its own copy of this module")]
pub fn replace(path: &Path, content: Option<&str>) {
    let _ = fs::remove_file(path);
    if let Some(content) = content {
        let _ = fs::write(path, content);
    }
}
