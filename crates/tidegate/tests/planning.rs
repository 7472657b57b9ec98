//! How long the agent plans many contracts, some made to take long.

#![allow(clippy::disallowed_macros, clippy::disallowed_methods, reason = "these are the program's own rules")]

mod common;

use common::{Lab, RunningAgent};
use std::fmt::Write;
use std::time::{Duration, Instant};

/// Returns contracts on netdevs; `more` gives further keys of each.
fn contracts(count: usize, more: impl Fn(usize) -> String) -> String {
    (0..count).fold(String::new(), |mut text, n| {
        let mac = format!("02:00:00:{:02x}:{:02x}:{:02x}", n >> 16 & 255, n >> 8 & 255, n & 255);
        let _ = writeln!(
            text,
            "[vnic.v{n}]\nattach = {{ netdev = \"n{n}\" }}\nmac = \"{mac}\"\nsegment = 0\n{}",
            more(n)
        );
        text
    })
}

fn plan(agent: &RunningAgent, text: &str) -> Duration {
    let begin = Instant::now();
    let (status, _) = agent.raw("POST", "/v1/plan", text);
    assert!([200, 400].contains(&status), "{status}");
    begin.elapsed()
}

/// Checks that a plan takes less than `most`, in three tries, since the machine may be busy.
fn takes_less(agent: &RunningAgent, what: &str, text: &str, most: Duration) {
    let mut seen = Vec::new();
    while seen.len() < 3 {
        let took = plan(agent, text);
        if took < most {
            return;
        }
        seen.push(took);
    }
    panic!("{what}: {seen:?}, expected less than {most:?}");
}

#[test]
fn eight_times_the_contracts_take_eight_times_as_long() {
    let lab = Lab::new();
    let _switch = lab.switch();
    let agent = lab.agent();
    let promise = "tx = { max = \"9kbit\", min = \"1kbit\" }\nrx = { max = \"1gbit\" }";
    let realtime = "tx = { max = \"1kbit\", burst = \"2kB\" }\ndeadline = \"9s\"\nrx = { max = \"10gbit\" }";
    type More = fn(usize, usize, &str, &str) -> String;
    let shapes: [(&str, More); 4] = [
        ("alone", |_, _, _, _| String::new()),
        ("each to the next", |n, all, promise, _| format!("{promise}\nto = [\"v{}\"]", (n + 1) % all)),
        ("all to one", |n, _, promise, _| {
            if n == 0 {
                promise.replace(", min = \"1kbit\"", "")
            } else {
                format!("{promise}\nto = [\"v0\"]")
            }
        }),
        ("all to one in time", |n, _, promise, realtime| {
            if n == 0 {
                promise.replace(", min = \"1kbit\"", "").replace("1gbit", "10gbit")
            } else {
                format!("{realtime}\nto = [\"v0\"]")
            }
        }),
    ];
    for (shape, more) in shapes {
        let of = |all: usize| contracts(all, |n| more(n, all, promise, realtime));
        let few = plan(&agent, &of(1_000)).min(plan(&agent, &of(1_000)));
        // Comparing each pair would take 64 times as long.
        takes_less(&agent, shape, &of(8_000), few * 20);
    }
}

#[test]
fn contracts_made_to_take_long_are_planned_in_time() {
    let lab = Lab::new();
    let _switch = lab.switch();
    let agent = lab.agent();
    let plain = contracts(8_000, |_| String::new());
    let usual = plan(&agent, &plain);
    let list = |item: &str| vec![item; 1_200_000 / (item.len() + 1)].join(",");
    let one = |more: String| contracts(1, |_| more.clone());
    let texts = [
        ("a list of names", one(format!("to = [{}]", list("\"b\"")))),
        ("a list of addresses", one(format!("allowed = {{ macs = [{}] }}", list("\"02:00:00:00:00:01\"")))),
        ("a list of no addresses", one(format!("allowed = {{ macs = [{}] }}", list("\"x\"")))),
        ("a list of VLANs", one(format!("allowed = {{ vlans = [{}] }}", list("7")))),
        ("names of nobody", contracts(8_000, |n| format!("to = [\"nobody-{n}\"]"))),
        ("the guest of all", contracts(8_000, |_| "guest = \"/run/tidegate/vm/g\"".into())),
        ("one long key", one(format!("{} = 1", "x".repeat(1_200_000)))),
        ("many keys", one((0..60_000).map(|n| format!("deadline{n} = 1\n")).collect())),
        (
            "one address for all",
            contracts(8_000, |_| String::new()).replace("02:00:00:", "02:00:01:")
                + &contracts(8_000, |_| String::new()).replace("[vnic.v", "[vnic.w"),
        ),
    ];
    for (what, text) in texts {
        takes_less(&agent, what, &text, usual * 6);
    }
}

#[test]
fn more_than_a_host_keeps_is_refused() {
    let lab = Lab::new();
    let _switch = lab.switch();
    let agent = lab.agent();
    let refused = |text: &str, expected: &str| {
        let (status, answer) = agent.apply(text);
        let why = answer["details"][0].as_str().unwrap_or_default();
        assert!(status == 422 && why.contains(expected), "{status} {}", &answer.to_string()[..300]);
    };
    refused(&contracts(8_193, |_| String::new()), "8193 vNICs would be in force; a host keeps at most 8192");
    let to: String = (0..64).map(|n| format!("\"v{n}\",")).collect();
    let promise = |n| if n < 64 { String::new() } else { format!("tx = {{ min = \"1kbit\" }}\nto = [{to}]") };
    refused(&contracts(64 + 300, promise), "19200 promises");
    assert_eq!(agent.get("/v1/vnics").1.as_array().unwrap().len(), 0);
}

#[test]
fn readers_are_answered_while_many_contracts_are_planned() {
    let lab = Lab::new();
    let _switch = lab.switch();
    let agent = lab.agent();
    let text = contracts(8_000, |_| String::new());
    let alone = plan(&agent, &text);
    std::thread::scope(|scope| {
        let planner = scope.spawn(|| (0..2).map(|_| plan(&agent, &text)).max());
        let (mut waits, mut answers) = (Duration::ZERO, 0);
        while !planner.is_finished() {
            let begin = Instant::now();
            assert_eq!(agent.get("/v1/host").0, 200);
            waits = waits.max(begin.elapsed());
            answers += 1;
        }
        // Answers are at most a third of a second older.
        assert!(
            answers > 3 && waits < alone + Duration::from_secs(2),
            "{answers} answers, the latest after {waits:?}"
        );
    });
}
