//! The body of every error.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Any refusal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// What was wrong and what to do.
    pub error: String,
    /// One entry per problem, where there are several.
    pub details: Vec<String>,
}
