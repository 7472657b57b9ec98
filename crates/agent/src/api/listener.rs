//! Clients, a bounded number of them, none of which can keep the others waiting for ever.
//!
//! ```text
//!  socket ─▶ accept ─▶ room for one of MOST? ── no: who never said a word goes
//!                         └─▶ Patient: the head of its request within REQUEST, an answer within ANSWER,
//!                             or it goes; a reader that takes nothing too
//! ```

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::unix::SocketAddr;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{Instant, Sleep, sleep};

/// Most clients at one time: descriptors are left for ports and files.
pub const MOST: usize = 64;
/// Longest time from a connection to the end of its request's head, and from there to the end of its body.
pub const REQUEST: Duration = Duration::from_secs(5);
/// Longest time from a request's head to the begin of its answer, and between two bytes that it takes. Longer
/// than the reconciler is waited for.
const ANSWER: Duration = Duration::from_secs(40);

/// The API's socket.
pub struct Bounded {
    socket: UnixListener,
    room: Arc<Semaphore>,
    /// Clients that have said nothing yet, oldest first, to be told to go.
    unheard: VecDeque<oneshot::Sender<()>>,
}

impl Bounded {
    /// Accepts at `socket`.
    pub fn new(socket: UnixListener) -> Self {
        Self { socket, room: Arc::new(Semaphore::new(MOST)), unheard: VecDeque::new() }
    }

    /// A place among the clients: the one who was silent longest makes room.
    async fn room(&mut self) -> OwnedSemaphorePermit {
        loop {
            if let Ok(room) = Arc::clone(&self.room).try_acquire_owned() {
                return room;
            }
            self.unheard.retain(|client| !client.is_closed());
            if let Some(client) = self.unheard.pop_front() {
                let _ = client.send(());
            }
            let freed =
                tokio::time::timeout(Duration::from_millis(100), Arc::clone(&self.room).acquire_owned());
            if let Ok(Ok(room)) = freed.await {
                return room;
            }
        }
    }
}

impl axum::serve::Listener for Bounded {
    type Io = Patient;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Patient, SocketAddr) {
        let (stream, address) = axum::serve::Listener::accept(&mut self.socket).await;
        let room = self.room().await;
        let (tell, told) = oneshot::channel();
        self.unheard.retain(|client| !client.is_closed());
        self.unheard.push_back(tell);
        (
            Patient {
                stream,
                unheard: Some(told),
                head: Head::default(),
                answered: false,
                timer: Box::pin(sleep(REQUEST)),
                _room: room,
            },
            address,
        )
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }
}

/// Where a request's head ends: at its first empty line (RFC 9112, 2.1 and 2.2).
#[derive(Default)]
struct Head {
    /// The line that is being read has something in it.
    line: bool,
    begun: bool,
    whole: bool,
}

impl Head {
    /// Some more of it; whether it ended there.
    fn read(&mut self, bytes: &[u8]) -> bool {
        let before = self.whole;
        for byte in bytes {
            match byte {
                b'\r' => {}
                // Empty lines before a request are none of it.
                b'\n' => self.whole |= self.begun && !std::mem::take(&mut self.line),
                _ => (self.line, self.begun) = (true, true),
            }
        }
        self.whole && !before
    }
}

/// One client.
pub struct Patient {
    stream: UnixStream,
    /// Until it says something.
    unheard: Option<oneshot::Receiver<()>>,
    head: Head,
    answered: bool,
    timer: Pin<Box<Sleep>>,
    _room: OwnedSemaphorePermit,
}

impl Patient {
    fn waited(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        self.timer.as_mut().poll(context).map(|()| io::ErrorKind::TimedOut.into())
    }

    /// What came of writing: any progress starts the clock anew.
    fn wrote<T>(&mut self, context: &mut Context<'_>, result: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if result.is_ready() {
            self.answered = true;
            self.timer.as_mut().reset(Instant::now() + ANSWER);
            return result;
        }
        self.waited(context).map(Err)
    }
}

impl AsyncRead for Patient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        if let Poll::Ready(result) = Pin::new(&mut self.stream).poll_read(context, buffer) {
            self.unheard = None;
            if self.head.read(&buffer.filled()[before..]) {
                self.timer.as_mut().reset(Instant::now() + ANSWER);
            }
            return Poll::Ready(result);
        }
        if let Some(unheard) = &mut self.unheard
            && Pin::new(unheard).poll(context).is_ready()
        {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        // A capture may have nothing to say for hours.
        if self.answered { Poll::Pending } else { self.waited(context).map(Err) }
    }
}

impl AsyncWrite for Patient {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.wrote(context, result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.wrote(context, result)
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
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// Answers `x` to whoever says an empty line after some others.
    fn serve(path: &std::path::Path) {
        let mut listener = Bounded::new(UnixListener::bind(path).unwrap());
        tokio::spawn(async move {
            loop {
                let (mut client, _) = axum::serve::Listener::accept(&mut listener).await;
                tokio::spawn(async move {
                    while !client.head.whole {
                        if client.read_u8().await.is_err() {
                            return;
                        }
                    }
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

    #[tokio::test]
    async fn silent_clients_make_room() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        serve(&path);
        let mut silent = Vec::new();
        for _ in 0..2 * MOST {
            silent.push(UnixStream::connect(&path).await.unwrap());
        }
        drop(ask(&path).await);
        assert!(silent[0].read_u8().await.is_err(), "the first one still has its place");
    }

    #[tokio::test(start_paused = true)]
    async fn who_was_answered_may_stay_and_who_says_half_a_word_may_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        serve(&path);
        let mut answered = ask(&path).await;
        // However busily it says it.
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
