//! The guests, from the file with the contracts of the switch.

use std::path::{Path, PathBuf};
use tidegate_contract::{Attach, SocketMode, Vnic};

#[derive(Debug, thiserror::Error)]
pub enum SceneError {
    #[error("cannot read {path}: {source}")]
    Read {
        path: PathBuf,
        /// What happened.
        source: std::io::Error,
    },
    /// The file does not hold contracts.
    #[error("{0}")]
    Contracts(String),
    /// The vNIC has no socket to connect to.
    #[error("vnic.{0} has no vhost-user socket to connect to: write attach = {{ vhost-user = \"PATH\" }}")]
    NoSocket(String),
    /// The file has no such vNIC.
    #[error("{path} has no vnic.{name}; it has {known}")]
    Unknown {
        path: PathBuf,
        name: String,
        /// The names in the file.
        known: String,
    },
    /// The file has fewer vNICs than wanted.
    #[error("{path} has {has} vNICs, {wanted} are needed")]
    TooFew {
        path: PathBuf,
        /// vNICs in the file.
        has: usize,
        wanted: usize,
    },
    /// The contract lacks the key to be measured.
    #[error("vnic.{name} has no {key}: without it there is nothing to compare with")]
    NoKey {
        name: String,
        /// The missing key.
        key: &'static str,
    },
}

/// The contracts of a file, in the order of their names.
#[derive(Debug)]
pub struct Scene {
    path: PathBuf,
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

    /// Returns the vNIC `name`.
    ///
    /// # Errors
    /// It does not exist.
    pub fn vnic(&self, name: &str) -> Result<&Vnic, SceneError> {
        self.vnics.iter().find(|vnic| vnic.name == name).ok_or_else(|| {
            let known: Vec<&str> = self.vnics.iter().map(|vnic| vnic.name.as_str()).collect();
            SceneError::Unknown { path: self.path.clone(), name: name.into(), known: known.join(", ") }
        })
    }

    /// Returns the first `wanted` vNICs, or all.
    ///
    /// # Errors
    /// There are fewer.
    pub fn first(&self, wanted: Option<usize>) -> Result<&[Vnic], SceneError> {
        let has = self.vnics.len();
        let wanted = wanted.unwrap_or(has);
        self.vnics.get(..wanted).ok_or_else(|| SceneError::TooFew { path: self.path.clone(), has, wanted })
    }
}

/// Returns the socket to which a guest on `vnic` connects.
///
/// # Errors
/// The vNIC is not a vhost-user port, or the front end listens at its socket.
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
    fn errors_name_the_file_and_the_missing_part() {
        let scene = Scene::parse(Path::new("two.toml"), TWO).unwrap();
        assert_eq!(scene.vnic("c").unwrap_err().to_string(), "two.toml has no vnic.c; it has a, b");
        assert_eq!(scene.first(Some(3)).unwrap_err().to_string(), "two.toml has 2 vNICs, 3 are needed");
        let error = Scene::parse(Path::new("bad.toml"), "[vnic.a]\nspeed = 1").unwrap_err();
        assert!(error.to_string().contains("bad.toml:2"), "{error}");
    }
}
