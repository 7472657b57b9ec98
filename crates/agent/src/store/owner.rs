//! The owner of a contract, and the refusal of others.

use std::fmt;
use std::path::PathBuf;
use tidegate_place::offer::CONTROLLER;

/// The owner of a contract: no other owner may change it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    File(PathBuf),
    /// A program that acts for a user or a domain through the API, such as `libvirt:web1`.
    Program(String),
    Api,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} names no owner; expected KIND:NAME such as \"libvirt:web1\", the kind in small letters and neither \"file\" nor \
     \"controller\""
)]
pub struct NoOwner(String);

/// Kinds of owners that the agent itself names.
const RESERVED: [&str; 2] = ["file", CONTROLLER];

impl Owner {
    /// Parses the name of an owner: a program such as `libvirt:web1`, or `api`.
    pub fn named(text: &str) -> Result<Self, NoOwner> {
        let kind = |kind: &str| {
            !kind.is_empty() && !RESERVED.contains(&kind) && kind.chars().all(|c| c.is_ascii_lowercase())
        };
        match text.split_once(':') {
            None if text == "api" => Ok(Self::Api),
            Some((k, name)) if kind(k) && !name.is_empty() && !name.contains(char::is_control) => {
                Ok(Self::Program(text.into()))
            }
            _ => Err(NoOwner(text.into())),
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "file:{}", path.display()),
            Self::Program(name) => f.write_str(name),
            Self::Api => f.write_str("api"),
        }
    }
}

/// A refused change to a contract of another owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owned {
    /// `vNIC plc1`, `[uplink.net0]` or `[host]`.
    pub what: String,
    pub owner: Owner,
}

impl fmt::Display for Owned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = &self.what;
        match &self.owner {
            Owner::File(file) => write!(
                f,
                "{what} belongs to {}: change it there (the agent reads it within three seconds)",
                file.display()
            ),
            Owner::Program(name) => match name.strip_prefix("libvirt:") {
                Some(domain) => write!(
                    f,
                    "{what} belongs to the libvirt domain {domain:?}: change its <metadata> or <bandwidth> there"
                ),
                None if name.starts_with(&format!("{CONTROLLER}:")) => {
                    write!(f, "{what} comes from the network's controller: change it at its host")
                }
                None => write!(f, "{what} belongs to {name}: change it there"),
            },
            Owner::Api => {
                write!(f, "{what} came through the API: change it there (tidegate vnic set, tidegate apply)")
            }
        }
    }
}

impl std::error::Error for Owned {}
