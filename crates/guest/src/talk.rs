//! A conversation that ends, whatever the host does.
//!
//! Reading and writing the port may block for ever, and the standard library has no timeout for it: a
//! thread does both, and the program waits for it at most [`PATIENCE`].

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tidegate_guest::lines::{Line, Lines, REPLY};
use tidegate_guest::message::{Ask, Kind, Limits, Reply, ReplyBody, Request, Tag};

/// Longest wait for the host, where a change may wait for other changes.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest wait for another program that has the port open.
const OTHERS: Duration = Duration::from_secs(2);
/// Pause between two tries.
const PAUSE: Duration = Duration::from_millis(100);

/// Why there is no useful answer.
#[derive(Debug, PartialEq, Eq)]
pub enum TalkError {
    /// The host refuses.
    Refused(String),
    /// The host does not answer.
    Silent(String),
    /// Any other failure.
    Failed(String),
}

/// Asks one question after the other; returns the vNICs of the last answer.
///
/// # Errors
/// As in [`TalkError`]; no further question was asked then.
pub fn talk(port: PathBuf, asks: Vec<Ask>) -> Result<Vec<Limits>, TalkError> {
    let name = port.display().to_string();
    let (sender, received) = mpsc::channel();
    std::thread::spawn(move || drop(sender.send(conversation(&port, asks))));
    received.recv_timeout(PATIENCE).unwrap_or_else(|_| {
        Err(TalkError::Silent(format!(
            "the host does not answer on {name} within {} s: does its agent run, and does a contract name this VM's \
             socket with the key `guest`?",
            PATIENCE.as_secs()
        )))
    })
}

fn conversation(port: &Path, asks: Vec<Ask>) -> Result<Vec<Limits>, TalkError> {
    let mut file = open(port)?;
    let failed = |e: io::Error| TalkError::Failed(format!("{}: {e}", port.display()));
    let mut vnics = Vec::new();
    for (number, ask) in asks.into_iter().enumerate() {
        let request = Request { tag: tag(number), ask };
        vnics = answer(&mut file, &request).map_err(failed)??;
    }
    Ok(vnics)
}

/// Opens the port exclusively: the kernel allows one opener.
fn open(port: &Path) -> Result<File, TalkError> {
    let begin = Instant::now();
    loop {
        match OpenOptions::new().read(true).write(true).open(port) {
            Ok(file) => return Ok(file),
            Err(e) if e.kind() == ErrorKind::ResourceBusy && begin.elapsed() < OTHERS => {
                std::thread::sleep(PAUSE);
            }
            Err(e) => {
                let advice = match e.kind() {
                    ErrorKind::ResourceBusy => {
                        ": another program has the port open; try again after that program has ended"
                    }
                    ErrorKind::PermissionDenied => ": try again as root",
                    _ => "",
                };
                return Err(TalkError::Failed(format!("cannot open {}: {e}{advice}", port.display())));
            }
        }
    }
}

/// Returns a new tag for each request: it distinguishes our answers from late answers to an earlier
/// program.
fn tag(number: usize) -> Tag {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    // At most 5 + 7 + 2 digits.
    let text = format!("{:x}{:x}{:x}", std::process::id() & 0xf_ffff, now.subsec_nanos() >> 2, number & 0xff);
    Tag::new(&text).unwrap_or_else(Tag::none)
}

/// Returns the host's answer to one request.
fn answer(port: &mut (impl Read + Write), request: &Request) -> io::Result<Result<Vec<Limits>, TalkError>> {
    let (mut lines, mut vnics) = (Lines::new(REPLY), Vec::new());
    let mut buffer = [0; 512];
    // An empty line first ends an earlier program's unfinished line.
    let text = format!("\n{request}\n");
    port.write_all(text.as_bytes())?;
    loop {
        let read = port.read(&mut buffer)?;
        if read == 0 {
            // The host has closed its end: its agent may be restarting, and has not seen the request.
            std::thread::sleep(PAUSE);
            (lines, vnics) = (Lines::new(REPLY), Vec::new());
            port.write_all(text.as_bytes())?;
            continue;
        }
        let mut input = &buffer[..read];
        while let Some(line) = lines.next(&mut input) {
            let Line::Text(line) = line else { continue };
            let Some(reply) = Reply::parse(&line).filter(|reply| reply.tag == request.tag) else { continue };
            match reply.body {
                ReplyBody::Vnic(limits) => vnics.push(limits),
                ReplyBody::Ok => return Ok(Ok(vnics)),
                ReplyBody::Error { kind: Kind::Refused, text } => return Ok(Err(TalkError::Refused(text))),
                ReplyBody::Error { kind: Kind::Malformed | Kind::Unavailable, text } => {
                    return Ok(Err(TalkError::Failed(text)));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    /// Returns the result of one request to a host with these replies, with `TAG` for the request's.
    fn asked(ask: Ask, says: &str) -> io::Result<Result<Vec<Limits>, TalkError>> {
        let (mut guest, mut host) = UnixStream::pair()?;
        let request = Request { tag: tag(0), ask };
        host.write_all(says.replace("TAG", &request.tag.to_string()).as_bytes())?;
        guest.set_read_timeout(Some(Duration::from_millis(50)))?;
        answer(&mut guest, &request)
    }

    #[test]
    fn only_replies_to_the_request_count() {
        let says = "left over\n1 old vnic x 52:54:00:00:00:09 1mbit none 1mbit\n1 old ok\n\
                    1 TAG vnic a 52:54:00:00:00:01 500mbit 400mbit 400mbit\n1 TAG ok\n";
        let vnics = asked(Ask::Limit, says).expect("it talks").expect("an answer");
        assert_eq!(vnics.iter().map(|v| v.soft.as_str()).collect::<Vec<_>>(), ["400mbit"]);
        let refused = asked(Ask::Limit, "1 TAG error refused over the hard limit\n").expect("it talks");
        assert_eq!(refused, Err(TalkError::Refused("over the hard limit".into())));
        let failed = asked(Ask::Limit, "1 TAG error unavailable later\n").expect("it talks");
        assert_eq!(failed, Err(TalkError::Failed("later".into())));
        assert!(asked(Ask::Limit, "1 old ok\n").is_err(), "no answer");
    }

    #[test]
    fn tags_are_tags() {
        assert!(tag(0) != Tag::none() && tag(1) != tag(0) && tag(usize::MAX) != Tag::none());
    }
}
