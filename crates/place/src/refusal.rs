//! Reasons for a "no", and for a failure.

/// The reason for which a place cannot keep a contract.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The vNIC.
    pub vnic: String,
    /// The reason, and what to do.
    pub reason: String,
}

impl Refusal {
    /// The reason for which `vnic` cannot be had.
    pub fn new(vnic: &str, reason: impl Into<String>) -> Self {
        Self { vnic: vnic.to_owned(), reason: reason.into() }
    }
}

/// The reason for which an action or an observation failed.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// The place does not answer, or stopped answering: the next observation shows what is in force.
    #[error("{0}")]
    Unreachable(String),
    /// The contract cannot be kept, by what only an attempt shows; nothing was changed.
    #[error("{0}")]
    Refused(String),
    /// The place refused, or something went wrong; nothing was changed.
    #[error("{0}")]
    Failed(String),
}
