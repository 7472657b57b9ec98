//! The guests: the contracts that the switch was given, read from the same file.

use std::path::{Path, PathBuf};
use tidegate_contract::{Attach, SocketMode, Vnic};

/// Why no scene can be made.
#[derive(Debug, thiserror::Error)]
pub enum SceneError {
    /// The file could not be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// Which file.
        path: PathBuf,
        /// What happened.
        source: std::io::Error,
    },
    /// The file does not hold contracts.
    #[error("{0}")]
    Contracts(String),
    /// A vNIC without a socket to connect to.
    #[error("vnic.{0} has no vhost-user socket to connect to: write attach = {{ vhost-user = \"PATH\" }}")]
    NoSocket(String),
    /// No such vNIC.
    #[error("{path} has no vnic.{name}; it has {known}")]
    Unknown {
        /// Which file.
        path: PathBuf,
        /// The name that was looked for.
        name: String,
        /// The names in the file.
        known: String,
    },
    /// Fewer vNICs than asked for.
    #[error("{path} has {has} vNICs, {wanted} are wanted")]
    TooFew {
        /// Which file.
        path: PathBuf,
        /// How many the file has.
        has: usize,
        /// How many are wanted.
        wanted: usize,
    },
    /// The contract lacks the key that is to be measured.
    #[error("vnic.{name} has no {key}: without it there is nothing to compare with")]
    NoKey {
        /// Which vNIC.
        name: String,
        /// Which key is missing.
        key: &'static str,
    },
}

/// The contracts of a file, in the order of their names.
#[derive(Debug)]
pub struct Scene {
    path: PathBuf,
    /// The vNICs that the file defines.
    pub vnics: Vec<Vnic>,
}

impl Scene {
    /// Reads the contracts in `path`.
    ///
    /// # Errors
    /// The file cannot be read, or `tidegate apply` would refuse it.
    pub fn read(path: &Path) -> Result<Self, SceneError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| SceneError::Read { path: path.to_owned(), source })?;
        Self::parse(path, &text)
    }

    fn parse(path: &Path, text: &str) -> Result<Self, SceneError> {
        let document = tidegate_contract::parse(text, &path.display().to_string())
            .map_err(|errors| SceneError::Contracts(errors.to_string()))?;
        let mut vnics: Vec<Vnic> = document.vnics.into_iter().map(|vnic| vnic.value).collect();
        vnics.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Self { path: path.to_owned(), vnics })
    }

    /// The vNIC called `name`.
    ///
    /// # Errors
    /// There is none.
    pub fn vnic(&self, name: &str) -> Result<&Vnic, SceneError> {
        self.vnics.iter().find(|vnic| vnic.name == name).ok_or_else(|| {
            let known: Vec<&str> = self.vnics.iter().map(|vnic| vnic.name.as_str()).collect();
            SceneError::Unknown { path: self.path.clone(), name: name.into(), known: known.join(", ") }
        })
    }

    /// The first `wanted` vNICs, or all.
    ///
    /// # Errors
    /// There are fewer.
    pub fn first(&self, wanted: Option<usize>) -> Result<&[Vnic], SceneError> {
        let has = self.vnics.len();
        let wanted = wanted.unwrap_or(has);
        self.vnics.get(..wanted).ok_or_else(|| SceneError::TooFew { path: self.path.clone(), has, wanted })
    }
}

/// The socket a guest on `vnic` connects to.
///
/// # Errors
/// It is no vhost-user port, or the front end listens at its socket.
pub fn socket(vnic: &Vnic) -> Result<&Path, SceneError> {
    match &vnic.attach {
        Attach::VhostUser { path, mode: SocketMode::Server, .. } => Ok(path),
        _ => Err(SceneError::NoSocket(vnic.name.clone())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = "
        [vnic.b]
        attach = { vhost-user = \"/run/b.sock\" }
        mac = \"52:54:00:00:00:02\"
        segment = 1
        [vnic.a]
        attach = { tap = \"a\" }
        mac = \"52:54:00:00:00:01\"
        segment = 1";

    #[test]
    fn vnics_come_by_name_and_with_their_sockets() {
        let scene = Scene::parse(Path::new("two.toml"), TWO).unwrap();
        let names: Vec<&str> = scene.vnics.iter().map(|vnic| vnic.name.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(socket(scene.vnic("b").unwrap()).unwrap(), Path::new("/run/b.sock"));
        assert!(socket(scene.vnic("a").unwrap()).unwrap_err().to_string().contains("vnic.a"));
        assert_eq!(scene.first(Some(1)).unwrap()[0].name, "a");
    }

    #[test]
    fn what_is_missing_is_said_with_the_file() {
        let scene = Scene::parse(Path::new("two.toml"), TWO).unwrap();
        assert_eq!(scene.vnic("c").unwrap_err().to_string(), "two.toml has no vnic.c; it has a, b");
        assert_eq!(scene.first(Some(3)).unwrap_err().to_string(), "two.toml has 2 vNICs, 3 are wanted");
        let error = Scene::parse(Path::new("bad.toml"), "[vnic.a]\nspeed = 1").unwrap_err();
        assert!(error.to_string().contains("bad.toml:2"), "{error}");
    }
}
