//! How waits for the sender's and the receiver's limit are counted.

use super::Worker;
use super::testing::{self, add_tap_with, tap_frame};
use crate::port::PortContract;
use std::os::fd::OwnedFd;
use tidegate_contract::{Host, Vnic};
use tidegate_evidence::Histogram;

/// 125 bytes in a millisecond, and 33 frames of 60 bytes at once.
const LIMIT: &str = "{ max = \"1mbit\", burst = \"2kB\" }";
const FRAMES: usize = 40;
const START: u64 = 1_000_000_000_000;
const MS: u64 = 1_000_000;

/// Sends frames all at once from the first of two taps with these contract keys to the second. Returns the
/// worker.
fn sent(keys: [&str; 2]) -> (Worker, [OwnedFd; 2]) {
    testing::set_time(START);
    let (mut worker, _handle) = testing::worker();
    let taps = [0, 1].map(|index| add_tap_with(&mut worker, index, keys[usize::from(index)]));
    for _ in 0..FRAMES {
        rustix::io::write(&taps[0], &tap_frame(0, 1)).unwrap();
    }
    for tick in 0..100 {
        testing::set_time(START + tick * MS / 10);
        worker.work();
    }
    (worker, taps)
}

fn waits(worker: &Worker, index: usize) -> [Histogram; 2] {
    let stats = worker.ports[index].as_ref().unwrap().stats;
    [stats.tokens_tx.read(), stats.tokens_rx.read()]
}

/// 33 frames did not wait, and the last did until the bucket had 400 bytes more.
fn assert_waited(histogram: &Histogram) {
    let unhindered = histogram.occupied().next();
    assert_eq!((histogram.count(), unhindered), (FRAMES as u64, Some((0, 33))), "{histogram:?}");
    assert!(histogram.max().abs_diff(32 * MS / 10) <= MS / 10, "{} ns", histogram.max());
}

#[test]
fn for_the_limit_of_their_sender() {
    let (worker, _taps) = sent([&format!("tx = {LIMIT}"), ""]);
    let [tx, rx] = waits(&worker, 0);
    assert_waited(&tx);
    assert_eq!(rx.count() + waits(&worker, 1).iter().map(Histogram::count).sum::<u64>(), 0, "has no limit");
}

#[test]
fn for_the_limit_of_their_receiver() {
    let (worker, _taps) = sent(["", &format!("rx = {LIMIT}")]);
    let [tx, rx] = waits(&worker, 1);
    assert_waited(&rx);
    assert_eq!(tx.count() + waits(&worker, 0).iter().map(Histogram::count).sum::<u64>(), 0, "has no limit");
}

#[test]
fn another_limit_begins_anew() {
    let (mut worker, _taps) = sent([&format!("tx = {LIMIT}"), ""]);
    let contract = |keys: &str| {
        let text = format!(
            "[vnic.v0]\nattach = {{ tap = \"v0\" }}\nmac = \"52:54:00:00:00:00\"\nsegment = 7\n{keys}"
        );
        let vnic: Vnic = tidegate_contract::parse(&text, "test").unwrap().vnics.remove(0).value;
        PortContract::new(&vnic, &Host::default())
    };
    worker.set_contract(0, contract(&format!("tx = {LIMIT}\nrx = {LIMIT}")));
    assert_eq!(waits(&worker, 0)[0].count(), FRAMES as u64, "the limit is the same");
    worker.set_contract(0, contract("tx.max = \"2mbit\""));
    assert_eq!(waits(&worker, 0)[0].count(), 0);
}
