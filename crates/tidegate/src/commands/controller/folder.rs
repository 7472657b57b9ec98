//! The folder with what a host shows and trusts.
//!
//! ```text
//!  key, certificate ──▶ host.pem (0600): one file, replaced at once, so that the two always belong together
//!  authority ─────────▶ ca.pem
//!  key without a certificate yet ▶ enrolling.pem (0600): a token is for the first key that comes with it, so that
//!                                  a lost answer is asked for again with the same key
//! ```

use crate::exit::Failure;
use crate::format::path;
use std::fs::{DirBuilder, File, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// The folder, which exists.
pub struct Folder(PathBuf);

impl Folder {
    /// Takes a folder, and makes it where it is absent, for its owner alone.
    ///
    /// # Errors
    /// The folder cannot be made, or is none.
    pub fn at(folder: &Path) -> Result<Self, Failure> {
        match DirBuilder::new().recursive(true).mode(0o700).create(folder) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                Err(Failure::failed(format!("cannot make the folder {}: {error}", path(folder))))
            }
            _ if !folder.is_dir() => {
                Err(Failure::failed(format!("{} is no folder; name another with --folder", path(folder))))
            }
            _ => Ok(Self(folder.to_owned())),
        }
    }

    /// Returns the file with the certificate and its key.
    pub fn host(&self) -> PathBuf {
        self.0.join("host.pem")
    }

    /// Returns the file with the certificates of those who sign.
    pub fn authority(&self) -> PathBuf {
        self.0.join("ca.pem")
    }

    /// Returns the file with a key that has no certificate yet.
    pub fn enrolling(&self) -> PathBuf {
        self.0.join("enrolling.pem")
    }

    /// Prepares a file that will be `name`: what cannot be written fails before a token is used up.
    pub fn prepare(&self) -> Result<Prepared, Failure> {
        let file = NamedTempFile::new_in(&self.0)
            .map_err(|error| Failure::failed(format!("cannot write to {}: {error}", path(&self.0))))?;
        Ok(Prepared { file, folder: self.0.clone() })
    }
}

/// A file without its name.
pub struct Prepared {
    file: NamedTempFile,
    folder: PathBuf,
}

impl Prepared {
    /// Writes the file and gives it its name, wholly or not at all; a crash leaves the old or the new one.
    pub fn write(mut self, name: &Path, text: &str, mode: u32) -> Result<(), Failure> {
        let failed = |error: std::io::Error| Failure::failed(format!("cannot write {}: {error}", path(name)));
        self.file.write_all(text.as_bytes()).map_err(failed)?;
        self.file.as_file().set_permissions(Permissions::from_mode(mode)).map_err(failed)?;
        self.file.as_file().sync_all().map_err(failed)?;
        self.file.persist(name).map_err(|error| failed(error.error))?;
        File::open(&self.folder).and_then(|folder| folder.sync_all()).map_err(failed)
    }
}
