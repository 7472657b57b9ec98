//! What a request of a front end comes to: a reply, or the reason for which the front end is thrown out.

use super::saved::Numbered;
use crate::quota::Exceeded;
use crate::stats::ThrownOut;
use vhost::vhost_user::message::VhostUserMsgValidator;

/// Why a front end is thrown out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// What it is counted as.
    pub kind: ThrownOut,
    /// What it sent or did, and what was expected.
    pub reason: String,
}

impl<T: Into<String>> From<T> for Rejection {
    /// For a message.
    fn from(reason: T) -> Self {
        Self { kind: ThrownOut::Message, reason: reason.into() }
    }
}

/// Of a message that is refused, the reason; it ends the connection.
pub(super) type Result<T> = std::result::Result<T, Rejection>;

pub(super) fn refuse<T>(reason: impl Into<Rejection>) -> Result<T> {
    Err(reason.into())
}

/// Of a message that wants more than the port may have.
pub(crate) fn exceeded(message: &str, exceeded: Exceeded) -> Rejection {
    Rejection { kind: ThrownOut::Quota, reason: format!("{message}: {exceeded}") }
}

/// What a message is answered with, beyond an acknowledgement.
#[derive(Debug)]
pub struct Reply {
    /// The payload.
    pub payload: Vec<u8>,
    /// What goes with it.
    pub descriptor: Option<Numbered>,
}

impl Reply {
    /// A payload without padding.
    pub(crate) fn of(body: &impl VhostUserMsgValidator) -> Self {
        Self { payload: body.as_slice().to_vec(), descriptor: None }
    }
}
