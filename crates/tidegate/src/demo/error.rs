//! Why the demo could not be run.

/// Why the scene could not be made, or broke.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the demo could not be run: {reason}")]
pub struct SceneError {
    pub(super) reason: String,
}

impl SceneError {
    /// An error with this reason.
    pub fn new(reason: String) -> Self {
        Self { reason }
    }

    /// What is wrong, and with which part of the scene.
    pub fn reason(&self) -> &str {
        &self.reason
    }
}
