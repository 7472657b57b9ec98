//! One guest's socket: reconnects, reads no faster than the guest may ask, never waits long for the guest to read.

use crate::board::Board;
use crate::commands::{Command, Unmet};
use crate::views::{State, VnicView};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use tidegate_contract::{Mac, Rate, Vnic};
use tidegate_guest::message::{Ask, Kind, Limits, Reply, ReplyBody, Request, Tag};
use tidegate_guest::session::{Session, Step};
use tidegate_paths::{Roots, SocketFile};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::{Instant, sleep, timeout};

/// Pauses between connections: the first, and the longest, to which they double.
const PAUSES: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));
/// Longest pause after nonsense, or answers that were not read.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Bytes read at once.
const READ: usize = 512;
/// Longest wait for a guest that does not read its answers.
const UNREAD: Duration = Duration::from_secs(2);
/// Least time between two log lines about a guest's conduct.
const QUIET: Duration = Duration::from_secs(60);
/// Longest wait for the reconciler.
const PATIENCE: Duration = Duration::from_secs(8);

/// State that all ports share.
pub struct Host {
    board: Board,
    commands: mpsc::Sender<Command>,
    /// Folders below which the sockets are.
    roots: Roots,
    /// One change at a time, of all guests: other commands wait for at most one.
    change_turn: Arc<Semaphore>,
}

impl Host {
    /// Makes the state: limits come from `board`, changes go to `commands`.
    pub fn new(board: Board, commands: mpsc::Sender<Command>, roots: Roots) -> Self {
        Self { board, commands, roots, change_turn: Arc::new(Semaphore::new(1)) }
    }

    async fn answer(&self, socket: &Path, request: Request) -> Vec<Reply> {
        let Request { tag, ask } = request;
        let done = match ask {
            Ask::Limit => return self.limits(socket, &tag),
            Ask::Set { mac, soft } => self.set(socket, mac.as_deref(), soft.as_deref()).await,
        };
        vec![match done {
            Ok(()) => Reply { tag, body: ReplyBody::Ok },
            Err(Unmet::Refused(why)) => Reply::error(tag, Kind::Refused, &why),
            Err(Unmet::Unavailable(why)) => Reply::error(tag, Kind::Unavailable, &why),
        }]
    }

    fn limits(&self, socket: &Path, tag: &Tag) -> Vec<Reply> {
        let published = self.board.read();
        let names = published.guests.get(socket).into_iter().flatten();
        let vnics = names.filter_map(|name| published.vnics.get(name));
        let vnics = vnics.filter_map(|v| Some(ReplyBody::Vnic(limits(v, v.contract.as_ref()?))));
        vnics.chain([ReplyBody::Ok]).map(|body| Reply { tag: tag.clone(), body }).collect()
    }

    async fn set(&self, socket: &Path, mac: Option<&str>, soft: Option<&str>) -> Result<(), Unmet> {
        let refused = |e: String| Unmet::Refused(e);
        let mac = mac.map(str::parse::<Mac>).transpose().map_err(|e| refused(e.to_string()))?;
        let rate = soft.map(str::parse::<Rate>).transpose().map_err(|e| refused(e.to_string()))?;
        let ending = || Unmet::Unavailable("the host's agent is ending; try again".into());
        let change_turn = Arc::clone(&self.change_turn).acquire_owned().await.map_err(|_| ending())?;
        let began = Instant::now();
        let (reply, answer) = oneshot::channel();
        let guest = socket.to_owned();
        self.commands.send(Command::Soft { guest, mac, rate, reply }).map_err(|_| ending())?;
        let answer = timeout(PATIENCE, answer).await;
        // The next guest waits as long again: at least half of the reconciler's time is for other work.
        let pause = began.elapsed();
        tokio::spawn(async move {
            sleep(pause).await;
            drop(change_turn);
        });
        match answer {
            Ok(Ok(done)) => done,
            Ok(Err(_)) => Err(ending()),
            Err(_) => Err(Unmet::Unavailable("the host is busy; try again".into())),
        }
    }
}

fn limits(view: &VnicView, contract: &Vnic) -> Limits {
    let or_none = |rate: Option<Rate>| rate.map_or_else(|| "none".into(), |rate| rate.to_string());
    Limits {
        name: view.name.clone(),
        mac: contract.mac.to_string(),
        hard: or_none(contract.tx.max),
        soft: or_none(view.soft),
        in_force: if view.state == State::InForce { or_none(view.tx_in_force) } else { "pending".into() },
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Closed,
    /// The guest sent nonsense, or too much.
    Nonsense,
    /// The guest did not read its answers.
    Unread,
}

/// Speaks with the guest at `socket`, for ever.
pub async fn serve(socket: PathBuf, host: Arc<Host>) {
    let (first, longest) = PAUSES;
    let mut pause = first;
    let (mut trouble, mut logged_at) = (None, None::<Instant>);
    let (began, mut session) = (Instant::now(), Session::default());
    loop {
        match connect(&host.roots, &socket).await {
            Ok(stream) => {
                trouble = None;
                tracing::debug!(socket = %socket.display(), "connected to a guest's limit port");
                let (end, has_valid_request) = speak(stream, &socket, &host, &mut session, began).await;
                session = session.reconnected();
                // A valid request does not excuse a bad end.
                if has_valid_request && end == End::Closed {
                    pause = first;
                }
                if end != End::Closed && logged_at.is_none_or(|logged_at| logged_at.elapsed() >= QUIET) {
                    logged_at = Some(Instant::now());
                    tracing::warn!(socket = %socket.display(), ?end, "a guest's limit port is closed for a while");
                }
                let longest = if end == End::Closed { longest } else { LONGEST_PAUSE };
                sleep(pause).await;
                pause = (pause * 2).min(longest);
            }
            Err(e) => {
                // Without its VM there is no socket, or a file on which no process listens.
                let off = matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused);
                let text = e.to_string();
                if !off && trouble.as_ref() != Some(&text) {
                    tracing::warn!(socket = %socket.display(), "cannot connect to a guest's limit port: {text}");
                    trouble = Some(text);
                }
                sleep(pause).await;
                pause = (pause * 2).min(longest);
            }
        }
    }
}

/// Connects to the socket at `path`; follows no link.
async fn connect(roots: &Roots, path: &Path) -> io::Result<UnixStream> {
    // Open until the connection is made.
    let there = SocketFile::at(roots, path)?;
    UnixStream::connect(there.path()).await
}

/// Serves one connection; returns its end, and whether the guest made a valid request. The port exists since `began`.
async fn speak(
    mut stream: UnixStream,
    socket: &Path,
    host: &Host,
    session: &mut Session,
    began: Instant,
) -> (End, bool) {
    let mut buffer = [0; READ];
    let mut has_valid_request = false;
    loop {
        let mut input = match stream.read(&mut buffer).await {
            Ok(0) | Err(_) => return (End::Closed, has_valid_request),
            Ok(read) => &buffer[..read],
        };
        while let Some(step) = session.next(&mut input, began.elapsed()) {
            let replies = match step {
                Step::Wait(wait) => {
                    sleep(wait).await;
                    continue;
                }
                Step::Close => return (End::Nonsense, has_valid_request),
                Step::Reply(reply) => vec![reply],
                Step::Ask(request) => {
                    has_valid_request = true;
                    host.answer(socket, request).await
                }
            };
            let text: String = replies.iter().map(|reply| format!("{reply}\n")).collect();
            match timeout(UNREAD, stream.write_all(text.as_bytes())).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return (End::Closed, has_valid_request),
                Err(_) => return (End::Unread, has_valid_request),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_guest::lines::REQUEST;
    use tokio::net::UnixListener;

    fn host() -> (Arc<Host>, mpsc::Receiver<Command>) {
        let (commands, received) = mpsc::channel();
        (
            Arc::new(Host::new(
                Board::new(crate::board::Published::starting()),
                commands,
                roots("/tmp".as_ref()),
            )),
            received,
        )
    }

    fn roots(more: &Path) -> Roots {
        tidegate_paths::Paths::new(&[more.into()], &[]).unwrap().guests
    }

    async fn once(stream: UnixStream, host: Arc<Host>) -> (End, bool) {
        speak(stream, Path::new("/x"), &host, &mut Session::default(), Instant::now()).await
    }

    /// Runs a reconciler that accepts all requests; returns them at the end.
    fn accept_all(
        received: mpsc::Receiver<Command>,
    ) -> std::thread::JoinHandle<Vec<(Option<Mac>, Option<Rate>)>> {
        std::thread::spawn(move || {
            let mut all = Vec::new();
            while let Ok(command) = received.recv() {
                let Command::Soft { mac, rate, reply, .. } = command else { continue };
                all.push((mac, rate));
                let _ = reply.send(Ok(()));
            }
            all
        })
    }

    #[tokio::test]
    async fn requests_get_answers_and_repeated_nonsense_ends_the_connection() {
        let (host, received) = host();
        let reconciler = accept_all(received);
        let (mut guest, ours) = UnixStream::pair().unwrap();
        let served = tokio::spawn(once(ours, host));
        let mut say = vec![b'z'; 10 * REQUEST];
        say.extend(
            b"\n1 a limit\n1 b set * 4mbit\n1 c set 52:54:00:00:00:01 none\n1 d set * 4\n1 e set x none\n",
        );
        guest.write_all(&say).await.unwrap();
        let mut text = String::new();
        while text.matches('\n').count() < 6 {
            let mut buffer = [0; 1024];
            let read = guest.read(&mut buffer).await.unwrap();
            assert!(read > 0, "{text}");
            text += std::str::from_utf8(&buffer[..read]).unwrap();
        }
        let begins =
            ["1 - error malformed", "1 a ok", "1 b ok", "1 c ok", "1 d error refused", "1 e error refused"];
        for (line, begin) in text.lines().zip(begins) {
            assert!(line.starts_with(begin), "{text}");
        }
        guest.write_all(&b"?\n".repeat(100)).await.unwrap();
        assert_eq!(served.await.unwrap(), (End::Nonsense, true));
        let set = [(None, Rate::from_bits(4_000_000)), (Some(Mac([0x52, 0x54, 0, 0, 0, 1])), None)];
        assert_eq!(reconciler.join().unwrap(), set);
    }

    #[tokio::test(start_paused = true)]
    async fn a_guest_that_does_not_read_is_disconnected() {
        let (host, _received) = host();
        let (mut guest, ours) = UnixStream::pair().unwrap();
        // Room for a few answers.
        rustix::net::sockopt::set_socket_send_buffer_size(&ours, 1).unwrap();
        let served = tokio::spawn(once(ours, host));
        // Fewer than a flood. On a paused clock waiting takes no time.
        guest.write_all(&b"1 a limit\n".repeat(40)).await.unwrap();
        assert_eq!(served.await.unwrap(), (End::Unread, true));
    }

    /// Returns the changes and connections that a guest gets in a minute. It asks for five changes on each
    /// connection, then sends `last`.
    async fn in_a_minute(last: &str) -> (usize, usize) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        // Without a receiver each change is answered at once.
        let (host, _) = host();
        let served = tokio::spawn(serve(path, host));
        let (began, mut changes, mut connections) = (Instant::now(), 0, 0);
        while began.elapsed() < Duration::from_secs(60) {
            let (mut guest, _) = listener.accept().await.unwrap();
            connections += 1;
            guest.write_all(("1 a set * 1mbit\n".repeat(5) + last).as_bytes()).await.unwrap();
            let (mut text, mut buffer) = (String::new(), [0; 1024]);
            let answers = |text: &str| text.matches("1 a error unavailable").count();
            while answers(&text) < 5 || !last.is_empty() {
                let Ok(read @ 1..) = guest.read(&mut buffer).await else { break };
                text += std::str::from_utf8(&buffer[..read]).unwrap();
            }
            changes += answers(&text);
        }
        served.abort();
        (changes, connections)
    }

    #[tokio::test(start_paused = true)]
    async fn reconnecting_gives_a_guest_no_more_changes() {
        // Five a second, and five at once. After a plain close the port opens again soon.
        let (changes, _) = in_a_minute("").await;
        assert!((240..=310).contains(&changes), "{changes}");
        // After nonsense the pauses grow, whatever came before.
        let (changes, connections) = in_a_minute(&"?\n".repeat(20)).await;
        assert!((2..15).contains(&connections) && changes == 5 * connections, "{changes} {connections}");
    }

    #[tokio::test]
    async fn only_a_socket_is_connected_to() {
        let dir = tempfile::tempdir().unwrap();
        let [socket, link, file] = ["socket", "link", "file"].map(|name| dir.path().join(name));
        let below = roots(dir.path());
        let connect = async |path| connect(&below, path).await;
        assert_eq!(connect(&socket).await.unwrap_err().kind(), io::ErrorKind::NotFound);
        let _listener = UnixListener::bind(&socket).unwrap();
        std::os::unix::fs::symlink(&socket, &link).unwrap();
        std::fs::write(&file, "").unwrap();
        assert!(connect(&socket).await.is_ok());
        assert!(connect(&link).await.unwrap_err().to_string().contains("no socket"));
        assert!(connect(&file).await.unwrap_err().to_string().contains("no socket"));
    }
}
