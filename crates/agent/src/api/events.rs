//! Events as server-sent events (HTML, 9.2): a body without end.
//!
//! ```text
//!  Events ─▶ queue ─▶ "event: KIND\ndata: JSON\n\n" ─▶ client; the client gone frees its queue
//! ```

use super::json::as_json;
use crate::views::EventView;
use axum::body::{Body, Bytes};
use http_body::Frame;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::sync::mpsc::Receiver;

/// The first bytes: a comment, so that the client has its answer before anything happens.
const GREETING: &[u8] = b": events from now on\n\n";

struct EventBody {
    events: Receiver<EventView>,
    has_begun: bool,
}

/// Returns the body of an answer.
pub fn body(events: Receiver<EventView>) -> Body {
    Body::new(EventBody { events, has_begun: false })
}

impl http_body::Body for EventBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if !std::mem::replace(&mut self.has_begun, true) {
            return Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(GREETING)))));
        }
        let event = ready!(self.events.poll_recv(context));
        Poll::Ready(event.map(|event| text(&event).map(|text| Frame::data(text.into()))))
    }
}

/// Returns an event in the stream's form; JSON has no line breaks of its own.
fn text(event: &EventView) -> io::Result<Vec<u8>> {
    let json = as_json(event).map_err(io::Error::other)?;
    let head = format!("event: {}\ndata: ", event.kind.label());
    Ok([head.as_bytes(), &json, b"\n\n"].concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::views::EventKind;

    #[test]
    fn an_event_is_one_line_of_data() {
        let event = EventView {
            at: 5,
            kind: EventKind::Uplink,
            about: "net0".into(),
            what: "failed: two\nlines \u{1b}[2J".into(),
            miss: None,
            lost: 0,
        };
        let text = String::from_utf8(text(&event).unwrap()).unwrap();
        let mut lines = text.lines();
        assert_eq!(lines.next(), Some("event: uplink"));
        let data = lines.next().unwrap().strip_prefix("data: ").unwrap();
        assert_eq!(serde_json::from_str::<EventView>(data).unwrap(), event);
        assert_eq!((lines.next(), lines.next()), (Some(""), None));
    }
}
