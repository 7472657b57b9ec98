//! Addresses of controllers.
//!
//! ```text
//!  text of a configuration, or of a `standby` answer ──▶ Url: scheme, host, port, and nothing else
//! ```

use std::fmt;
use tidegate_visible::visible;
use ureq::http::Uri;

/// Longest text (bytes), as in `controller/openapi.json`.
const LONGEST: usize = 300;

/// Where a controller answers, such as `https://10.0.0.1:6654`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    tls: bool,
    /// Host and port.
    authority: String,
}

impl Url {
    /// Reads an address.
    ///
    /// # Errors
    /// Says what was found and what was expected.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = |what: &str| {
            let shown = visible(tidegate_visible::beginning(text, LONGEST)).into_owned();
            format!("{shown:?} is no address of a controller: {what}; write it as https://10.0.0.1:6654")
        };
        if text.len() > LONGEST {
            return Err(wrong("it has more than 300 bytes"));
        }
        let uri: Uri = text.parse().map_err(|_| wrong("it is no URL"))?;
        let tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(wrong("it begins with neither https:// nor http://")),
        };
        let authority = uri.authority().ok_or_else(|| wrong("it names no host"))?.as_str();
        if authority.contains('@') {
            return Err(wrong("a user's name has no place in it"));
        }
        let host = uri.host().unwrap_or_default();
        if host.is_empty() {
            return Err(wrong("it names no host"));
        }
        let port = &authority[host.len()..];
        if !port.is_empty() && !port[1..].parse::<u16>().is_ok_and(|port| port > 0) {
            return Err(wrong("its port is none of 1 to 65535"));
        }
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() || text.contains('#') {
            return Err(wrong("nothing may stand after host and port"));
        }
        Ok(Self { tls, authority: authority.to_ascii_lowercase() })
    }

    /// Whether the controller shows a certificate.
    pub fn is_tls(&self) -> bool {
        self.tls
    }

    /// Returns the whole URL of a path with its query.
    pub(super) fn join(&self, target: &str) -> String {
        format!("{self}{target}")
    }
}

impl fmt::Display for Url {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}://{}", if self.tls { "https" } else { "http" }, self.authority)
    }
}

/// Encodes a value as one path segment or query value (RFC 3986, section 2.1).
pub(super) fn encode(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}
