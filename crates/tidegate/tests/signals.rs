//! SIGHUP and SIGTERM; alone in the process that receives them.

#![allow(clippy::disallowed_macros, clippy::disallowed_methods, reason = "these are the program's own rules")]

mod common;

use common::{Lab, until};
use rustix::process::{Signal, getpid, kill_process};
use std::os::unix::net::UnixStream;

#[test]
fn sighup_reads_the_files_and_sigterm_ends_without_touching_a_port() {
    let lab = Lab::new();
    let switch = lab.switch();
    let (options, places) = (lab.options(), lab.places());
    let agent = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(tidegate_agent::run(options, places))
    });
    until("the API answers", || UnixStream::connect(lab.path("api.sock")).ok());
    lab.write("a.toml", &lab.vnic("a", 1, ""));
    kill_process(getpid(), Signal::HUP).unwrap();
    until("in force", || (switch.ports() == ["a"]).then_some(()));
    switch.log();
    kill_process(getpid(), Signal::TERM).unwrap();
    agent.join().unwrap().unwrap();
    assert_eq!((switch.ports(), switch.log()), (vec!["a".to_owned()], vec![]));
    assert!(lab.path("a.sock").exists() && !lab.path("api.sock").exists());
}
