//! The error of the demo.

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the demo could not be run: {reason}")]
pub struct SceneError {
    pub(super) reason: String,
}

impl SceneError {
    pub fn new(reason: String) -> Self {
        Self { reason }
    }

    pub fn reason(&self) -> &str {
        &self.reason
    }
}
