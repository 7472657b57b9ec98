//! The result of a front end's request: a reply, or the reason to disconnect it.

use super::saved::Numbered;
use crate::quota::Exceeded;
use crate::stats::ThrownOut;
use vhost::vhost_user::message::VhostUserMsgValidator;

/// Why a front end is disconnected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// Its counter.
    pub kind: ThrownOut,
    /// What it sent or did, and the expectation.
    pub reason: String,
}

impl<T: Into<String>> From<T> for Rejection {
    /// For a message.
    fn from(reason: T) -> Self {
        Self { kind: ThrownOut::Message, reason: reason.into() }
    }
}

/// Result of a message; an error ends the connection.
pub(super) type Result<T> = std::result::Result<T, Rejection>;

pub(super) fn refuse<T>(reason: impl Into<Rejection>) -> Result<T> {
    Err(reason.into())
}

/// Returns the rejection of a message that wants more than the port may have.
pub(crate) fn exceeded(message: &str, exceeded: Exceeded) -> Rejection {
    Rejection { kind: ThrownOut::Quota, reason: format!("{message}: {exceeded}") }
}

/// A reply beyond an acknowledgement.
#[derive(Debug)]
pub struct Reply {
    /// The payload.
    pub payload: Vec<u8>,
    /// Its descriptor.
    pub descriptor: Option<Numbered>,
}

impl Reply {
    /// Returns a payload without padding.
    pub(crate) fn of(body: &impl VhostUserMsgValidator) -> Self {
        Self { payload: body.as_slice().to_vec(), descriptor: None }
    }
}
