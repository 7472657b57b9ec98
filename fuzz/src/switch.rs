//! The messages of a switch under an attacker's control to the agent: answers, notes, and its statistics.
//!
//! A first byte says which of the three; what comes of it is shown as the agent shows it.

use crate::bytes::Bytes;
use crate::said_place::see;
use crate::{Files, send};
use rustix::io::{pread, pwrite};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use tidegate_contract::{Host, Vnic};
use tidegate_place_switch::check_inherited;
use tidegate_service::foreign::{Budget, Foreign};
use tidegate_switch::capacity::{VNICS, WORKERS};
use tidegate_switch::control::handover::Handover;
use tidegate_switch::control::notes::Notes;
use tidegate_switch::control::{Client, PortStatus, SwitchError};
use tidegate_switch::port::talk::PAIRS;
use tidegate_switch::stats::layout::{Layout, VnicSlot, WorkerSlot};
use tidegate_switch::stats::{Reader, Region};
use tidegate_visible::is_hidden;

/// Longest words of a switch that are passed on, bytes; with what the client puts around them.
const WORDS: usize = 1100;
/// Most numbers of the statistics that one input changes.
const CHANGES: usize = 256;

/// One region for all inputs: to map one takes longer than all the rest.
struct Statistics {
    region: Region,
    reader: Reader,
}

static STATISTICS: LazyLock<Mutex<Statistics>> = LazyLock::new(|| {
    let region = Region::create().expect("a region");
    region.claim(0, "a");
    region.claim(1, "b");
    let reader = Reader::open(region.file()).expect("it is sealed");
    Mutex::new(Statistics { region, reader })
});

fn statistics() -> MutexGuard<'static, Statistics> {
    STATISTICS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes any bytes.
///
/// # Panics
/// Where the agent would, or where more comes through than may.
pub fn run(data: &[u8]) {
    let mut bytes = Bytes::new(data);
    match bytes.u8() % 3 {
        0 => answer(bytes),
        1 => notes(bytes),
        _ => numbers(bytes),
    }
}

/// A question, and bytes as its answer: as they stand, or with their length in front.
fn answer(mut bytes: Bytes<'_>) {
    let Ok((ours, theirs)) = UnixStream::pair() else { return };
    let (question, framed, fds) = (bytes.u8() % 6, bytes.u8() & 1 == 1, bytes.u8());
    let body = bytes.rest();
    let length = (body.len() as u32).to_le_bytes();
    let said = if framed { [&length[..], body].concat() } else { body.to_vec() };
    {
        let statistics = statistics();
        let files = Files::with(statistics.region.file());
        if !send(&theirs, &said, &files.chosen(fds)) {
            return;
        }
    }
    // It reads to the end of the question, which it has no interest in, and says no more.
    let mut client = Client::over(ours, Path::new("/run/switch.sock"));
    let _ = theirs.shutdown(std::net::Shutdown::Write);
    let error = match question {
        0 => client.hello().map(|(hello, reader, _)| {
            assert!(hello.version.len() <= 64);
            drop(reader.names().collect::<Vec<_>>());
        }),
        1 => client.ports().map(|ports| shown(&ports)),
        2 => client.set_host(&Host::default()),
        3 => client.retire().map(|(retired, _)| shown(&retired.ports)),
        4 => client.subscribe().map(drop),
        _ => client.work().map(|work| {
            let reasons = work.not_followed.workers.values().chain(work.not_followed.vnics.values());
            assert!(reasons.clone().count() <= VNICS + WORKERS && work.traffic.len() <= PAIRS);
            reasons.for_each(|why| assert!(why.len() <= WORDS && !why.contains(is_hidden), "{why:?}"));
            assert!(work.directions.vnics.keys().all(|name| Vnic::is_name(name)));
        }),
    };
    match error {
        Ok(()) => {}
        Err(SwitchError::Refused(why)) => assert!(why.len() <= WORDS && !why.contains(is_hidden), "{why:?}"),
        Err(other) => assert!(other.to_string().len() <= WORDS, "{other}"),
    }
}

/// Ports that came through, as the agent sees them.
fn shown(ports: &[PortStatus]) {
    assert!(ports.len() <= VNICS);
    for (index, port) in ports.iter().enumerate() {
        let name = &port.vnic.name;
        assert!(Vnic::is_name(name) && ports[..index].iter().all(|other| other.vnic.name != *name));
        for text in [&port.last_error, &port.deadline_suspended].into_iter().flatten() {
            assert!(text.len() <= WORDS && !text.contains(is_hidden), "{text:?}");
        }
    }
    see(ports, &statistics().reader);
}

/// Packets with descriptors, as notes.
fn notes(mut bytes: Bytes<'_>) {
    let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let Ok((ours, theirs)) = pair else { return };
    let theirs = UnixStream::from(theirs);
    {
        let statistics = statistics();
        let files = Files::with(statistics.region.file());
        for _ in 0..16 {
            let (fds, len) = (bytes.u8(), bytes.u16());
            let packet = bytes.take(len.into());
            if packet.is_empty() || !send(&theirs, packet, &files.chosen(fds)) {
                break;
            }
        }
    }
    drop(theirs);
    let (mut notes, mut told, budget) = (Notes::from_socket(ours), Handover::default(), Budget::new(64));
    while let Ok(Some((note, descriptors))) = notes.next() {
        let foreign = descriptors.into_iter().map(|fd| Foreign::new(fd, &budget)).collect();
        let _ = told.note(note, foreign);
        assert!(told.connections.len() <= VNICS && told.links.len() <= VNICS);
        for connected in told.connections.values().flatten() {
            let mut numbers = connected.saved.numbers();
            assert!(numbers.all(|number| connected.descriptors.contains_key(&number)));
        }
        assert!(told.connections.keys().chain(told.links.keys()).all(|name| Vnic::is_name(name)));
    }
    check_inherited(told);
}

/// Numbers anywhere in the statistics.
fn numbers(mut bytes: Bytes<'_>) {
    let statistics = statistics();
    let file = statistics.region.file();
    let slots = size_of::<Layout>() - VNICS * size_of::<VnicSlot>();
    let mut before = Vec::new();
    for _ in 0..CHANGES {
        if bytes.is_empty() {
            break;
        }
        let (place, value) = (bytes.u32(), bytes.u64());
        // What matters is rarely met: one of the first workers, one of the first vNICs, or anywhere.
        let at = (place >> 2) as usize;
        let at = match place & 3 {
            0 => 16 + at % (16 + 2 * size_of::<WorkerSlot>()),
            1 => slots + at % size_of::<VnicSlot>(),
            2 => slots + at % (2 * size_of::<VnicSlot>()),
            _ => 16 + at % (size_of::<Layout>() - 16),
        } / 8
            * 8;
        let mut old = [0; 8];
        pread(file, &mut old, at as u64).expect("it is there");
        before.push((at, old));
        pwrite(file, &value.to_ne_bytes(), at as u64).expect("it is not sealed against that");
    }
    let reader = &statistics.reader;
    for stats in reader.vnics() {
        assert!(Vnic::is_name(&stats.name) && stats.index < VNICS);
        let delay = &stats.delay;
        assert!(delay.buckets.is_sorted_by(|a, b| a.0 < b.0));
        let missed = reader.misses(&stats.name);
        assert!(missed.len() <= 32);
        assert!(missed.iter().all(|miss| !miss.egress.contains(is_hidden)));
        let _ = (reader.messages(&stats.name), reader.delay(&stats.name).map(|delay| delay.mean()));
    }
    let _ = (reader.workers(), reader.denied_calls(), reader.log());
    see(&[], reader);
    for (at, old) in before.into_iter().rev() {
        pwrite(file, &old, at as u64).expect("as before");
    }
}
