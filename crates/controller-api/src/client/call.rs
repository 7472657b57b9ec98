//! One request.
//!
//! ```text
//!  an operation ──▶ Call ──▶ Client: to one controller after the other
//! ```

use std::fmt;
use std::time::Duration;
use ureq::http::Method;

/// A request, for any of the controllers.
pub(super) struct Call {
    pub(super) method: Method,
    /// Path and query, encoded.
    pub(super) target: String,
    pub(super) body: Option<Vec<u8>>,
    /// The answer may take so much longer: the controller waits for news.
    pub(super) wait: Duration,
    /// Whether the request may be sent again when it may have been carried out.
    pub(super) repeatable: bool,
}

impl fmt::Display for Call {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {}", self.method, self.target)
    }
}
