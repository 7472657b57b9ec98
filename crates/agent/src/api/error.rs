//! Refusals and their status codes.

use super::json::Short;
use crate::commands::ApplyError;
use crate::views::ErrorBody;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use tidegate_contract::Errors;
use tidegate_place::PlaceError;

#[derive(Debug)]
pub struct ApiError {
    status: StatusCode,
    body: ErrorBody,
}

impl ApiError {
    pub fn new(status: StatusCode, error: impl Into<String>) -> Self {
        Self::with_details(status, error, vec![])
    }

    fn with_details(status: StatusCode, error: impl Into<String>, details: Vec<String>) -> Self {
        Self { status, body: ErrorBody { error: error.into(), details } }
    }

    pub fn no_vnic(name: &str) -> Self {
        ApplyError::NoVnic(name.into()).into()
    }

    pub fn no_uplink(name: &str) -> Self {
        let why = format!("there is no uplink {name:?}; `tidegate uplink` lists all");
        Self::new(StatusCode::NOT_FOUND, why)
    }

    /// Returns the refusal for a change that the reconciler did not finish in time.
    pub fn stuck() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "the change was not finished in time: the agent is busy, or a place does not answer; see `tidegate vnic ls` for what is in force",
        )
    }
}

impl From<ApplyError> for ApiError {
    fn from(error: ApplyError) -> Self {
        let text = error.to_string();
        match error {
            ApplyError::Invalid(Errors(errors)) => {
                let details: Vec<String> = errors.iter().map(ToString::to_string).collect();
                let what = match details.len() {
                    1 => "the contract is wrong; nothing was changed".to_owned(),
                    n => format!("the contracts are wrong in {n} places; nothing was changed"),
                };
                Self::with_details(StatusCode::BAD_REQUEST, what, details)
            }
            ApplyError::Needed(_) => Self::new(StatusCode::BAD_REQUEST, text),
            ApplyError::NoVnic(_) => Self::new(StatusCode::NOT_FOUND, text),
            ApplyError::Owned(_) => Self::new(StatusCode::CONFLICT, text),
            ApplyError::Refused(why) => Self::with_details(
                StatusCode::UNPROCESSABLE_ENTITY,
                "these contracts cannot be kept; nothing was changed",
                why,
            ),
            ApplyError::Failed(why) => Self::with_details(
                StatusCode::CONFLICT,
                "the change was not possible and was taken back",
                why,
            ),
            ApplyError::Unreachable(_) => Self::new(StatusCode::SERVICE_UNAVAILABLE, text),
            // RFC 4918, 11.5: the server cannot store what is needed.
            ApplyError::NotRecorded(_) => Self::new(StatusCode::INSUFFICIENT_STORAGE, text),
            ApplyError::NotSaved { .. } => Self::new(StatusCode::INTERNAL_SERVER_ERROR, text),
        }
    }
}

impl From<PlaceError> for ApiError {
    fn from(error: PlaceError) -> Self {
        let status = match error {
            PlaceError::Unreachable(_) => StatusCode::SERVICE_UNAVAILABLE,
            PlaceError::Refused(_) => StatusCode::UNPROCESSABLE_ENTITY,
            PlaceError::Failed(_) => StatusCode::CONFLICT,
        };
        Self::new(status, error.to_string())
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        (self.status, Short(self.body)).into_response()
    }
}
