//! How a command reaches the controllers: options, then the environment, then the operator's file.
//!
//! ```text
//!  --controller, --ca, --token-file | --certificate --key ──▶ Reach ──▶ settings ──▶ Client
//!  --operator FILE: what no option says ────────────────────┘
//! ```

use super::operator::Operator;
use crate::exit::Failure;
use crate::format::path;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tidegate_controller_api::client::{Client, Identity, Settings};

/// In a folder of its own: the agent reads all of `/etc/tidegate/*.toml` as contracts.
const OPERATOR: &str = "/etc/tidegate/operator/operator.toml";
/// Longest file that is read (bytes).
const LONGEST: u64 = 1 << 20;

/// Where the controllers are, and as whom to ask.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Reach {
    /// A controller, such as https://10.0.0.1:6654; may be repeated: the first that leads is asked
    #[arg(long, value_name = "URL", env = "TIDEGATE_CONTROLLER", value_delimiter = ',')]
    pub controller: Vec<String>,
    /// File with the certificate of the CA that signs controllers' own (PEM)
    #[arg(long, value_name = "FILE", env = "TIDEGATE_CA")]
    pub ca: Option<PathBuf>,
    /// File with the token to ask with
    #[arg(long, value_name = "FILE", env = "TIDEGATE_TOKEN_FILE", conflicts_with_all = ["certificate", "key"])]
    pub token_file: Option<PathBuf>,
    /// File with the certificate to ask with (PEM)
    #[arg(long, value_name = "FILE", env = "TIDEGATE_CERTIFICATE", requires = "key")]
    pub certificate: Option<PathBuf>,
    /// File with the certificate's key (PEM)
    #[arg(long, value_name = "FILE", env = "TIDEGATE_KEY", requires = "certificate")]
    pub key: Option<PathBuf>,
    /// File with what no option says [default: /etc/tidegate/operator/operator.toml]
    #[arg(long, value_name = "FILE", env = "TIDEGATE_OPERATOR")]
    pub operator: Option<PathBuf>,
}

impl Reach {
    /// Makes a client of the controllers.
    ///
    /// # Errors
    /// An option or a file is wrong, or none names a controller.
    pub fn client(&self) -> Result<Client, Failure> {
        Client::new(&self.settings()?).map_err(Failure::usage)
    }

    /// Returns the settings of a client.
    pub fn settings(&self) -> Result<Settings, Failure> {
        let file = self.file()?;
        let urls = if self.controller.is_empty() { &file.controllers } else { &self.controller };
        if urls.is_empty() {
            return Err(Failure::usage(format!(
                "no controller is named; use --controller URL, TIDEGATE_CONTROLLER, or `controller` in {}",
                path(self.operator.as_deref().unwrap_or(Path::new(OPERATOR)))
            )));
        }
        let mut settings = Settings::new(urls.clone());
        let authority = self.ca.as_ref().or(file.authority.as_ref());
        settings.authority = authority.map(|file| read(file, "CA's file")).transpose()?;
        settings.identity = match (&self.token_file, &self.certificate, &self.key) {
            (Some(token), _, _) => Identity::Token(token_in(token)?),
            (None, Some(certificate), Some(key)) => pair(certificate, key)?,
            _ => match (&file.token, &file.certificate, &file.key) {
                (Some(token), _, _) => Identity::Token(token_in(token)?),
                (None, Some(certificate), Some(key)) => pair(certificate, key)?,
                (None, Some(_), None) | (None, None, Some(_)) => {
                    return Err(Failure::usage(
                        "certificate and key are used together: the file has one of them",
                    ));
                }
                (None, None, None) => Identity::Anonymous,
            },
        };
        Ok(settings)
    }

    fn file(&self) -> Result<Operator, Failure> {
        let (file, is_named) = match &self.operator {
            Some(file) => (file.as_path(), true),
            None => (Path::new(OPERATOR), false),
        };
        if !is_named {
            // All that the file could say is said; or there is none.
            let is_complete =
                !self.controller.is_empty() && (self.token_file.is_some() || self.certificate.is_some());
            if is_complete && self.ca.is_some()
                || file.metadata().is_err_and(|e| e.kind() == ErrorKind::NotFound)
            {
                return Ok(Operator::default());
            }
        }
        let text = String::from_utf8(read(file, "operator's file")?)
            .map_err(|_| Failure::failed(format!("{} is no text (UTF-8)", path(file))))?;
        Operator::parse(&text, file).map_err(Failure::failed)
    }
}

fn pair(certificate: &Path, key: &Path) -> Result<Identity, Failure> {
    let certificate = read(certificate, "certificate's file")?;
    Ok(Identity::Certificate { certificate, key: read_secret(key, "key's file")? })
}

/// Reads the token in a file; a line end after it does not count.
pub fn token_in(file: &Path) -> Result<String, Failure> {
    let token = String::from_utf8(read_secret(file, "token's file")?);
    let token = token.map_err(|_| Failure::failed(format!("{} is no text (UTF-8)", path(file))))?;
    Ok(token.trim().to_owned())
}

/// Reads a file that other users must not read.
pub fn read_secret(file: &Path, what: &str) -> Result<Vec<u8>, Failure> {
    let mode = file.metadata().map_err(|error| unreadable(file, what, &error))?.mode();
    if mode & 0o007 != 0 {
        return Err(Failure::failed(format!(
            "{what} {} has mode {:04o}, so every user has the secret in it: chmod 0600 {}, and take a new secret if \
             others had access",
            path(file),
            mode & 0o7777,
            path(file)
        )));
    }
    read(file, what)
}

/// Reads a file of at most 1 MB.
pub fn read(file: &Path, what: &str) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let opened = File::open(file).map_err(|error| unreadable(file, what, &error))?;
    opened.take(LONGEST + 1).read_to_end(&mut bytes).map_err(|error| unreadable(file, what, &error))?;
    if bytes.len() as u64 > LONGEST {
        return Err(Failure::failed(format!(
            "{what} {} has more than 1 MB; is it the right file?",
            path(file)
        )));
    }
    Ok(bytes)
}

fn unreadable(file: &Path, what: &str, error: &std::io::Error) -> Failure {
    Failure::failed(format!("cannot read the {what} {}: {error}", path(file)))
}
