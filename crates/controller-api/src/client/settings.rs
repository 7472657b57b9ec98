//! Whom to ask, and as whom.
//!
//! ```text
//!  URLs, CA, token or certificate with key, deadlines ──▶ checked ──▶ an HTTP agent that trusts this CA alone
//! ```

use super::url::Url;
use rustls::crypto::ring;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tidegate_visible::Visible;
use ureq::Agent;
use ureq::http::HeaderValue;
use ureq::tls::{Certificate, ClientCert, PemItem, PrivateKey, RootCerts, TlsConfig, parse_pem};

/// Most URLs: each one may cost its deadlines.
const MOST: usize = 16;
/// Longest token (bytes).
const LONGEST_TOKEN: usize = 512;

/// As whom a client asks. `Debug` shows no secret.
#[derive(Clone, Default)]
pub enum Identity {
    /// As none that is known: `health` alone is answered.
    #[default]
    Anonymous,
    /// By a token: an operator's, or a host's enrolment token.
    Token(String),
    /// By a certificate.
    Certificate {
        /// The certificate, and those between it and the CA; PEM.
        certificate: Vec<u8>,
        /// Its key, PEM (PKCS #8, SEC 1 or PKCS #1).
        key: Vec<u8>,
    },
}

impl fmt::Debug for Identity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Anonymous => "Anonymous",
            Self::Token(_) => "Token",
            Self::Certificate { .. } => "Certificate",
        })
    }
}

/// How controllers are reached.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Of all controllers of the network, 1 to 16.
    pub urls: Vec<String>,
    /// Certificates of the CA that signs the controllers' own, PEM. Needed with `https`.
    pub authority: Option<Vec<u8>>,
    /// As whom.
    pub identity: Identity,
    /// Longest time to find and connect a controller, with TLS.
    pub connect: Duration,
    /// Longest time for one controller's whole answer.
    pub answer: Duration,
    /// Longest time for a request to all controllers together; `None`: each has its own. The next request begins with
    /// another controller then.
    pub total: Option<Duration>,
}

impl Settings {
    /// Returns settings for these URLs: without an identity, 3 s to connect, 10 s for an answer.
    pub fn new(urls: Vec<String>) -> Self {
        Self {
            urls,
            authority: None,
            identity: Identity::Anonymous,
            connect: Duration::from_secs(3),
            answer: Duration::from_secs(10),
            total: None,
        }
    }

    /// Returns the URLs, an HTTP agent and the header of the token.
    pub(super) fn checked(&self) -> Result<(Vec<Url>, Agent, Option<HeaderValue>), Unusable> {
        let mut urls: Vec<Url> = Vec::new();
        for text in &self.urls {
            let url = Url::parse(text).map_err(Unusable)?;
            if !urls.contains(&url) {
                urls.push(url);
            }
        }
        if urls.is_empty() || urls.len() > MOST {
            return Err(Unusable(format!(
                "{} addresses of controllers; 1 to {MOST} are possible",
                urls.len()
            )));
        }
        if let Some(url) = urls.iter().find(|url| url.is_tls() && self.authority.is_none()) {
            return Err(Unusable(format!(
                "{url} needs the certificate of the CA that signs controllers' own: no other CA is trusted"
            )));
        }
        let (token, client) = match &self.identity {
            Identity::Anonymous => (None, None),
            Identity::Token(token) => (Some(header(token)?), None),
            Identity::Certificate { certificate, key } => {
                if let Some(url) = urls.iter().find(|url| !url.is_tls()) {
                    return Err(Unusable(format!(
                        "{url} has no TLS, and so takes no certificate; use a token"
                    )));
                }
                (None, Some(client_certificate(certificate, key)?))
            }
        };
        let authority = self.authority.as_deref().unwrap_or_default();
        let authority = certificates(authority, "the CA's file")?;
        if authority.is_empty() && self.authority.is_some() {
            return Err(Unusable("the CA's file has no certificate (PEM, `BEGIN CERTIFICATE`)".into()));
        }
        let tls = TlsConfig::builder()
            .root_certs(RootCerts::new_with_certs(&authority))
            .client_cert(client)
            .unversioned_rustls_crypto_provider(Arc::new(ring::default_provider()))
            .build();
        let agent = Agent::config_builder()
            .tls_config(tls)
            .proxy(None)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .http_status_as_error(false)
            .user_agent(concat!("tidegate/", env!("CARGO_PKG_VERSION")))
            .timeout_resolve(Some(self.connect))
            .timeout_connect(Some(self.connect))
            .build()
            .new_agent();
        Ok((urls, agent, token))
    }
}

fn header(token: &str) -> Result<HeaderValue, Unusable> {
    // What a header carries as it is; a file's line end is the caller's to remove.
    if token.is_empty() || token.len() > LONGEST_TOKEN || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(Unusable(format!(
            "the token is not 1 to {LONGEST_TOKEN} visible ASCII characters without spaces"
        )));
    }
    let mut value = HeaderValue::from_str(&format!("Bearer {token}"))
        .map_err(|_| Unusable("the token cannot stand in an HTTP header".into()))?;
    value.set_sensitive(true);
    Ok(value)
}

fn certificates(pem: &[u8], of: &str) -> Result<Vec<Certificate<'static>>, Unusable> {
    let mut all = Vec::new();
    for item in parse_pem(pem) {
        match item {
            Ok(PemItem::Certificate(certificate)) => all.push(certificate),
            Ok(_) => {}
            Err(error) => {
                return Err(Unusable(format!("{of} is not PEM: {}", Visible(error))));
            }
        }
    }
    Ok(all)
}

fn client_certificate(certificate: &[u8], key: &[u8]) -> Result<ClientCert, Unusable> {
    let chain = certificates(certificate, "the certificate's file")?;
    if chain.is_empty() {
        return Err(Unusable("the certificate's file has no certificate (PEM, `BEGIN CERTIFICATE`)".into()));
    }
    let read = PrivateKey::from_pem(key)
        .map_err(|_| Unusable("the key's file has no private key (PEM, `BEGIN PRIVATE KEY`)".into()))?;
    pairs(&chain, key)?;
    Ok(ClientCert::new_with_certs(&chain, read))
}

/// Checks that a certificate is that of a key: TLS would say so only when a controller asks for it.
fn pairs(chain: &[Certificate<'static>], key: &[u8]) -> Result<(), Unusable> {
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    let chain = chain.iter().map(|one| CertificateDer::from(one.der().to_vec())).collect();
    let key = PrivateKeyDer::from_pem_slice(key)
        .map_err(|_| Unusable("the key's file has no private key".into()))?;
    rustls::sign::CertifiedKey::from_der(chain, key, &ring::default_provider())
        .map(drop)
        .map_err(|error| Unusable(format!("certificate and key do not belong together: {}", Visible(error))))
}

/// Why settings cannot be used, and what was expected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unusable(pub String);
