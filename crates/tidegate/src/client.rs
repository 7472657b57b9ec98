//! The agent's HTTP API, over its Unix socket. Errors say what to do.

use crate::exit::{Code, Failure};
use crate::format::path;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, io};
use tidegate_visible::{is_hidden, visible};
use tokio::net::UnixStream;

/// How long `Client` retries to connect while the agent's listen queue is full, and the pause between two
/// attempts.
const FULL: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(50);
/// Longest answer accepted (bytes): tens of thousands of vNICs take less. The process at the socket need
/// not be the agent.
const LONGEST: usize = 256 << 20;
/// Longest wait for the head of an answer, and then for its end. The agent answers every request within 40
/// s.
const PATIENCE: Duration = Duration::from_secs(60);

/// An HTTP client of the agent. Each request opens its own connection, so a restart of the agent goes
/// unnoticed.
#[derive(Clone, Debug)]
pub struct Client {
    socket: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No agent answers at the socket.
    #[error("cannot reach the agent at {}: {source}\n{}", path(socket), advice(socket, source))]
    Unreachable {
        socket: PathBuf,
        /// Why the connection failed.
        source: io::Error,
    },
    /// The agent closed the connection in the middle, or did not answer in time.
    #[error(
        "the connection to the agent at {} broke: {reason}\nSee its log: journalctl -u tidegate-agent",
        path(socket)
    )]
    Broken {
        socket: PathBuf,
        /// What happened.
        reason: String,
    },
    #[error("{}", problem.text())]
    Answered {
        status: StatusCode,
        /// The body of the answer.
        problem: Problem,
    },
    /// The answer is not what this program expects.
    #[error(
        "this program does not understand the agent's answer to {request}: {}\nIs the agent from another release?",
        visible(reason)
    )]
    UnexpectedAnswer {
        request: String,
        /// What the parser rejected.
        reason: String,
    },
}

/// The body of an error answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Problem {
    /// What was wrong, in one line.
    pub error: String,
    /// Further reasons, such as each reason of a refusal: strings, or objects.
    #[serde(default)]
    pub details: Value,
}

impl Problem {
    fn text(&self) -> String {
        let line = |value: &Value| match value {
            Value::String(text) => with_excerpts(text).replace('\n', "\n  "),
            other => visible(&other.to_string()).into_owned(),
        };
        let error = line(&Value::String(self.error.clone()));
        let details: Vec<String> = match &self.details {
            Value::Null => vec![],
            Value::Array(all) => all.iter().map(line).collect(),
            one => vec![line(one)],
        };
        details
            .into_iter()
            .filter(|detail| *detail != error)
            .fold(error.clone(), |text, d| text + "\n  " + &d)
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let code = match &error {
            ClientError::Unreachable { .. } | ClientError::Broken { .. } => Code::Unreachable,
            ClientError::Answered { status, .. } => match *status {
                StatusCode::BAD_REQUEST | StatusCode::CONFLICT | StatusCode::UNPROCESSABLE_ENTITY => {
                    Code::Refused
                }
                StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => {
                    Code::Unreachable
                }
                _ => Code::Failed,
            },
            ClientError::UnexpectedAnswer { .. } => Code::Failed,
        };
        Self { code, message: error.to_string() }
    }
}

impl Client {
    /// Creates a client of the agent at `socket`, without connecting.
    pub fn new(socket: &Path) -> Self {
        Self { socket: socket.to_owned() }
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Sends `GET path` and parses the JSON answer.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.json(Method::GET, path, None).await
    }

    /// As [`get`](Self::get), with texts that are safe to show ([`for_display`]).
    pub async fn get_for_display<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        for_display(self.get(path).await?, path)
    }

    pub async fn post_toml<T: DeserializeOwned>(&self, path: &str, toml: &str) -> Result<T, ClientError> {
        self.json(Method::POST, path, Some(("application/toml", toml.to_owned()))).await
    }

    pub async fn patch<T: DeserializeOwned>(&self, path: &str, body: &Value) -> Result<T, ClientError> {
        self.json(Method::PATCH, path, Some(("application/json", body.to_string()))).await
    }

    pub async fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.json(Method::DELETE, path, None).await
    }

    /// Sends `GET path` and returns the body as a stream.
    pub async fn stream(&self, path: &str) -> Result<Incoming, ClientError> {
        Ok(self.send(&Method::GET, path, None).await?.into_body())
    }

    async fn json<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<(&str, String)>,
    ) -> Result<T, ClientError> {
        let response = self.send(&method, path, body).await?;
        let bytes = self.collect(response).await?;
        // An empty answer (204) is JSON's null.
        let text: &[u8] = if bytes.is_empty() { b"null" } else { &bytes };
        serde_json::from_slice(text).map_err(|e| ClientError::UnexpectedAnswer {
            request: format!("{method} {path}"),
            reason: e.to_string(),
        })
    }

    async fn send(
        &self,
        method: &Method,
        path: &str,
        body: Option<(&str, String)>,
    ) -> Result<Response<Incoming>, ClientError> {
        let stream = self
            .connect()
            .await
            .map_err(|source| ClientError::Unreachable { socket: self.socket.clone(), source })?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|e| self.broken_off(&e))?;
        // The task ends when the response body has been read or dropped; connection errors reach us through
        // the body.
        tokio::spawn(connection);
        let mut request = Request::builder().method(method).uri(path).header(header::HOST, "tidegate");
        let (kind, content) = body.unzip();
        if let Some(kind) = kind {
            request = request.header(header::CONTENT_TYPE, kind);
        }
        let request = request.body(Full::new(Bytes::from(content.unwrap_or_default()))).map_err(|e| {
            ClientError::UnexpectedAnswer { request: format!("{method} {path}"), reason: e.to_string() }
        })?;
        let response = tokio::time::timeout(PATIENCE, sender.send_request(request)).await;
        let response = response.map_err(|_| self.timed_out())?.map_err(|e| self.broken_off(&e))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let bytes = self.collect(response).await?;
        let problem = serde_json::from_slice(&bytes).unwrap_or_else(|_| Problem {
            error: format!("{method} {path}: {status}: {}", String::from_utf8_lossy(&bytes).trim()),
            details: Value::Null,
        });
        Err(ClientError::Answered { status, problem })
    }

    /// Connects. While the agent's listen queue is full, retries for up to `FULL`.
    async fn connect(&self) -> io::Result<UnixStream> {
        let begin = Instant::now();
        loop {
            match UnixStream::connect(&self.socket).await {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock && begin.elapsed() < FULL => {
                    tokio::time::sleep(PAUSE).await;
                }
                done => return done,
            }
        }
    }

    /// Reads the whole body. Fails if it is longer than `LONGEST` or takes longer than `PATIENCE`.
    async fn collect(&self, response: Response<Incoming>) -> Result<Bytes, ClientError> {
        let body = Limited::new(response.into_body(), LONGEST).collect();
        match tokio::time::timeout(PATIENCE, body).await {
            Ok(Ok(whole)) => Ok(whole.to_bytes()),
            Ok(Err(e)) => Err(self.broken_off(&e)),
            Err(_) => Err(self.timed_out()),
        }
    }

    fn broken_off(&self, error: &impl std::fmt::Display) -> ClientError {
        ClientError::Broken { socket: self.socket.clone(), reason: error.to_string() }
    }

    fn timed_out(&self) -> ClientError {
        self.broken_off(&format!("no answer for {} s", PATIENCE.as_secs()))
    }
}

/// Makes a text visible in one line. Keeps the line breaks before lines that quote a contract (a number and
/// a bar), and before further errors in the file that the first line names.
pub fn with_excerpts(text: &str) -> String {
    let is_quoted =
        |line: &str| line.trim_start_matches(|c: char| c == ' ' || c.is_ascii_digit()).starts_with('|');
    let file = text.split_once(':').map(|(file, _)| file).filter(|file| file.starts_with('/'));
    let is_error =
        |line: &str| file.is_some_and(|f| line.strip_prefix(f).is_some_and(|r| r.starts_with(':')));
    let mut lines = text.split('\n').filter(|line| !line.is_empty());
    let first = visible(lines.next().unwrap_or_default()).into_owned();
    lines.fold(first, |all, line| {
        let end = if is_quoted(line) || is_error(line) { "\n" } else { "\\n" };
        all + end + &visible(line)
    })
}

/// Parses an answer for display only: makes control characters in its texts visible, and removes line
/// breaks except those that [`with_excerpts`] keeps.
///
/// # Errors
/// The answer does not have the form of `T`.
pub fn for_display<T: DeserializeOwned>(mut answer: Value, request: &str) -> Result<T, ClientError> {
    make_visible(&mut answer);
    serde_json::from_value(answer)
        .map_err(|e| ClientError::UnexpectedAnswer { request: request.to_owned(), reason: e.to_string() })
}

fn make_visible(value: &mut Value) {
    match value {
        Value::String(text) => *text = with_excerpts(text),
        Value::Array(all) => all.iter_mut().for_each(make_visible),
        Value::Object(entries) => {
            entries.values_mut().for_each(make_visible);
            if entries.keys().any(|key| key.contains(is_hidden)) {
                let all = std::mem::take(entries).into_iter();
                *entries = all.map(|(key, value)| (visible(&key).into_owned(), value)).collect();
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Percent-encodes a value as one path segment or query value of a URI (RFC 3986).
pub fn encode(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~".contains(&b);
    text.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

fn advice(socket: &Path, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied => match group_of(socket) {
            Some(group) if group != "root" => format!(
                "Only members of group `{group}` may use it. Join it and log in again: sudo usermod -aG {group} $USER"
            ),
            _ => "Only root may use it: run this with sudo, or let the agent give it to a group \
                  (tidegate agent --api-group GROUP)."
                .into(),
        },
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            "Is it running? Start it with: sudo systemctl start tidegate-agent (or: sudo tidegate agent). \
             To name another socket, use --api or TIDEGATE_API."
                .into()
        }
        _ => "To name another socket, use --api or TIDEGATE_API.".into(),
    }
}

/// Returns the group of the socket or, if the socket is hidden, of its folder.
fn group_of(socket: &Path) -> Option<String> {
    let gid = fs::metadata(socket).ok().or_else(|| fs::metadata(socket.parent()?).ok())?.gid();
    let groups = fs::read_to_string("/etc/group").ok()?;
    let name = groups.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        (fields.len() > 2 && fields[2] == gid.to_string()).then(|| fields[0].to_owned())
    });
    Some(name.unwrap_or_else(|| gid.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_value_is_encoded_for_a_uri() {
        assert_eq!(encode("/etc/a b&c.toml"), "%2Fetc%2Fa%20b%26c.toml");
    }

    #[test]
    fn a_problem_lists_its_details_once() {
        let problem = Problem { error: "refused".into(), details: json!(["first", "refused", {"a": 1}]) };
        assert_eq!(problem.text(), "refused\n  first\n  {\"a\":1}");
        assert_eq!(Problem { error: "gone".into(), details: Value::Null }.text(), "gone");
    }

    #[test]
    fn a_missing_agent_says_how_to_start_it() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let client = Client::new(Path::new("/nonexistent/api.sock"));
        let failure = Failure::from(runtime.block_on(client.get::<Value>("/v1/host")).unwrap_err());
        assert_eq!(failure.code, Code::Unreachable);
        assert!(failure.message.contains("systemctl start tidegate-agent"), "{}", failure.message);
    }

    #[test]
    fn the_status_decides_the_exit_code() {
        let failure =
            |status| Failure::from(ClientError::Answered { status, problem: Problem::default() }).code;
        assert_eq!(failure(StatusCode::UNPROCESSABLE_ENTITY), Code::Refused);
        assert_eq!(failure(StatusCode::CONFLICT), Code::Refused);
        assert_eq!(failure(StatusCode::NOT_FOUND), Code::Failed);
        assert_eq!(failure(StatusCode::SERVICE_UNAVAILABLE), Code::Unreachable);
    }
}
