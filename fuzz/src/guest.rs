//! A guest's limit port: whatever comes is bounded, paced and either a request or not.

use std::time::Duration;
use tidegate_guest::lines::{Line, Lines, REPLY};
use tidegate_guest::message::{Ask, Reply, Request};
use tidegate_guest::session::{CHANGES, LINES, Session, Step};

/// A first byte says into what pieces the others are cut, and how long it is between two.
///
/// # Panics
/// Where a guest gets more than its part, or something changes by being written.
pub fn run(data: &[u8]) {
    let Some((cut, data)) = data.split_first() else { return };
    let (mut session, mut now) = (Session::default(), Duration::ZERO);
    let (mut asked, mut changed) = (Vec::new(), Vec::new());
    'all: for chunk in data.chunks(usize::from(cut % 64) + 1) {
        now += Duration::from_millis(u64::from(cut / 64) * 7);
        let mut input = chunk;
        loop {
            let before = input.len();
            match session.next(&mut input, now) {
                None => break,
                Some(Step::Close) => break 'all,
                Some(Step::Wait(wait)) => {
                    assert!(!wait.is_zero() && wait <= Duration::from_secs(1), "{wait:?}");
                    now += wait;
                }
                Some(Step::Reply(reply)) => answer(&reply),
                Some(Step::Ask(request)) => {
                    let again = Request::parse(&request.to_string());
                    assert_eq!(again.as_ref(), Ok(&request));
                    asked.push(now);
                    if request.ask != Ask::Limit {
                        changed.push(now);
                    }
                }
            }
            assert!(input.len() <= before);
        }
        assert!(input.is_empty());
    }
    for (times, most) in [(asked, LINES), (changed, CHANGES)] {
        for (i, first) in times.iter().enumerate() {
            let within = times[i..].iter().take_while(|t| **t < *first + Duration::from_secs(1)).count();
            assert!(within <= 2 * most as usize, "{within} in a second");
        }
    }
    let (mut lines, mut input) = (Lines::new(REPLY), data);
    while let Some(line) = lines.next(&mut input) {
        let Line::Text(line) = line else { continue };
        if let Some(reply) = Reply::parse(&line) {
            let again = Reply::parse(&reply.to_string());
            assert_eq!(again, Some(reply));
        }
    }
}

fn answer(reply: &Reply) {
    let line = reply.to_string();
    assert!(line.len() <= REPLY && line.bytes().all(|b| (b' '..=b'~').contains(&b)), "{line:?}");
}
