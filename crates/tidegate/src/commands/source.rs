//! The contracts that `apply` and `plan` read.

use crate::client::encode;
use crate::exit::Failure;
use crate::format::path;
use std::io::Read;
use std::path::{Path, PathBuf};

/// What may be done on the way.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct ApplyOptions {
    /// Remove the API's vNICs, uplinks, remotes and keys that the file does not name
    #[arg(long)]
    pub(super) prune: bool,
    /// Take over what others made in the way on a netdev (a root qdisc, filters at its ingress), and put it back
    /// when the contract goes
    #[arg(long)]
    pub(super) adopt: bool,
}

/// Where contracts are read from.
#[derive(Debug, clap::Args)]
pub struct Source {
    /// File with contracts (TOML); - reads standard input
    #[arg(short, long, value_name = "FILE")]
    pub(super) file: PathBuf,
}

impl Source {
    /// Returns the API path `route` with the origin of the text, and the text.
    pub fn read(&self, route: &str, options: ApplyOptions) -> Result<(String, String), Failure> {
        let read_error =
            |e: std::io::Error| Failure::failed(format!("cannot read {}: {e}", path(&self.file)));
        let (origin, text) = if self.file == Path::new("-") {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).map_err(read_error)?;
            ("stdin".to_owned(), text)
        } else {
            (path(&self.file), std::fs::read_to_string(&self.file).map_err(read_error)?)
        };
        let prune = if options.prune { "&prune=true" } else { "" };
        let adopt = if options.adopt { "&adopt=true" } else { "" };
        Ok((format!("{route}?origin={}{prune}{adopt}", encode(&origin)), text))
    }
}
