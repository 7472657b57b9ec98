//! Answers as bytes, written off the thread that serves clients: however long one is, the others' requests are read.
//!
//! ```text
//!  Published ── the first who asks ─▶ written, kept ─▶ all who ask until the next look
//!  a plan's outcome ────────────────▶ written once
//! ```

use super::error::ApiError;
use crate::reconciler::{Board, Published, read};
use axum::body::Bytes;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use std::borrow::Cow;
use std::sync::{Arc, OnceLock};
use tokio::sync::Semaphore;

/// Answers that are written at the same time.
const AT_ONCE: usize = 2;

/// What was written of a published state.
#[derive(Clone, Debug, Default)]
pub struct Written {
    /// `/v1/host`.
    pub host: OnceLock<Bytes>,
    /// `/v1/status`.
    pub status: OnceLock<Bytes>,
    /// `/v1/vnics`.
    pub vnics: OnceLock<Bytes>,
    /// `/metrics`.
    pub metrics: OnceLock<Bytes>,
}

/// Writes answers.
#[derive(Clone, Debug)]
pub struct Writer(Arc<Semaphore>);

impl Default for Writer {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(AT_ONCE)))
    }
}

impl Writer {
    /// A part of what stands on the board: `kept` is where its text is kept, and `write` makes the text the first time.
    pub async fn part(
        &self,
        board: &Board,
        kept: fn(&Written) -> &OnceLock<Bytes>,
        write: fn(&Arc<Published>) -> Result<Vec<u8>, String>,
    ) -> Result<Bytes, ApiError> {
        let published = read(board);
        if let Some(bytes) = kept(&published.written).get() {
            return Ok(bytes.clone());
        }
        self.write(move || {
            let kept = kept(&published.written);
            match kept.get() {
                Some(bytes) => Ok(bytes.clone()),
                None => write(&published).map(|bytes| kept.get_or_init(|| bytes.into()).clone()),
            }
        })
        .await
    }

    /// `value` as JSON.
    pub async fn json<T: Serialize + Send + 'static>(&self, value: T) -> Result<Response, ApiError> {
        self.made(move || value).await
    }

    /// What `make` makes, which may take long, as JSON.
    pub async fn made<T: Serialize>(
        &self,
        make: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Response, ApiError> {
        self.write(move || as_json(&make()).map(Bytes::from)).await.map(json)
    }

    async fn write(
        &self,
        write: impl FnOnce() -> Result<Bytes, String> + Send + 'static,
    ) -> Result<Bytes, ApiError> {
        let failed = |why: String| {
            ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, format!("cannot write the answer: {why}"))
        };
        let turn = Arc::clone(&self.0).acquire_owned().await.map_err(|e| failed(e.to_string()))?;
        let written = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            write()
        });
        written.await.map_err(|e| failed(e.to_string()))?.map_err(failed)
    }
}

/// Of `value`. What a terminal would obey, or not show, stands in it as JSON's own escapes: the data is exact.
pub fn as_json(value: &impl Serialize) -> Result<Vec<u8>, String> {
    let text = serde_json::to_string(value).map_err(|e| e.to_string())?;
    Ok(match tidegate_visible::json(&text) {
        Cow::Owned(escaped) => escaped.into_bytes(),
        Cow::Borrowed(_) => text.into_bytes(),
    })
}

/// A response of JSON.
pub fn json(bytes: Bytes) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], bytes).into_response()
}

/// A short answer, which is written where it is served.
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
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn the_data_is_exact_and_nothing_in_it_acts() {
        let text = "\u{1b}[2J\u{9b}31m\u{7f}\u{202e}\u{e0041}\n\u{200b}";
        let bytes = as_json(&[text, "plain"]).unwrap();
        let shown = std::str::from_utf8(&bytes).unwrap();
        assert!(!shown.contains(tidegate_visible::is_hidden), "{shown:?}");
        assert_eq!(serde_json::from_slice::<[String; 2]>(&bytes).unwrap(), [text, "plain"]);
    }

    #[tokio::test]
    async fn the_same_for_all_is_written_once() {
        static WRITTEN: AtomicUsize = AtomicUsize::new(0);
        let (writer, board) = (Writer::default(), crate::reconciler::empty_board());
        let ask = || {
            writer.part(
                &board,
                |written| &written.host,
                |published| {
                    WRITTEN.fetch_add(1, Ordering::SeqCst);
                    as_json(&published.host)
                },
            )
        };
        let first = ask().await.unwrap();
        assert!(first.starts_with(b"{\"version\""));
        let (second, third) = tokio::join!(ask(), ask());
        assert!(second.unwrap() == first && third.unwrap() == first);
        assert_eq!(WRITTEN.load(Ordering::SeqCst), 1);
    }
}
