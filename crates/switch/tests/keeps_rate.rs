//! Tests `keeps_rate` itself: one window above the rate fails, one slow window does not.

mod harness;

use harness::bytes_in;
use harness::rate::{Arrivals, Limit, keeps_rate};
use std::time::{Duration, Instant};

const LIMIT: Limit = Limit { rate: 80_000_000, burst: 10_000, frame: 1_500 };

/// Sends at `share` of the rate for one window. The bytes follow from the time of the look: a busy machine
/// looks less often.
fn window(arrivals: &mut Arrivals, share: f64) {
    let (began, mut sent) = (Instant::now(), 0);
    while began.elapsed() < Duration::from_millis(50) {
        std::thread::sleep(Duration::from_millis(1));
        arrivals.look(|| {
            let now = (share * bytes_in(LIMIT.rate, began.elapsed())) as u64;
            let bytes = now - sent;
            sent = now;
            bytes
        });
    }
}

fn sends(shares: &[f64]) {
    let mut shares = shares.iter().chain(std::iter::repeat(shares.last().unwrap()));
    keeps_rate("a", LIMIT, |arrivals| window(arrivals, *shares.next().unwrap()));
}

#[test]
fn slow_windows_before_a_good_one_pass() {
    sends(&[0.2, 0.5, 1.0]);
}

#[test]
#[should_panic(expected = "of its rate came, in no window")]
fn a_rate_that_no_window_reaches_fails() {
    sends(&[0.5]);
}

#[test]
#[should_panic(expected = "bytes came beyond its rate in some window")]
fn more_than_the_rate_in_one_window_fails() {
    // 150 kB above the rate, with 23 kB allowed; the other windows are slow or good.
    sends(&[0.5, 1.3, 1.0]);
}

#[test]
#[should_panic(expected = "bytes came beyond its rate in some window")]
fn more_than_the_rate_for_a_moment_fails_in_a_slow_window() {
    let mut windows = 0;
    keeps_rate("a", LIMIT, |arrivals| {
        window(arrivals, 0.1);
        windows += 1;
        if windows == 2 {
            // 10 s of the rate at once, which no pause between two looks explains.
            arrivals.look(|| 100_000_000);
        }
    });
}

#[test]
fn a_burst_and_a_frame_beyond_the_rate_pass() {
    keeps_rate("a", LIMIT, |arrivals| {
        arrivals.look(|| LIMIT.burst + LIMIT.frame);
        window(arrivals, 1.0);
    });
}
