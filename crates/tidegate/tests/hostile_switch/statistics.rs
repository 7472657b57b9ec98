//! Statistics that are truncated, that may fault, and of any contents.

use super::common::{Lab, until};
use super::{hello, queries, reason, scene};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tidegate_switch::control::channel::send;
use tidegate_switch::control::message::Request;
use tidegate_switch::stats::Region;
use tidegate_switch::stats::layout::Layout;

fn statistics() -> Vec<u8> {
    let region = Region::create().unwrap();
    region.claim(0, "a");
    let file = File::from(region.file().try_clone_to_owned().unwrap());
    let mut bytes = vec![0; size_of::<Layout>()];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

fn memfd(bytes: &[u8], seals: SealFlags) -> OwnedFd {
    let fd = memfd_create("hostile", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    File::from(fd.try_clone().unwrap()).write_all_at(bytes, 0).unwrap();
    fcntl_add_seals(&fd, seals).unwrap();
    fd
}

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

#[test]
fn truncated_statistics_crash_no_process() {
    let lab = Lab::new();
    let (switch, agent) = scene(&lab);
    let (bytes, given) = (statistics(), Arc::new(Mutex::new(Vec::new())));
    let files = Arc::clone(&given);
    switch.answer_with(move |stream, request, _| {
        if *request != Request::Hello {
            return false;
        }
        // Unsealed, the file looks right until it is mapped.
        let file = memfd(&bytes, SealFlags::empty());
        send(stream, &hello(), &[file.as_fd()]).unwrap();
        files.lock().unwrap().push(file);
        true
    });
    for _ in 0..20 {
        for file in given.lock().unwrap().iter() {
            ftruncate(file, 0).unwrap();
        }
        queries(&agent);
        std::thread::sleep(Duration::from_millis(50));
    }
    let why = reason(&agent).expect("it is not trusted");
    assert!(why.contains("sealed"), "{why}");
    switch.answer_honestly();
    until("it is trusted again", || reason(&agent).is_none().then_some(()));
}

#[test]
fn only_memory_that_never_faults_is_accepted_as_statistics() {
    let lab = Lab::new();
    let (switch, agent) = scene(&lab);
    let bytes = statistics();
    let longer = [&bytes[..], &[0; 4096]].concat();
    let other_version = [&bytes[..8], &u64::MAX.to_ne_bytes(), &bytes[16..]].concat();
    let file = tempfile::tempfile().unwrap();
    file.write_all_at(&bytes, 0).unwrap();
    let huge = memfd_create("huge", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB);
    let mut kinds: Vec<(&str, OwnedFd)> = vec![
        ("can grow", memfd(&bytes, SealFlags::SHRINK | SealFlags::SEAL)),
        ("can shrink", memfd(&bytes, SealFlags::GROW | SealFlags::SEAL)),
        ("is longer", memfd(&longer, SEALS)),
        ("is shorter", memfd(&bytes[..bytes.len() - 4096], SEALS)),
        ("is of another version", memfd(&other_version, SEALS)),
        ("is a file", file.into()),
        ("is a pipe", std::io::pipe().unwrap().0.into()),
        ("is a device", File::open("/dev/zero").unwrap().into()),
        ("is a socket", UnixStream::pair().unwrap().0.into()),
    ];
    if let Ok(huge) = huge {
        ftruncate(&huge, 2 << 20).unwrap();
        fcntl_add_seals(&huge, SEALS).unwrap();
        kinds.push(("has huge pages", huge));
    }
    for (what, file) in kinds {
        switch.answer_with(move |stream, request, _| {
            *request == Request::Hello && send(stream, &hello(), &[file.as_fd()]).is_ok()
        });
        let why = until(what, || reason(&agent).filter(|why| why.contains("statistics")));
        println!("{what}: {why}");
        queries(&agent);
    }
    switch
        .answer_with(|stream, request, _| *request == Request::Hello && send(stream, &hello(), &[]).is_ok());
    until("none", || reason(&agent).filter(|why| why.contains("no descriptor of the statistics")));
    switch.answer_honestly();
    until("it is trusted again", || reason(&agent).is_none().then_some(()));
}

#[test]
fn any_contents_of_statistics_are_shown_and_do_no_harm() {
    let lab = Lab::new();
    let (switch, agent) = scene(&lab);
    let honest = statistics();
    let mut random = 1u64;
    for round in 0..12 {
        let mut bytes = honest.clone();
        // Past the header: counters of workers and vNICs, names, misses.
        for word in bytes[16..].chunks_exact_mut(8) {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let value = match round % 4 {
                0 => u64::MAX,
                1 => random,
                2 => random % 40,
                _ => u64::from_ne_bytes(*b"\x1b[2J\n\r\xe2\x80"),
            };
            word.copy_from_slice(&value.to_ne_bytes());
        }
        switch.answer_with(move |stream, request, _| {
            *request == Request::Hello && send(stream, &hello(), &[memfd(&bytes, SEALS).as_fd()]).is_ok()
        });
        std::thread::sleep(Duration::from_millis(700));
        queries(&agent);
        let (status, text) = agent.get("/metrics");
        assert_eq!(status, 200);
        assert!(!text.to_string().contains('\x1b'), "{text}");
    }
    switch.answer_honestly();
    until("it is trusted again", || reason(&agent).is_none().then_some(()));
    assert_eq!(agent.apply(&lab.vnic("b", 2, "")).0, 200);
}
