//! JSON of answers.

use axum::body::Bytes;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use std::borrow::Cow;

/// Returns `value` as JSON. Characters that a terminal obeys, or does not show, become escapes: the data is exact.
pub fn as_json(value: &impl Serialize) -> Result<Vec<u8>, String> {
    let text = serde_json::to_string(value).map_err(|e| e.to_string())?;
    Ok(match tidegate_visible::json(&text) {
        Cow::Owned(escaped) => escaped.into_bytes(),
        Cow::Borrowed(_) => text.into_bytes(),
    })
}

pub fn json(bytes: Bytes) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], bytes).into_response()
}

/// A short answer, made on the thread that serves the client.
pub struct Short<T>(pub T);

impl<T: Serialize> IntoResponse for Short<T> {
    fn into_response(self) -> Response {
        match as_json(&self.0) {
            Ok(bytes) => json(bytes.into()),
            Err(why) => (StatusCode::INTERNAL_SERVER_ERROR, why).into_response(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_keeps_the_data_and_escapes_hidden_characters() {
        let text = "\u{1b}[2J\u{9b}31m\u{7f}\u{202e}\u{e0041}\n\u{200b}";
        let bytes = as_json(&[text, "plain"]).unwrap();
        let shown = std::str::from_utf8(&bytes).unwrap();
        assert!(!shown.contains(tidegate_visible::is_hidden), "{shown:?}");
        assert_eq!(serde_json::from_slice::<[String; 2]>(&bytes).unwrap(), [text, "plain"]);
    }
}
