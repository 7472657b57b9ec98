//! Answers as bytes, made off the thread that serves clients: a long answer does not delay the requests of others.
//!
//! ```text
//!  Published ── the first request ─▶ made, stored on the board ─▶ all requests until the next look
//!  a plan's outcome ───────────────▶ made once
//! ```

use super::error::ApiError;
use super::json::{as_json, json};
use crate::board::{Board, Published, Written};
use axum::body::Bytes;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;
use std::sync::{Arc, OnceLock};
use tokio::sync::Semaphore;

/// Most answers written at the same time.
const AT_ONCE: usize = 2;

#[derive(Clone, Debug)]
pub struct Writer(Arc<Semaphore>);

impl Default for Writer {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(AT_ONCE)))
    }
}

impl Writer {
    /// Returns a part of the board as text. `cell` selects where the text is stored; `write` makes it the first time.
    pub async fn part(
        &self,
        board: &Board,
        cell: fn(&Written) -> &OnceLock<Bytes>,
        write: fn(&Arc<Published>) -> Result<Vec<u8>, String>,
    ) -> Result<Bytes, ApiError> {
        let published = board.read();
        if let Some(bytes) = cell(&published.written).get() {
            return Ok(bytes.clone());
        }
        self.write(move || {
            let cell = cell(&published.written);
            match cell.get() {
                Some(bytes) => Ok(bytes.clone()),
                None => write(&published).map(|bytes| cell.get_or_init(|| bytes.into()).clone()),
            }
        })
        .await
    }

    pub async fn json<T: Serialize + Send + 'static>(&self, value: T) -> Result<Response, ApiError> {
        self.json_from(move || value).await
    }

    /// Returns the result of `make`, which may take long, as JSON.
    pub async fn json_from<T: Serialize>(
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[tokio::test]
    async fn an_answer_that_is_the_same_for_all_clients_is_written_once() {
        static WRITTEN: AtomicUsize = AtomicUsize::new(0);
        let (writer, board) = (Writer::default(), Board::new(Published::starting()));
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
