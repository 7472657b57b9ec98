//! The API's clients: none can keep the others waiting.
//!
//! ```text
//!  socket ─▶ accept, at once ─▶ Room: a place for this user? ── no ─▶ 503
//!                                  │ a slow client may have to go for it
//!                                  └─▶ TimedStream: the head of its request within REQUEST, an answer within ANSWER,
//!                                      or it goes; a reader that takes nothing too
//! ```
//!
//! The kernel names the user of each client (SO_PEERCRED, unix(7)).

use super::room::{Entrance, Id, Room};
use axum::extract::connect_info::Connected;
use axum::serve::IncomingStream;
use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep, sleep};

/// Longest time from a connection to the end of its request's head, and from there to the end of its body.
pub const REQUEST: Duration = Duration::from_secs(5);
/// Longest time from a request's head to the start of its answer, and between two bytes that the client takes. Longer
/// than the routes wait for the reconciler.
const ANSWER: Duration = Duration::from_secs(40);

pub struct Bounded {
    socket: UnixListener,
    clients: Arc<Mutex<ClientTable>>,
}

/// The clients that have a place, and the channel that tells each to go.
#[derive(Debug, Default)]
struct ClientTable {
    room: Room,
    disconnects: BTreeMap<Id, oneshot::Sender<()>>,
}

fn lock(clients: &Mutex<ClientTable>) -> MutexGuard<'_, ClientTable> {
    clients.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Bounded {
    pub fn new(socket: UnixListener) -> Self {
        Self { socket, clients: Arc::default() }
    }

    /// Gives a client a place, or says why there is none.
    fn admit(&self, user: u32) -> Result<(Seat, oneshot::Receiver<()>), String> {
        let mut clients = lock(&self.clients);
        match clients.room.enter(user, Instant::now().into_std()) {
            Entrance::Admitted(id, evicted) => {
                if let Some(disconnect) = evicted.and_then(|evicted| clients.disconnects.remove(&evicted)) {
                    let _ = disconnect.send(());
                }
                let (disconnect, disconnected) = oneshot::channel();
                clients.disconnects.insert(id, disconnect);
                Ok((Seat { clients: Arc::clone(&self.clients), id }, disconnected))
            }
            Entrance::Full { taken, by_user } => {
                let whose = if by_user { format!(" of user {user}") } else { String::new() };
                Err(format!("the agent is busy with {taken} clients{whose}: try again when one is done"))
            }
        }
    }
}

/// A client's place; dropping it frees the place.
#[derive(Debug)]
struct Seat {
    clients: Arc<Mutex<ClientTable>>,
    id: Id,
}

impl Seat {
    /// Notes that from now on the agent waits for the client, or the client for the agent.
    fn wait_for(&self, client: bool) {
        let now = client.then(|| Instant::now().into_std());
        lock(&self.clients).room.wait_for(self.id, now);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut clients = lock(&self.clients);
        clients.room.leave(self.id);
        clients.disconnects.remove(&self.id);
    }
}

#[derive(Clone, Debug)]
pub struct Peer {
    pub user: u32,
    seat: Arc<Seat>,
}

impl Peer {
    /// Notes that the request is complete: from now on the client waits for the agent.
    pub fn note_request_complete(&self) {
        self.seat.wait_for(false);
    }
}

impl Connected<IncomingStream<'_, Bounded>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Bounded>) -> Self {
        stream.remote_addr().clone()
    }
}

impl axum::serve::Listener for Bounded {
    type Io = TimedStream;
    type Addr = Peer;

    async fn accept(&mut self) -> (TimedStream, Peer) {
        loop {
            let (stream, _) = axum::serve::Listener::accept(&mut self.socket).await;
            // Clients without credentials count as one user.
            let user = stream.peer_cred().map_or(u32::MAX, |peer| peer.uid());
            match self.admit(user) {
                Err(why) => refuse(&stream, &why),
                Ok((seat, disconnected)) => {
                    let seat = Arc::new(seat);
                    let stream = TimedStream {
                        stream,
                        disconnected: Some(disconnected),
                        must_leave: false,
                        head: Head::default(),
                        answered: false,
                        blocked: false,
                        timer: Box::pin(sleep(REQUEST)),
                        seat: Arc::clone(&seat),
                    };
                    return (stream, Peer { user, seat });
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<Peer> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Sends the reason, if the socket takes it without waiting.
fn refuse(stream: &UnixStream, why: &str) {
    let body = serde_json::json!({"error": why, "details": []}).to_string();
    let answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        body.len()
    );
    let _ = stream.try_write(answer.as_bytes());
}

/// Finds the end of a request's head: its first empty line (RFC 9112, 2.1 and 2.2).
#[derive(Default)]
struct Head {
    /// The current line is not empty.
    line: bool,
    has_text: bool,
    is_complete: bool,
}

impl Head {
    /// Reads more of the head; returns whether it ended there.
    fn read(&mut self, bytes: &[u8]) -> bool {
        let before = self.is_complete;
        for byte in bytes {
            match byte {
                b'\r' => {}
                // Empty lines before a request do not count.
                b'\n' => self.is_complete |= self.has_text && !std::mem::take(&mut self.line),
                _ => (self.line, self.has_text) = (true, true),
            }
        }
        self.is_complete && !before
    }
}

/// A client's connection, with its time limits.
pub struct TimedStream {
    stream: UnixStream,
    /// The channel that tells the client to go.
    disconnected: Option<oneshot::Receiver<()>>,
    must_leave: bool,
    head: Head,
    answered: bool,
    /// The client does not take what is written.
    blocked: bool,
    timer: Pin<Box<Sleep>>,
    seat: Arc<Seat>,
}

impl TimedStream {
    /// Ready when the client has to go: another client needs its place, or its time is over.
    fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        if self.has_to_go(context) {
            Poll::Ready(io::ErrorKind::TimedOut.into())
        } else {
            self.poll_timer(context)
        }
    }

    fn has_to_go(&mut self, context: &mut Context<'_>) -> bool {
        if let Some(disconnected) = &mut self.disconnected
            && let Poll::Ready(disconnected) = Pin::new(disconnected).poll(context)
        {
            (self.disconnected, self.must_leave) = (None, disconnected.is_ok());
        }
        self.must_leave
    }

    fn poll_timer(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        self.timer.as_mut().poll(context).map(|()| io::ErrorKind::TimedOut.into())
    }

    /// Handles the result of a write: any progress restarts the timer.
    fn after_write<T>(
        &mut self,
        context: &mut Context<'_>,
        result: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        let blocked = result.is_pending();
        if blocked != self.blocked {
            self.blocked = blocked;
            self.seat.wait_for(blocked);
        }
        if !blocked {
            self.answered = true;
            self.timer.as_mut().reset(Instant::now() + ANSWER);
            return result;
        }
        self.poll_end(context).map(Err)
    }
}

impl AsyncRead for TimedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        if let Poll::Ready(result) = Pin::new(&mut self.stream).poll_read(context, buffer) {
            if self.head.read(&buffer.filled()[before..]) {
                self.timer.as_mut().reset(Instant::now() + ANSWER);
            }
            return Poll::Ready(result);
        }
        // A capture may have nothing to say for hours.
        if self.answered && !self.has_to_go(context) {
            Poll::Pending
        } else {
            self.poll_end(context).map(Err)
        }
    }
}

impl AsyncWrite for TimedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.after_write(context, result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.after_write(context, result)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::super::room::{EACH, MOST, RESERVE};
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// Answers `x` to each client that sends an empty line after some others.
    fn serve(path: &std::path::Path) {
        let mut listener = Bounded::new(UnixListener::bind(path).unwrap());
        tokio::spawn(async move {
            loop {
                let (mut client, peer) = axum::serve::Listener::accept(&mut listener).await;
                tokio::spawn(async move {
                    while !client.head.is_complete {
                        if client.read_u8().await.is_err() {
                            return;
                        }
                    }
                    peer.note_request_complete();
                    let _ = client.write_all(b"x").await;
                    // A capture that has nothing more to say.
                    let _ = client.read_u8().await;
                });
            }
        });
    }

    async fn ask(path: &std::path::Path) -> UnixStream {
        let mut client = UnixStream::connect(path).await.unwrap();
        client.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        assert_eq!(client.read_u8().await.unwrap(), b'x');
        client
    }

    #[test]
    fn a_head_ends_with_its_first_empty_line() {
        for (whole, text) in [
            (true, "GET / HTTP/1.1\r\nHost: t\r\n\r\n"),
            (true, "GET / HTTP/1.1\n\nbody"),
            (true, "\r\n\r\nGET / HTTP/1.1\r\n\r\n"),
            (false, "GET / HTTP/1.1\r\nHost: t\r\n"),
            (false, "\r\n\r\n"),
            (false, "GET / HTTP/1.1\r\n x\r\n"),
        ] {
            assert_eq!(Head::default().read(text.as_bytes()), whole, "{text:?}");
            let mut head = Head::default();
            let ended = text.bytes().filter(|byte| head.read(&[*byte])).count();
            assert_eq!(ended, usize::from(whole), "{text:?} byte by byte");
        }
    }

    fn places() -> usize {
        if rustix::process::geteuid().is_root() { MOST + RESERVE } else { EACH }
    }

    #[tokio::test]
    async fn silent_clients_make_room() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        serve(&path);
        let mut silent = Vec::new();
        for _ in 0..2 * places() {
            silent.push(UnixStream::connect(&path).await.unwrap());
        }
        drop(ask(&path).await);
        assert!(silent[0].read_u8().await.is_err(), "the first one still has its place");
    }

    #[tokio::test]
    async fn waiting_clients_stay_and_a_client_without_a_place_gets_an_answer() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        serve(&path);
        let mut clients = Vec::new();
        for _ in 0..places() {
            clients.push(ask(&path).await);
        }
        let mut answer = String::new();
        let mut more = UnixStream::connect(&path).await.unwrap();
        more.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("the agent is busy with"), "{answer}");
        for client in &mut clients {
            assert_eq!(client.try_read(&mut [0]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answered_client_stays_and_a_client_with_half_a_request_is_disconnected() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        serve(&path);
        let mut answered = ask(&path).await;
        for word in [&b""[..], b"G", b"\r\n\r\n", b"GET / HTTP/1.1\r\nHost"] {
            let mut half = UnixStream::connect(&path).await.unwrap();
            let began = Instant::now();
            half.write_all(word).await.unwrap();
            tokio::time::sleep(REQUEST / 2).await;
            if !word.is_empty() {
                half.write_all(&word[..1]).await.unwrap();
            }
            assert!(half.read_u8().await.is_err());
            assert!(began.elapsed() >= REQUEST && began.elapsed() < 2 * REQUEST, "{word:?}");
        }
        tokio::time::sleep(10 * ANSWER).await;
        answered.write_all(b"!").await.unwrap();
        assert_eq!(answered.read(&mut [0; 8]).await.unwrap(), 0, "it ended in the orderly way");
    }
}
