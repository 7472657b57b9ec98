//! The commands that ask the network's controller, against a controller that answers as told.

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, PKCS_ECDSA_P256_SHA256,
    PublicKeyData, SignatureAlgorithm,
};
use rustix::process::{Pid, Signal, kill_process};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection, Stream};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use tempfile::TempDir;

type Answers = dyn Fn(&str) -> (u16, String) + Send + Sync;

/// A controller, and a folder for the files of who asks it.
struct Fake {
    url: String,
    requests: Arc<Mutex<Vec<String>>>,
    folder: TempDir,
}

impl Fake {
    fn new(answers: impl Fn(&str) -> (u16, String) + Send + Sync + 'static) -> Self {
        Self::start(None, Box::new(answers))
    }

    fn says(status: u16, body: &Value) -> Self {
        let body = body.to_string();
        Self::new(move |_| (status, body.clone()))
    }

    fn start(tls: Option<Arc<ServerConfig>>, answers: Box<Answers>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let url = format!("{scheme}://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(vec![]));
        let notes = Arc::clone(&requests);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                match &tls {
                    None => serve(&mut stream, &notes, &answers),
                    Some(config) => {
                        let mut connection = ServerConnection::new(Arc::clone(config)).unwrap();
                        serve(&mut Stream::new(&mut connection, &mut stream), &notes, &answers);
                    }
                }
            }
        });
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("operator.toml"), "").unwrap();
        Self { url, requests, folder }
    }

    fn file(&self, name: &str, text: &str, mode: u32) -> PathBuf {
        let file = self.folder.path().join(name);
        std::fs::write(&file, text).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        file
    }

    fn run(&self, arguments: &[&str]) -> Output {
        tidegate(self.folder.path(), &[arguments, &["--controller", &self.url]].concat())
    }

    fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

fn serve(stream: &mut (impl Read + Write), notes: &Mutex<Vec<String>>, answers: &Answers) {
    while let Some(text) = request(stream) {
        notes.lock().unwrap().push(text.clone());
        let (status, body) = answers(&text);
        let head = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n", body.len());
        if stream.write_all((head + &body).as_bytes()).and_then(|()| stream.flush()).is_err() {
            return;
        }
    }
}

fn request(stream: &mut impl Read) -> Option<String> {
    let (mut head, mut byte) = (vec![], [0]);
    while !head.ends_with(b"\r\n\r\n") {
        if stream.read(&mut byte).ok()? == 0 {
            return None;
        }
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let length =
        head.lines().find_map(|l| l.to_lowercase().strip_prefix("content-length:")?.trim().parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body).ok()?;
    Some(head + &String::from_utf8(body).unwrap())
}

fn tidegate(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    for name in ["CONTROLLER", "CA", "TOKEN_FILE", "CERTIFICATE", "KEY"] {
        command.env_remove(format!("TIDEGATE_{name}"));
    }
    command.env("TIDEGATE_OPERATOR", folder.join("operator.toml")).env_remove("RUST_LOG");
    command.args(arguments).output().unwrap()
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

fn text(output: &Output) -> String {
    [&output.stdout[..], &output.stderr].concat().try_into().unwrap()
}

fn path() -> Value {
    let definition: Value = serde_json::from_str(include_str!("../../../controller/openapi.json")).unwrap();
    definition["components"]["schemas"]["Path"]["examples"][0].clone()
}

const TERMS: [&str; 25] = [
    "path",
    "request",
    "a1>b1",
    "--source",
    "h1",
    "--target",
    "h2",
    "--source-address",
    "10.1.0.1",
    "--target-address",
    "10.1.0.2",
    "--source-port",
    "49156",
    "--dscp",
    "46",
    "--rate",
    "47mbit",
    "--burst",
    "7.1kB",
    "--smallest-frame",
    "110B",
    "--largest-frame",
    "1550B",
    "--budget",
    "900us",
];

#[test]
fn a_path_is_asked_for_and_shown() {
    let fake = Fake::says(200, &path());
    let token = fake.file("token", "s3cret\n", 0o600);
    let output = fake.run(&[&TERMS[..], &["--token-file", token.to_str().unwrap()]].concat());
    assert_eq!(code(&output), 0, "{}", text(&output));
    assert!(text(&output).contains("600 us of 900 us that the network may take"), "{}", text(&output));
    let sent = fake.requests()[0].clone();
    assert!(sent.starts_with("PUT /v1/paths/a1%3Eb1 HTTP/1.1\r\n"), "{sent}");
    assert!(sent.to_lowercase().contains("authorization: bearer s3cret\r\n"), "{sent}");
    let body: Value = serde_json::from_str(sent.split_once("\r\n\r\n").unwrap().1).unwrap();
    assert_eq!(body, path()["request"]);
    let output = fake.run(&["path", "show", "a1>b1", "--json"]);
    assert_eq!(serde_json::from_slice::<Value>(&output.stdout).unwrap(), path());
}

#[test]
fn a_refusal_has_each_route_and_its_code() {
    let fake = Fake::says(
        409,
        &json!({"code": "refused", "message": "no route fits", "reasons": [
            "link s1:1>s2:1: 520000000 bit/s of 500000000 reservable", "link s1:3>s3:1: bound 1100000 ns of 900000"]}),
    );
    let output = fake.run(&TERMS);
    assert_eq!(code(&output), 3);
    assert_eq!(
        text(&output),
        "tidegate: no route fits\n  link s1:1>s2:1: 520000000 bit/s of 500000000 reservable\n  \
         link s1:3>s3:1: bound 1100000 ns of 900000\n"
    );
    // Refused here: the controller is not asked.
    let mut terms = TERMS;
    terms[18] = "1kB";
    let output = fake.run(&terms);
    assert_eq!((code(&output), fake.requests().len()), (2, 1), "{}", text(&output));
}

#[test]
fn problems_have_their_codes() {
    for (status, kind, expected) in [
        (401, "unauthorized", 1),
        (403, "forbidden", 1),
        (404, "not-found", 1),
        (409, "waiting", 3),
        (429, "busy", 4),
        (503, "standby", 4),
    ] {
        let fake = Fake::says(status, &json!({"code": kind, "message": "no"}));
        for command in
            [&["path", "ls"][..], &["path", "show", "a>b"], &["path", "release", "a>b"], &["topology"]]
        {
            assert_eq!(code(&fake.run(command)), expected, "{kind} {command:?}");
        }
    }
    let fake = Fake::says(200, &json!({"paths": 7}));
    assert_eq!(code(&fake.run(&["path", "ls"])), 4);
}

#[test]
fn an_option_or_a_file_that_is_wrong_is_named() {
    let fake = Fake::says(200, &json!({"paths": []}));
    let open = fake.file("open", "secret", 0o644);
    let output = fake.run(&["path", "ls", "--token-file", open.to_str().unwrap()]);
    assert!(code(&output) == 1 && text(&output).contains("chmod 0600"), "{}", text(&output));
    let output = fake.run(&["path", "ls", "--token-file", "/nonexistent"]);
    assert!(code(&output) == 1 && text(&output).contains("/nonexistent"), "{}", text(&output));
    let output = tidegate(fake.folder.path(), &["path", "ls"]);
    assert!(code(&output) == 2 && text(&output).contains("no controller is named"), "{}", text(&output));
    let output = tidegate(fake.folder.path(), &["path", "ls", "--controller", "https://127.0.0.1:1"]);
    assert!(code(&output) == 2 && text(&output).contains("of the CA"), "{}", text(&output));
    fake.file("operator.toml", &format!("controller = \"{}\"\ntoken = \"x\"\n", fake.url), 0o600);
    let output = tidegate(fake.folder.path(), &["path", "ls"]);
    assert!(
        code(&output) == 1 && text(&output).contains("operator.toml:2: there is no key"),
        "{}",
        text(&output)
    );
    fake.file("token", "abc", 0o600);
    fake.file("operator.toml", &format!("controller = \"{}\"\ntoken-file = \"token\"\n", fake.url), 0o600);
    let output = tidegate(fake.folder.path(), &["path", "ls"]);
    assert_eq!(code(&output), 0, "{}", text(&output));
    assert!(fake.requests()[0].contains("Bearer abc\r\n"));
}

#[test]
fn decisions_come_in_pages() {
    let fake = Fake::new(|request| {
        let after: u64 = request.split_once("after=").unwrap().1.split('&').next().unwrap().parse().unwrap();
        let all = (after + 1..=(after + 1000).min(1500)).map(|number| {
            json!({"number": number, "time": 1.5, "path": "a1>b1", "cause": "request", "verdict": "kept", "reasons": []})
        });
        (200, json!({"decisions": all.collect::<Vec<_>>(), "last": 1500}).to_string())
    });
    let output = fake.run(&["decisions", "--path", "a1>b1"]);
    assert_eq!((code(&output), text(&output).lines().count()), (0, 1500));
    assert!(text(&output).ends_with("  1500  00:00:01.500  kept          a1>b1: request\n"));
    let asked: Vec<String> =
        fake.requests().iter().map(|text| text.lines().next().unwrap().to_owned()).collect();
    let line = |after| format!("GET /v1/decisions?after={after}&limit=1000&path=a1%3Eb1 HTTP/1.1");
    assert_eq!(asked, [line(0), line(1000)]);
}

#[test]
fn following_ends_well_at_ctrl_c() {
    let decision =
        json!({"number": 1, "time": 1.5, "path": "a", "cause": "b", "verdict": "kept", "reasons": []});
    let fake = Fake::says(200, &json!({"decisions": [decision], "last": 1}));
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(["decisions", "--follow", "--controller", &fake.url]);
    command.env("TIDEGATE_OPERATOR", fake.folder.path().join("operator.toml"));
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut first = [0];
    child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    let id = Pid::from_child(&child);
    kill_process(id, Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn no_answer_acts_on_a_terminal() {
    const EVIL: &str = "\u{1b}[2J\u{9b}31m\u{202e}\r\nforged: line\u{e0041}";
    let mut evil = path();
    for key in ["name", "links", "reasons"] {
        evil[key] = if key == "name" { json!(EVIL) } else { json!([EVIL]) };
    }
    for key in ["vnic", "remote", "source", "target"] {
        evil["request"][key] = json!(EVIL);
    }
    let host = json!({"name": EVIL, "port": EVIL, "address": "::1", "registered": true, "lease_left": 1, "vnics": 1});
    let switch =
        json!({"name": EVIL, "datapath": EVIL, "connected": false, "database": false, "error": EVIL});
    let link = json!({"name": format!("{EVIL}>{EVIL}"), "source": EVIL, "target": EVIL, "up": true, "capacity": 1,
        "reservable": 1, "reserved": 1, "levels": []});
    let decision = json!({"number": 1, "time": 1e300, "path": EVIL, "cause": EVIL, "verdict": "kept", "reasons": [EVIL]});
    let fine = json!({
        "paths": [evil], "switches": [switch], "links": [link], "hosts": [host], "decisions": [decision], "last": 1
    });
    let whole = [fine, evil, json!({"code": "refused", "message": EVIL, "reasons": [EVIL], "leader": EVIL})];
    for (answer, status) in [(0, 200), (1, 200), (2, 409), (2, 503)] {
        let fake = Fake::says(status, &whole[answer]);
        let mut terms = TERMS;
        terms[2] = "a>b";
        let show = ["path", "show", "a>b"];
        for command in
            [&["path", "ls"][..], &show, &["topology"], &["topology", "--table"], &["decisions"], &terms]
        {
            let text = text(&fake.run(command));
            assert!(
                text.chars().all(|c| c == '\n' || !tidegate_visible::is_hidden(c)),
                "{command:?}: {text:?}"
            );
            assert!(!text.lines().any(|line| line.trim_start().starts_with("forged")), "{command:?}: {text}");
        }
    }
}

/// A CA.
struct Authority(CertifiedIssuer<'static, KeyPair>);

/// The public key of a signing request: P-256 has one form (RFC 5480).
struct Public(Vec<u8>);

impl PublicKeyData for Public {
    fn der_bytes(&self) -> &[u8] {
        &self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

impl Authority {
    fn new() -> Arc<Self> {
        let mut parameters = CertificateParams::default();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Arc::new(Self(CertifiedIssuer::self_signed(parameters, KeyPair::generate().unwrap()).unwrap()))
    }

    /// Returns the answer to an enrolment.
    fn sign(&self, request: &str) -> (u16, String) {
        const PREFIX: &[u8] = b"\x30\x59\x30\x13\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07\x03\x42\x00";
        let body: Value = serde_json::from_str(request.split_once("\r\n\r\n").unwrap().1).unwrap();
        let der = rustls::pki_types::CertificateSigningRequestDer::from_pem_slice(
            body["request"].as_str().unwrap().as_bytes(),
        )
        .unwrap();
        let at = der.windows(PREFIX.len()).position(|part| part == PREFIX).unwrap() + PREFIX.len();
        let public = Public(der[at..at + 65].to_vec());
        let certificate =
            CertificateParams::new(["h1".to_owned()]).unwrap().signed_by(&public, &self.0).unwrap();
        (
            200,
            json!({"certificate": certificate.pem(), "authority": self.0.pem(), "expires": 4e9}).to_string(),
        )
    }

    /// Returns how a controller at 127.0.0.1 that asks for certificates speaks TLS.
    fn server(&self) -> Arc<ServerConfig> {
        let provider = Arc::new(ring::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.0.pem().as_bytes()).unwrap()).unwrap();
        let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
        let key = KeyPair::generate().unwrap();
        let certificate =
            CertificateParams::new(["127.0.0.1".to_owned()]).unwrap().signed_by(&key, &self.0).unwrap();
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(clients.allow_unauthenticated().build().unwrap())
            .with_single_cert(
                vec![certificate.der().clone()],
                PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap(),
            );
        Arc::new(config.unwrap())
    }
}

#[test]
fn a_host_enrols_and_renews() {
    let authority = Authority::new();
    let signer = Arc::clone(&authority);
    let fake = Fake::start(Some(authority.server()), Box::new(move |request| signer.sign(request)));
    let token = fake.file("token", "once\n", 0o600);
    let ca = fake.file("given.pem", &authority.0.pem(), 0o644);
    let folder = fake.folder.path().join("controller");
    let enrol =
        ["controller", "enrol", "--host", "h1", "--uplink", "up", "--folder", folder.to_str().unwrap()];
    let first =
        [&enrol[..], &["--token-file", token.to_str().unwrap(), "--ca", ca.to_str().unwrap()]].concat();
    let output = fake.run(&first);
    assert_eq!(code(&output), 0, "{}", text(&output));
    assert!(text(&output).contains("[controller]\nurl = [\"https://127.0.0.1:"), "{}", text(&output));
    let mode = |name: &str| folder.join(name).metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(""), mode("host.pem"), mode("ca.pem")), (0o700, 0o600, 0o644));
    let old = std::fs::read_to_string(folder.join("host.pem")).unwrap();
    assert!(old.contains("BEGIN CERTIFICATE") && old.contains("BEGIN PRIVATE KEY"), "{old}");
    // A second time is a mistake; a renewal needs neither token nor CA.
    let output = fake.run(&first);
    assert!(code(&output) == 1 && text(&output).contains("--renew"), "{}", text(&output));
    let output = fake.run(&[&enrol[..], &["--renew", "--json"]].concat());
    assert_eq!(code(&output), 0, "{}", text(&output));
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(said["certificate"], json!(folder.join("host.pem")));
    let new = std::fs::read_to_string(folder.join("host.pem")).unwrap();
    assert_ne!(old, new);
    let tokens: Vec<bool> = fake.requests().iter().map(|text| text.contains("Bearer once")).collect();
    assert_eq!(tokens, [true, false]);
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 2);
}

#[test]
fn an_enrolment_that_fails_keeps_its_key_and_no_certificate() {
    let other = Authority::new();
    let key = KeyPair::generate().unwrap();
    let foreign = CertificateParams::new(["h1".to_owned()]).unwrap().signed_by(&key, &other.0).unwrap().pem();
    let good = other.0.pem();
    for (status, answer) in [
        (403, json!({"code": "forbidden", "message": "the token is used up"})),
        (200, json!({"certificate": "", "authority": good, "expires": 1})),
        (200, json!({"certificate": foreign, "authority": good, "expires": 1})),
        (200, json!({"certificate": foreign, "authority": "none", "expires": 1})),
        (200, json!({"certificate": 7})),
    ] {
        let fake = Fake::says(status, &answer);
        let token = fake.file("token", "once\n", 0o600);
        let folder = fake.folder.path().join("controller");
        let enrol = ["controller", "enrol", "--host", "h1", "--folder", folder.to_str().unwrap()];
        let output = fake.run(&[&enrol[..], &["--token-file", token.to_str().unwrap()]].concat());
        assert_eq!(code(&output), if status == 403 { 1 } else { 4 }, "{}", text(&output));
        let files: Vec<_> =
            std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(files, ["enrolling.pem"], "{answer}");
        let output = fake.run(&[&enrol[..], &["--renew"]].concat());
        assert!(code(&output) == 1 && text(&output).contains("Enrol first"), "{}", text(&output));
        assert!(fake.requests().len() == 1);
    }
}

#[test]
fn an_answer_that_is_lost_is_asked_for_again_with_the_same_key() {
    let authority = Authority::new();
    let count = Mutex::new(0);
    // The first answer is cut off, so that it is no JSON.
    let fake = Fake::new(move |request| {
        let mut count = count.lock().unwrap();
        *count += 1;
        let (status, text) = authority.sign(request);
        (status, if *count == 1 { text[..20].to_owned() } else { text })
    });
    let token = fake.file("token", "once\n", 0o600);
    let folder = fake.folder.path().join("controller");
    let (into, with) = (folder.to_str().unwrap(), token.to_str().unwrap());
    let enrol = ["controller", "enrol", "--host", "h1", "--folder", into, "--token-file", with];
    let output = fake.run(&enrol);
    assert!(code(&output) == 4 && text(&output).contains("same command again"), "{}", text(&output));
    let kept = std::fs::read_to_string(folder.join("enrolling.pem")).unwrap();
    let output = fake.run(&enrol);
    assert_eq!(code(&output), 0, "{}", text(&output));
    let host = std::fs::read_to_string(folder.join("host.pem")).unwrap();
    assert!(host.ends_with(&kept), "{host}");
    assert!(!folder.join("enrolling.pem").exists());
}
