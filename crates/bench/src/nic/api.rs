//! The part of the agent's HTTP API that the loop needs: counters and `tx.max`.

use serde::Deserialize;
use serde_json::json;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;
use tidegate_contract::Rate;

const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub struct Api(pub PathBuf);

#[derive(Deserialize)]
struct Vnic {
    name: String,
    stats: Option<Stats>,
}

#[derive(Deserialize)]
struct Stats {
    tx: Direction,
}

#[derive(Deserialize)]
struct Direction {
    wire_bytes: u64,
}

impl Api {
    /// Returns the wire bytes that each of these vNICs has sent in all; `None` for a vNIC without counters
    /// now.
    ///
    /// # Errors
    /// The agent does not answer, or its answer is no list of vNICs.
    pub fn sent(&self, names: &[String]) -> io::Result<Vec<Option<u64>>> {
        let vnics: Vec<Vnic> = serde_json::from_str(&self.ask("GET", "/v1/vnics", "")?)?;
        let of = |name: &String| {
            let vnic = vnics.iter().find(|vnic| vnic.name == *name)?;
            Some(vnic.stats.as_ref()?.tx.wire_bytes)
        };
        Ok(names.iter().map(of).collect())
    }

    /// Sets `tx.max`.
    ///
    /// # Errors
    /// The agent does not answer, or refuses.
    pub fn limit(&self, name: &str, rate: Rate) -> io::Result<()> {
        let body = json!({"set": {"tx.max": rate.to_string()}}).to_string();
        self.ask("PATCH", &format!("/v1/vnics/{name}"), &body).map(drop)
    }

    /// Sends one request. Returns the body of the answer.
    fn ask(&self, method: &str, path: &str, body: &str) -> io::Result<String> {
        let mut stream = UnixStream::connect(&self.0)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let length = body.len();
        // HTTP/1.0 answers are not chunked.
        let head = format!("{method} {path} HTTP/1.0\r\nHost: tidegate\r\nContent-Length: {length}\r\n");
        write!(stream, "{head}Content-Type: application/json\r\n\r\n{body}")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        let status = head.split(' ').nth(1).unwrap_or_default();
        if status.starts_with('2') {
            Ok(body.to_owned())
        } else {
            Err(io::Error::other(format!("{method} {path}: the agent answered {head} {body}")))
        }
    }
}
