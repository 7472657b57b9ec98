//! A pipe as a response body.
//!
//! ```text
//!  switch ─▶ pipe ─▶ PipeBody ─▶ HTTP client; the client gone closes the pipe, which ends the capture
//! ```

use super::error::ApiError;
use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use http_body::Frame;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tidegate_place::Capture;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::unix::pipe::Receiver;
use tokio::sync::oneshot::error::TryRecvError;

/// Bytes read from the pipe at once: the default capacity of a pipe.
const CHUNK: usize = 64 << 10;

struct PipeBody(Receiver);

impl http_body::Body for PipeBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let mut chunk = vec![0; CHUNK];
        let mut buffer = ReadBuf::new(&mut chunk);
        if let Err(e) = ready!(Pin::new(&mut self.0).poll_read(context, &mut buffer)) {
            return Poll::Ready(Some(Err(e)));
        }
        let filled = buffer.filled().len();
        chunk.truncate(filled);
        Poll::Ready((filled > 0).then(|| Ok(Frame::data(chunk.into()))))
    }
}

/// Starts a capture; returns its pcapng as a body.
///
/// # Errors
/// The place refuses, or no pipe can be made.
pub async fn start(place: Arc<dyn Capture>, vnic: String, snaplen: u32) -> Result<Body, ApiError> {
    let (reader, writer) = io::pipe().map_err(|e| failed("make a pipe", &e))?;
    let receiver = Receiver::from_owned_fd(reader.into()).map_err(|e| failed("use a pipe", &e))?;
    // A place that refuses closes its end, which would look like frames. This end stays open until the answer.
    let second_writer = writer.try_clone().map_err(|e| failed("hold a pipe", &e))?;
    let (tell, mut told) = tokio::sync::oneshot::channel();
    // Not on tokio's threads: a place that hangs must not keep the agent from ending.
    let asking = move || {
        drop(tell.send(place.capture(&vnic, snaplen, writer.into())));
        drop(second_writer);
    };
    std::thread::Builder::new()
        .name("capture".into())
        .spawn(asking)
        .map_err(|e| failed("start a thread", &e))?;
    // Frames may flow before the place has answered.
    let answer = tokio::select! {
        biased;
        answer = &mut told => answer.map_err(|_| TryRecvError::Closed),
        _ = receiver.readable() => told.try_recv(),
    };
    match answer {
        Ok(answer) => answer?,
        Err(TryRecvError::Empty) => {}
        Err(TryRecvError::Closed) => {
            return Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "the capture panicked"));
        }
    }
    Ok(Body::new(PipeBody(receiver)))
}

fn failed(what: &str, e: &io::Error) -> ApiError {
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, format!("cannot {what}: {e}"))
}
