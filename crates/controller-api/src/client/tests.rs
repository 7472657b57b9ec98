//! A client against controllers that answer well, late, too much, or nonsense.

mod settings;
mod tls;

use super::*;
use crate::{Enrolment, Topology};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, mpsc};
use std::time::Instant;

const HEALTH: &str = r#"{"leader":true,"term":3,"switches":4}"#;

/// Reads one request: its head, and its body.
fn request(stream: &mut impl Read) -> Option<String> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        if stream.read(&mut byte).ok()? == 0 {
            return None;
        }
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let length = head
        .lines()
        .find_map(|line| line.to_lowercase().strip_prefix("content-length:")?.trim().parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body).ok()?;
    Some(head + &String::from_utf8(body).unwrap())
}

fn answer(status: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

/// A controller: each request's answer is what `speak` writes; requests are recorded with the number of their connection.
struct Fake {
    url: String,
    requests: mpsc::Receiver<(usize, String)>,
}

impl Fake {
    fn new(speak: impl Fn(&str, &mut TcpStream) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (notes, requests) = mpsc::channel();
        let speak = Arc::new(speak);
        std::thread::spawn(move || {
            for (number, stream) in listener.incoming().enumerate() {
                let (mut stream, notes, speak) = (stream.unwrap(), notes.clone(), Arc::clone(&speak));
                std::thread::spawn(move || {
                    while let Some(text) = request(&mut stream) {
                        let _ = notes.send((number, text.clone()));
                        speak(&text, &mut stream);
                    }
                });
            }
        });
        Self { url, requests }
    }

    fn says(status: &'static str, body: impl Into<String>) -> Self {
        let text = answer(status, &body.into());
        Self::new(move |_, stream| drop(stream.write_all(&text)))
    }

    fn count(&self) -> usize {
        self.requests.try_iter().count()
    }
}

fn standby(leader: Option<&str>) -> String {
    serde_json::json!({"code": "standby", "message": "another one leads", "reasons": [], "leader": leader})
        .to_string()
}

fn client(urls: &[&str]) -> Client {
    let mut settings = Settings::new(urls.iter().map(|url| (*url).to_owned()).collect());
    settings.answer = Duration::from_millis(1500);
    Client::new(&settings).unwrap()
}

/// Returns a URL at which no process listens.
fn unused() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

fn broken(result: Result<impl std::fmt::Debug, Error>) -> String {
    match result {
        Err(Error::Broken { reason, .. }) => reason,
        other => panic!("not broken: {other:?}"),
    }
}

#[test]
fn a_connection_serves_many_requests_with_the_token() {
    let fake = Fake::says("200 OK", HEALTH);
    let mut settings = Settings::new(vec![fake.url.clone()]);
    settings.identity = Identity::Token("s3cret".into());
    let client = Client::new(&settings).unwrap();
    for _ in 0..3 {
        assert_eq!(client.health().unwrap().switches, 4);
    }
    let all: Vec<_> = fake.requests.try_iter().collect();
    assert_eq!(all.iter().map(|(connection, _)| *connection).collect::<Vec<_>>(), [0, 0, 0]);
    assert!(all[0].1.starts_with("GET /v1/health HTTP/1.1\r\n"), "{}", all[0].1);
    assert!(all[0].1.to_lowercase().contains("authorization: bearer s3cret\r\n"), "{}", all[0].1);
    assert!(!format!("{settings:?}{client:?}").contains("s3cret"));
}

#[test]
fn names_are_encoded_and_bodies_are_sent() {
    let fake = Fake::says("404 Not Found", r#"{"code":"not-found","message":"no such path"}"#);
    let client = client(&[&fake.url]);
    for name in ["a>b", "../hosts", "..", "x?y#z", "é\r\nHost: evil"] {
        let error = client.path(name).unwrap_err();
        assert!(
            matches!(&error, Error::Problem { problem, status: 404, .. } if problem.code == ProblemCode::NotFound)
        );
    }
    let lines: Vec<String> =
        fake.requests.try_iter().map(|(_, text)| text.lines().next().unwrap().into()).collect();
    let paths = ["a%3Eb", "..%2Fhosts", "%2E%2E", "x%3Fy%23z", "%C3%A9%0D%0AHost%3A%20evil"];
    assert_eq!(lines, paths.map(|path| format!("GET /v1/paths/{path} HTTP/1.1")));
    let _ = client.enrol("h1", &Enrolment { request: "PEM".into() });
    let sent = fake.requests.try_iter().next().unwrap().1;
    assert!(
        sent.starts_with("POST /v1/hosts/h1/enrol ") && sent.ends_with("\r\n\r\n{\"request\":\"PEM\"}"),
        "{sent}"
    );
}

#[test]
fn a_standby_names_the_leader_which_is_remembered() {
    let leader = Fake::says("200 OK", HEALTH);
    let other = Fake::says("503 Service Unavailable", standby(Some(&leader.url)));
    let away = unused();
    let client = client(&[&other.url, &away, &leader.url]);
    for _ in 0..3 {
        assert!(client.health().unwrap().leader);
    }
    assert_eq!((other.count(), leader.count()), (1, 3));
}

#[test]
fn a_leader_that_no_setting_names_is_not_asked() {
    let thief = Fake::says("200 OK", HEALTH);
    let other = Fake::says("503 Service Unavailable", standby(Some(&thief.url)));
    let error = client(&[&other.url]).health().unwrap_err();
    let expected =
        format!("{} is none of the controllers that are asked here: add it to their URLs", thief.url);
    assert!(error.to_string().contains(&expected), "{error}");
    assert_eq!((other.count(), thief.count()), (1, 0));
}

#[test]
fn each_controller_is_asked_once() {
    // Each says that the other one leads.
    let (first, second) =
        (TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
    let urls = [&first, &second].map(|one| format!("http://{}", one.local_addr().unwrap()));
    drop((first, second));
    let count = Arc::new(Mutex::new(0));
    for (listen, leader) in [(0, 1), (1, 0)] {
        let listener = TcpListener::bind(urls[listen].strip_prefix("http://").unwrap()).unwrap();
        let (text, count) =
            (answer("503 Service Unavailable", &standby(Some(&urls[leader]))), Arc::clone(&count));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, text, count) = (stream.unwrap(), text.clone(), Arc::clone(&count));
                std::thread::spawn(move || {
                    while request(&mut stream).is_some() {
                        *count.lock().unwrap() += 1;
                        let _ = stream.write_all(&text);
                    }
                });
            }
        });
    }
    let error = client(&[&urls[0], &urls[1]]).health().unwrap_err();
    assert!(
        matches!(&error, Error::Problem { problem, .. } if problem.code == ProblemCode::Standby),
        "{error:?}"
    );
    assert_eq!(*count.lock().unwrap(), 2);
}

#[test]
fn a_leader_that_is_no_url_or_gone_is_passed_over() {
    let fine = Fake::says("200 OK", HEALTH);
    for leader in [Some("file:///etc/passwd"), Some("http://a@b"), Some("\u{1b}[2J"), Some(&*unused()), None]
    {
        let other = Fake::says("503 Service Unavailable", standby(leader));
        assert!(client(&[&other.url, &fine.url]).health().unwrap().leader, "{leader:?}");
    }
}

#[test]
fn the_next_controller_is_asked_when_one_is_away_or_mute() {
    let fine = Fake::says("200 OK", HEALTH);
    let cut = Fake::new(|_, stream| drop(stream.shutdown(std::net::Shutdown::Both)));
    let client = client(&[&unused(), &cut.url, &fine.url]);
    assert!(client.health().unwrap().leader);
    // From now on the one that answered is first.
    assert!(client.health().unwrap().leader);
    assert_eq!((cut.count(), fine.count()), (1, 2));
}

#[test]
fn an_enrolment_is_not_sent_twice() {
    let fine = Fake::says("200 OK", r#"{"certificate":"","authority":"","expires":1.0}"#);
    let cut = Fake::new(|_, stream| drop(stream.shutdown(std::net::Shutdown::Both)));
    let enrolment = Enrolment { request: String::new() };
    broken(client(&[&cut.url, &fine.url]).enrol("h1", &enrolment));
    assert_eq!(fine.count(), 0);
    // The first one has not seen it.
    client(&[&unused(), &fine.url]).enrol("h1", &enrolment).unwrap();
}

#[test]
fn no_controller_there_names_each_url_and_what_to_check() {
    let urls = [unused(), unused()];
    let error = client(&[&urls[0], &urls[1]]).topology().unwrap_err();
    let text = error.to_string();
    assert!(matches!(&error, Error::Unreachable { attempts } if attempts.len() == 2), "{error:?}");
    for part in [&urls[0], &urls[1], "Connection refused", "systemctl status tidegate-controller"] {
        assert_eq!(text.matches(part).count(), if part == "Connection refused" { 2 } else { 1 }, "{text}");
    }
    let error = client(&["http://no-such-host.invalid:1"]).health().unwrap_err();
    assert!(matches!(&error, Error::Unreachable { .. }), "{error:?}");
}

#[test]
fn late_and_dripping_answers_end() {
    let mute = Fake::new(|_, _| std::thread::sleep(Duration::from_secs(60)));
    let drip = Fake::new(|_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n");
        while stream.write_all(b" ").is_ok() {
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    let slow_head = Fake::new(|_, stream| {
        while stream.write_all(b"H").is_ok() {
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    for fake in [mute, drip, slow_head] {
        let begin = Instant::now();
        let reason = broken(client(&[&fake.url]).health());
        assert!(begin.elapsed() < Duration::from_secs(30), "{reason}");
    }
}

#[test]
fn waiting_for_news_takes_longer_than_an_answer() {
    const VIEW: &str = r#"{"version":2,"term":1,"lease":1,"peers":[],"remotes":[],"paths":[],"refused":[]}"#;
    let late = Fake::new(|_, stream| {
        std::thread::sleep(Duration::from_millis(2500));
        let _ = stream.write_all(&answer("200 OK", VIEW));
    });
    let client = client(&[&late.url]);
    assert_eq!(client.view("h1", Some(1), Duration::from_secs(20)).unwrap().version, 2);
    let asked = late.requests.try_iter().next().unwrap().1;
    assert!(asked.starts_with("GET /v1/hosts/h1?after=1&wait=20000000000 "), "{asked}");
    broken(client.view("h1", None, Duration::from_secs(20)));
}

#[test]
fn huge_answers_are_refused() {
    let endless = |head: &'static str| {
        Fake::new(move |_, stream| {
            let _ = stream.write_all(head.as_bytes());
            let block = vec![b' '; 1 << 20];
            while stream.write_all(&block).is_ok() {}
        })
    };
    let patient = |fake: &Fake| {
        let mut settings = Settings::new(vec![fake.url.clone()]);
        settings.answer = Duration::from_secs(60);
        Client::new(&settings).unwrap()
    };
    let body = endless("HTTP/1.1 200 OK\r\n\r\n");
    assert!(broken(patient(&body).topology()).contains("more than 67108864 bytes"));
    let problem = endless("HTTP/1.1 400 Bad Request\r\n\r\n");
    assert!(broken(patient(&problem).topology()).contains("more than 1048576 bytes"));
    let head = endless("HTTP/1.1 200 OK\r\nX: ");
    broken(patient(&head).topology());
}

#[test]
fn garbage_is_no_answer() {
    for text in [
        "",
        "\0\0\0\0\r\n\r\n",
        "SSH-2.0-OpenSSH_9.2\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n{}",
        "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n{}",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}",
        "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n\u{fffd}!",
        "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 4\r\n\r\noops",
        "HTTP/1.1 999 What\r\nContent-Length: 0\r\n\r\n",
    ] {
        let fake = Fake::new(move |_, stream| {
            let _ = stream.write_all(text.as_bytes());
            let _ = stream.shutdown(std::net::Shutdown::Both);
        });
        broken(client(&[&fake.url]).health());
    }
}

#[test]
fn a_newer_controller_is_understood() {
    let fake = Fake::says("200 OK", r#"{"switches":[],"links":[],"hosts":[],"weather":{"rain":true}}"#);
    assert_eq!(
        client(&[&fake.url]).topology().unwrap(),
        Topology { switches: vec![], links: vec![], hosts: vec![] }
    );
    let fake = Fake::says("418 I'm a teapot", r#"{"code":"teapot","message":"short and stout"}"#);
    let error = client(&[&fake.url]).topology().unwrap_err();
    assert!(
        matches!(&error, Error::Problem { problem, .. } if problem.code == ProblemCode::Unknown),
        "{error:?}"
    );
}

#[test]
fn hostile_texts_are_shown_safely() {
    const EVIL: &str = "\u{1b}[2J\u{202e}\r\nforged: line";
    let problem =
        serde_json::json!({"code": "refused", "message": EVIL, "reasons": [EVIL, EVIL]}).to_string();
    let refused = Fake::says("409 Conflict", problem);
    let garbage = Fake::says("500 Internal Server Error", EVIL);
    let field = Fake::says("200 OK", format!("{{\"leader\": {}}}", serde_json::json!(EVIL)));
    for (fake, lines) in [(refused, 3), (garbage, 2), (field, 2)] {
        let text = client(&[&fake.url]).health().unwrap_err().to_string();
        assert_eq!(text.lines().count(), lines, "{text:?}");
        assert!(text.chars().all(|c| c == '\n' || !tidegate_visible::is_hidden(c)), "{text:?}");
    }
}

#[test]
fn a_busy_controller_says_when_to_come_back() {
    for (header, expected) in [("7", Some(7)), ("999999999", Some(3600)), ("Fri, 31 Dec", None), ("-1", None)]
    {
        let fake = Fake::new(move |_, stream| {
            let body = r#"{"code":"busy","message":"too much"}"#;
            let head = format!(
                "HTTP/1.1 429 Too Many\r\nRetry-After: {header}\r\nContent-Length: {}\r\n\r\n",
                body.len()
            );
            let _ = stream.write_all((head + body).as_bytes());
        });
        match client(&[&fake.url]).health() {
            Err(Error::Problem { retry_after, .. }) => {
                assert_eq!(retry_after.map(|time| time.as_secs()), expected)
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_client_is_used_by_many_threads() {
    let fake = Fake::says("200 OK", HEALTH);
    let client = client(&[&fake.url]);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..20).for_each(|_| assert!(client.health().unwrap().leader)));
        }
    });
    assert_eq!(fake.count(), 160);
}

#[test]
fn each_operation_of_the_definition_has_a_method() {
    let definition: serde_json::Value =
        serde_json::from_str(include_str!("../../../../controller/openapi.json")).unwrap();
    let ours = include_str!("operations.rs");
    for item in definition["paths"].as_object().unwrap().values() {
        for operation in item.as_object().unwrap().values() {
            let name = operation["operationId"].as_str().unwrap();
            assert!(ours.contains(&format!("    pub fn {name}(&self")), "no method for {name}");
        }
    }
}

#[test]
fn all_controllers_together_have_one_deadline_and_the_next_one_has_its_turn() {
    let mute = Fake::new(|_, _| std::thread::sleep(Duration::from_secs(60)));
    let fine = Fake::says("200 OK", HEALTH);
    let mut settings = Settings::new(vec![mute.url.clone(), fine.url.clone()]);
    (settings.answer, settings.total) = (Duration::from_secs(2), Some(Duration::from_secs(2)));
    let client = Client::new(&settings).unwrap();
    assert!(client.health().is_err(), "the first one took all the time");
    assert!(client.health().unwrap().leader);
}
