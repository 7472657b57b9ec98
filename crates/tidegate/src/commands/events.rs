//! `tidegate events`: what happens on the host, a line each, until Ctrl-C.

use crate::client::{Client, for_display};
use crate::exit::{self, Code, Failure};
use crate::explain;
use crate::format::plural;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::Value;
use tidegate_agent::views::{EventKind, EventView};

/// Longest event (bytes): the process at the socket need not be the agent.
const LONGEST: usize = 1 << 20;

/// Arguments of `events`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: tidegate events --json | jq 'select(.kind == \"miss\")'")]
pub struct Args {}

/// Prints events until Ctrl-C is pressed.
///
/// # Errors
/// The agent ends, or cannot be reached.
pub async fn run(client: &Client, Args {}: Args, json: bool) -> Result<(), Failure> {
    let body = client.stream("/v1/events").await?;
    tokio::select! {
        ended = print_all(body, json) => ended,
        _ = tokio::signal::ctrl_c() => Ok(()),
    }
}

async fn print_all(mut body: Incoming, json: bool) -> Result<(), Failure> {
    let mut stream = Stream::default();
    loop {
        let part = match body.frame().await {
            Some(Ok(part)) => part,
            Some(Err(_)) | None => return Err(gone()),
        };
        let Some(bytes) = part.data_ref() else { continue };
        for event in stream.take(bytes)? {
            if json {
                exit::print_json_line(&event)?;
            } else {
                exit::print(&line(&for_display(event, "/v1/events")?))?;
            }
        }
    }
}

fn gone() -> Failure {
    Failure { code: Code::Unreachable, message: "the agent ended; there are no more events".into() }
}

/// The part of a stream of server-sent events that is no whole event yet.
#[derive(Default)]
struct Stream(Vec<u8>);

impl Stream {
    /// Takes more of the stream; returns the data of the events that it completes.
    fn take(&mut self, bytes: &[u8]) -> Result<Vec<Value>, Failure> {
        self.0.extend_from_slice(bytes);
        let mut events = Vec::new();
        while let Some(end) = self.0.windows(2).position(|pair| pair == b"\n\n") {
            let whole: Vec<u8> = self.0.drain(..end + 2).collect();
            let data = whole.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"data: "));
            let read = data.map(serde_json::from_slice).transpose();
            let read = read.map_err(|e| Failure::failed(format!("an event that is no JSON: {e}")))?;
            events.extend(read);
        }
        if self.0.len() > LONGEST {
            return Err(Failure::failed(format!("an event has more than {LONGEST} bytes")));
        }
        Ok(events)
    }
}

/// Returns an event as text: the time of day (UTC), the kind, its subject, and what happened.
fn line(event: &EventView) -> String {
    let EventView { at, kind, about, what, miss, lost } = event;
    let second = at / 1_000_000_000 % 86_400;
    let time = format!(
        "{:02}:{:02}:{:02}.{:03}",
        second / 3600,
        second / 60 % 60,
        second % 60,
        at / 1_000_000 % 1000
    );
    let what = match (kind, miss) {
        (EventKind::Miss, Some(miss)) => explain::miss(miss),
        _ => what.clone(),
    };
    let before = match lost {
        0 => String::new(),
        _ => format!("{} lost before the next one: this program reads too slowly\n", plural(*lost, "event")),
    };
    let about = if about.is_empty() { String::new() } else { format!("{about}: ") };
    format!("{before}{time}  {:<10}  {about}{what}\n", kind.label())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_from_any_parts_of_the_stream() {
        let text =
            b": events from now on\n\nevent: drift\ndata: {\"a\":1}\n\nevent: miss\ndata: {\"a\":2}\n\n";
        for size in 1..text.len() {
            let mut stream = Stream::default();
            let events: Vec<Value> = text.chunks(size).flat_map(|part| stream.take(part).unwrap()).collect();
            let expected = [1, 2].map(|n| serde_json::json!({ "a": n }));
            assert_eq!(events, expected, "{size}");
        }
        assert!(Stream::default().take(b"data: no JSON\n\n").is_err());
        assert!(Stream::default().take(&[b'x'; LONGEST + 1]).is_err());
    }

    #[test]
    fn a_line_has_time_kind_subject_and_what_happened() {
        let event = EventView {
            at: 1_795_242_326_424_056_069,
            kind: EventKind::Uplink,
            about: "net0".into(),
            what: "in force".into(),
            miss: None,
            lost: 0,
        };
        assert_eq!(line(&event), "06:25:26.424  uplink      net0: in force\n");
        let slow = line(&EventView { lost: 2, about: String::new(), ..event });
        assert!(slow.starts_with("2 events lost before the next one"), "{slow}");
    }
}
