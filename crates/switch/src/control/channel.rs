//! One message: a 4-byte little-endian length, that many bytes of JSON, and the descriptors attached to its
//! first bytes, up to the limit of SCM_RIGHTS at each byte.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use serde::{Serialize, de::DeserializeOwned};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use tidegate_service::scm::{self, SCM_MAX};

/// Most descriptors of one message: more than a front end with 128 queue pairs sends.
pub const MAX_DESCRIPTORS: usize = 1024;
/// Longest message (bytes).
pub const MAX_MESSAGE: usize = 16 << 20;
/// Memory allocated before the first byte of a message arrives (bytes).
const AT_ONCE: usize = 64 << 10;

/// Longest wait of a sender until fewer descriptors are in flight: half of the agent's wait for an answer, so
/// that it gets one.
const IN_FLIGHT: Duration = Duration::from_millis(1500);
/// Pause between two tries.
const RETRY: Duration = Duration::from_millis(5);

/// The largest accepted message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes of JSON.
    pub bytes: usize,
    /// Descriptors.
    pub descriptors: usize,
}

impl Bounds {
    /// The bounds of any message.
    pub const ANY: Self = Self { bytes: MAX_MESSAGE, descriptors: MAX_DESCRIPTORS };
}

/// Sends one message. Waits up to [`IN_FLIGHT`] while too many descriptors are [in
/// flight](scm::too_many_in_flight), then returns that error.
pub fn send(stream: &UnixStream, message: &impl Serialize, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    send_until(stream, message, descriptors, None)
}

/// As [`send`], at most until `end`.
///
/// # Errors
/// [`io::ErrorKind::TimedOut`] if the other end did not take all of it in time.
pub fn send_until(
    stream: &UnixStream,
    message: &impl Serialize,
    descriptors: &[BorrowedFd<'_>],
    end: Option<Instant>,
) -> io::Result<()> {
    if descriptors.len() > MAX_DESCRIPTORS {
        let count = descriptors.len();
        return Err(io::Error::other(format!(
            "{count} descriptors in one message, at most {MAX_DESCRIPTORS}"
        )));
    }
    let body = serde_json::to_vec(message)?;
    let mut bytes = (body.len() as u32).to_le_bytes().to_vec();
    bytes.extend_from_slice(&body);

    let mut sent = 0;
    let mut parts = descriptors.chunks(SCM_MAX).peekable();
    while let Some(part) = parts.next() {
        let to = if parts.peek().is_some() { sent + 1 } else { bytes.len() };
        sent += send_with(stream, &bytes[sent..to], part, end)?;
    }
    while sent < bytes.len() {
        sent += send_with(stream, &bytes[sent..], &[], end)?;
    }
    Ok(())
}

fn send_with(
    stream: &UnixStream,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
    end: Option<Instant>,
) -> io::Result<usize> {
    let waiting = if end.is_some() { SendFlags::DONTWAIT } else { SendFlags::empty() };
    let began = Instant::now();
    loop {
        wait(stream, PollFlags::OUT, end)?;
        match scm::send(stream, bytes, descriptors, waiting) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && end.is_some() => {}
            Err(error) if scm::too_many_in_flight(&error) && began.elapsed() < IN_FLIGHT => {
                std::thread::sleep(RETRY);
            }
            sent => return sent,
        }
    }
}

/// Waits until the stream is ready, at most until `end`. Without `end`, the following call waits.
fn wait(stream: &UnixStream, events: PollFlags, end: Option<Instant>) -> io::Result<()> {
    let Some(end) = end else { return Ok(()) };
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(stream, events)], Some(&timeout)) {
            Ok(0) | Err(Errno::INTR) if Instant::now() >= end => return Err(io::ErrorKind::TimedOut.into()),
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Receives one message; `None` if the other end closed between messages.
pub fn receive<T: DeserializeOwned>(stream: &UnixStream) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    receive_until(stream, Bounds::ANY, None)
}

/// As [`receive`], from an untrusted process: within `bounds`, at most until `end`. Memory is allocated for
/// received bytes, not for announced ones; descriptors beyond the bounds get no number here.
///
/// # Errors
/// [`io::ErrorKind::TimedOut`] if the message is late; or it exceeds `bounds`, or is invalid.
pub fn receive_until<T: DeserializeOwned>(
    stream: &UnixStream,
    bounds: Bounds,
    end: Option<Instant>,
) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut incoming = Incoming { stream, end, most: bounds.descriptors, descriptors: Vec::new() };
    let mut length = [0u8; 4];
    if !incoming.fill(&mut length)? {
        return Ok(None);
    }
    let length = u32::from_le_bytes(length) as usize;
    if length > bounds.bytes {
        return Err(io::Error::other(format!("a message of {length} bytes, at most {}", bounds.bytes)));
    }
    let mut body = Vec::new();
    while body.len() < length {
        let from = body.len();
        // Doubles the buffer.
        body.resize(length.min(2 * from.max(AT_ONCE / 2)), 0);
        if !incoming.fill(&mut body[from..])? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(Some((serde_json::from_slice(&body)?, incoming.descriptors)))
}

/// A partly received message.
struct Incoming<'s> {
    stream: &'s UnixStream,
    end: Option<Instant>,
    most: usize,
    descriptors: Vec<OwnedFd>,
}

impl Incoming<'_> {
    /// Fills the buffer; `false` if the other end closed before.
    fn fill(&mut self, buffer: &mut [u8]) -> io::Result<bool> {
        let mut got = 0;
        while got < buffer.len() {
            let waiting = if self.end.is_some() { RecvFlags::DONTWAIT } else { RecvFlags::empty() };
            wait(self.stream, PollFlags::IN, self.end)?;
            let (part, room) = (&mut buffer[got..], self.most - self.descriptors.len());
            let received = match scm::receive(self.stream, part, &mut self.descriptors, room, waiting) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && self.end.is_some() => continue,
                other => other?,
            };
            if received.lost {
                return Err(io::Error::other(format!(
                    "descriptors of a message were lost: more than {}, or none left to this process \
                     (RLIMIT_NOFILE)",
                    self.most
                )));
            }
            match received.bytes {
                0 if got == 0 => return Ok(false),
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                bytes => got += bytes,
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::time::Duration;

    #[test]
    fn messages_and_descriptors_arrive_in_order() {
        let (a, b) = UnixStream::pair().unwrap();
        let (reader, writer) = std::io::pipe().unwrap();
        send(&a, &"first", &[writer.as_fd()]).unwrap();
        send(&a, &"second", &[]).unwrap();
        drop((a, writer));
        let (text, descriptors) = receive::<String>(&b).unwrap().unwrap();
        assert_eq!((text.as_str(), descriptors.len()), ("first", 1));
        let (text, none) = receive::<String>(&b).unwrap().unwrap();
        assert_eq!((text.as_str(), none.len()), ("second", 0));
        assert!(receive::<String>(&b).unwrap().is_none());
        rustix::io::write(&descriptors[0], b"x").unwrap();
        drop(descriptors);
        assert_eq!(std::io::read_to_string(reader).unwrap(), "x");
    }

    #[test]
    fn more_descriptors_than_one_scm_rights_takes() {
        for count in [1, SCM_MAX, SCM_MAX + 1, 3 * SCM_MAX + 7] {
            let (a, b) = UnixStream::pair().unwrap();
            let files: Vec<std::fs::File> = (0..count).map(|_| tempfile::tempfile().unwrap()).collect();
            let inode = |file: &std::fs::File| rustix::fs::fstat(file).unwrap().st_ino;
            let borrowed: Vec<_> = files.iter().map(AsFd::as_fd).collect();
            let sender = std::thread::scope(|scope| {
                let sending = scope.spawn(|| send(&a, &count, &borrowed));
                let (told, got) = receive::<usize>(&b).unwrap().unwrap();
                assert_eq!((told, got.len()), (count, count));
                assert!(
                    got.into_iter().map(std::fs::File::from).map(|f| inode(&f)).eq(files.iter().map(inode))
                );
                sending.join().unwrap()
            });
            sender.unwrap();
            send(&a, &"next", &[]).unwrap();
            assert!(receive::<String>(&b).unwrap().unwrap().1.is_empty());
        }
        let file = tempfile::tempfile().unwrap();
        let (a, _b) = UnixStream::pair().unwrap();
        assert!(send(&a, &0, &vec![file.as_fd(); MAX_DESCRIPTORS + 1]).is_err());
    }

    #[test]
    fn a_wild_length_is_an_error() {
        let (a, b) = UnixStream::pair().unwrap();
        (&a).write_all(&u32::MAX.to_le_bytes()).unwrap();
        assert!(receive::<String>(&b).is_err());
    }

    #[test]
    fn an_untrusted_sender_is_bounded_in_bytes_descriptors_and_time() {
        let null = std::fs::File::open("/dev/null").unwrap();
        let bounds = |bytes, descriptors| Bounds { bytes, descriptors };
        let asked = |bounds, end: u64, say: &dyn Fn(&UnixStream)| {
            let (a, b) = UnixStream::pair().unwrap();
            say(&a);
            let end = Instant::now() + Duration::from_millis(end);
            receive_until::<String>(&b, bounds, Some(end)).map(|it| it.unwrap().1.len()).map_err(|e| e.kind())
        };
        let with = |count| {
            let null = null.as_fd();
            move |stream: &UnixStream| send(stream, &"x", &vec![null; count]).unwrap()
        };
        for (most, count, outcome) in [
            (0, 0, Ok(0)),
            (1, 1, Ok(1)),
            (300, 300, Ok(300)),
            (0, 1, Err(io::ErrorKind::Other)),
            (1, 2, Err(io::ErrorKind::Other)),
            (1, 253, Err(io::ErrorKind::Other)),
            (253, 254, Err(io::ErrorKind::Other)),
        ] {
            assert_eq!(asked(bounds(100, most), 10_000, &with(count)), outcome, "{count} of {most}");
        }
        let long = |stream: &UnixStream| send(stream, &"x".repeat(99), &[]).unwrap();
        assert_eq!(asked(bounds(100, 0), 10_000, &long), Err(io::ErrorKind::Other));
        assert_eq!(asked(bounds(101, 0), 10_000, &long), Ok(0));
        let half = |mut stream: &UnixStream| stream.write_all(&[9, 0, 0, 0, b'"']).unwrap();
        assert_eq!(asked(bounds(100, 0), 20, &half), Err(io::ErrorKind::TimedOut));
        // One byte after the other: the limit is for the whole message.
        let (mut a, b) = UnixStream::pair().unwrap();
        std::thread::spawn(move || {
            while a.write_all(&[0]).is_ok() {
                std::thread::sleep(Duration::from_millis(30));
            }
        });
        let began = Instant::now();
        let end = Some(began + Duration::from_millis(70));
        // Messages of no byte are no JSON, so the time passes in the first four bytes.
        assert_eq!(
            receive_until::<String>(&b, Bounds::ANY, end).unwrap_err().kind(),
            io::ErrorKind::TimedOut
        );
        assert!(began.elapsed() < Duration::from_secs(5));
    }

    #[test]
    fn a_send_does_not_wait_for_a_receiver_that_does_not_read() {
        let (a, _b) = UnixStream::pair().unwrap();
        let end = Instant::now() + Duration::from_millis(50);
        let sent = send_until(&a, &"x".repeat(8 << 20), &[], Some(end));
        assert_eq!(sent.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn nesting_without_end_is_an_error() {
        for text in ["[".repeat(1 << 20), "{\"a\":".repeat(1 << 18)] {
            let (mut a, b) = UnixStream::pair().unwrap();
            let bytes = [&(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat();
            std::thread::spawn(move || a.write_all(&bytes));
            let nested = receive::<crate::control::message::Reply>(&b);
            assert!(nested.is_err());
        }
    }
}
