//! Why there is no answer, and what to do.
//!
//! ```text
//!  an error of HTTP, TLS, TCP ──▶ of ──▶ Unreachable: the request was not carried out
//!                                   └──▶ Broken: perhaps it was
//!  a controller's `Problem` ───────────▶ Problem
//! ```

use super::call::Call;
use super::url::Url;
use crate::Problem;
use std::fmt;
use std::io::ErrorKind;
use std::time::Duration;
use tidegate_visible::{Visible, visible};
use ureq::Timeout;

/// Why an operation has no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// No controller could be reached: nothing was carried out.
    Unreachable {
        /// One for each URL.
        attempts: Vec<Attempt>,
    },
    /// A controller says no.
    Problem {
        /// Why.
        problem: Problem,
        /// Of HTTP.
        status: u16,
        /// How long to wait before the next request, of `busy`.
        retry_after: Option<Duration>,
    },
    /// A controller was reached, and its answer is late, cut off, too long or none of the API. The request may
    /// have been carried out.
    Broken {
        /// Of the controller.
        url: String,
        /// Method and path.
        request: String,
        /// What happened.
        reason: String,
    },
}

/// A controller that could not be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Of the controller.
    pub url: String,
    /// What happened.
    pub cause: String,
    /// What to check.
    pub advice: &'static str,
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable { attempts } => {
                for (n, Attempt { url, cause, .. }) in attempts.iter().enumerate() {
                    let line = if n == 0 { "" } else { "\n" };
                    write!(
                        formatter,
                        "{line}cannot reach the controller at {}: {}",
                        Visible(url),
                        Visible(cause)
                    )?;
                }
                let mut advice: Vec<_> = attempts.iter().map(|attempt| attempt.advice).collect();
                advice.dedup();
                advice.iter().try_for_each(|text| write!(formatter, "\n{text}"))
            }
            Self::Problem { problem, .. } => write!(formatter, "{problem}"),
            Self::Broken { url, request, reason } => write!(
                formatter,
                "the controller at {} gave no usable answer to {}: {}\n\
                 See its log (journalctl -u tidegate-controller); is it from another release?",
                Visible(url),
                Visible(request),
                Visible(reason)
            ),
        }
    }
}

impl std::error::Error for Error {}

const START: &str = "Is it running there (systemctl status tidegate-controller), and does `listen` in [api] of its \
                     configuration name this address?";
const WAY: &str = "Check the address, and that no firewall is in between.";
const NAME: &str = "Check the host's name in the URL, or write its address.";
const TLS: &str =
    "Check the CA's file, the name or address in the controller's certificate, and one's own certificate.";

/// Says what an error of HTTP means.
pub(super) fn of(url: &Url, call: &Call, error: &ureq::Error) -> Error {
    let unreachable = |cause: String, advice| Error::Unreachable {
        attempts: vec![Attempt { url: url.to_string(), cause: visible(&cause).into_owned(), advice }],
    };
    match error {
        ureq::Error::HostNotFound => unreachable("there is no such host".into(), NAME),
        ureq::Error::Timeout(Timeout::Resolve) => unreachable("its name has no address in time".into(), NAME),
        ureq::Error::Timeout(Timeout::Connect) => unreachable("no connection in time".into(), WAY),
        ureq::Error::Rustls(error) => unreachable(format!("TLS: {error}"), TLS),
        ureq::Error::Tls(what) => unreachable(format!("TLS: {what}"), TLS),
        ureq::Error::Io(error) => match (error.get_ref().and_then(as_tls), error.kind()) {
            (Some(tls), _) => unreachable(format!("TLS: {tls}"), TLS),
            (None, ErrorKind::ConnectionRefused) => unreachable(error.to_string(), START),
            (
                None,
                ErrorKind::HostUnreachable
                | ErrorKind::NetworkUnreachable
                | ErrorKind::NetworkDown
                | ErrorKind::AddrNotAvailable
                | ErrorKind::PermissionDenied,
            ) => unreachable(error.to_string(), WAY),
            // A name that no resolver knows has no kind of its own.
            (None, _) if error.to_string().starts_with("failed to lookup address") => {
                unreachable(error.to_string(), NAME)
            }
            (None, _) => broken(url, call, error.to_string()),
        },
        ureq::Error::ConnectionFailed => unreachable("no connection".into(), WAY),
        ureq::Error::Timeout(_) => broken(url, call, "no whole answer in time".into()),
        other => broken(url, call, other.to_string()),
    }
}

fn as_tls<'a>(error: &'a (dyn std::error::Error + Send + Sync + 'static)) -> Option<&'a rustls::Error> {
    error.downcast_ref().or_else(|| error.source()?.downcast_ref())
}

fn broken(url: &Url, call: &Call, reason: String) -> Error {
    Error::Broken { url: url.to_string(), request: call.to_string(), reason: visible(&reason).into_owned() }
}
