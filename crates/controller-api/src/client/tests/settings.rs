//! Settings that cannot be used say why.

use super::super::{Client, Identity, Settings, Url};
use super::tls::Authority;

fn refusal(change: impl FnOnce(&mut Settings)) -> String {
    let mut settings = Settings::new(vec!["https://127.0.0.1:6654".into()]);
    settings.authority = Some(Authority::new().pem());
    change(&mut settings);
    Client::new(&settings).map(drop).unwrap_err().to_string()
}

#[test]
fn addresses_are_scheme_host_and_port() {
    for (text, shown) in [
        ("https://10.0.0.1:6654", "https://10.0.0.1:6654"),
        ("https://[2001:DB8::1]:6654/", "https://[2001:db8::1]:6654"),
        ("http://Controller.Example", "http://controller.example"),
    ] {
        assert_eq!(Url::parse(text).unwrap().to_string(), shown);
    }
    let long = format!("https://{}", "a".repeat(300));
    for text in [
        "",
        "10.0.0.1:6654",
        "https://",
        "ftp://a",
        "https://a:0",
        "https://a:",
        "https://a:65536",
        "https://u:p@a",
        "https://a/v1",
        "https://a?x",
        "https://a#x",
        "https://a b",
        "https://a\r\nHost: b",
        "\u{1b}[2J",
        &long,
    ] {
        let reason = Url::parse(text).unwrap_err();
        assert!(reason.ends_with("write it as https://10.0.0.1:6654"), "{reason}");
        assert!(!reason.contains(tidegate_visible::is_hidden), "{reason:?}");
    }
}

#[test]
fn what_is_missing_or_wrong_is_named() {
    let certificate = Authority::new().certificate("h1");
    let other = Authority::new().certificate("h1");
    let pair = |certificate: &str, key: &str| Identity::Certificate {
        certificate: certificate.as_bytes().to_vec(),
        key: key.as_bytes().to_vec(),
    };
    let cases = [
        (refusal(|s| s.urls.clear()), "0 addresses"),
        (refusal(|s| s.urls = (0..17).map(|n| format!("https://a{n}")).collect()), "17 addresses"),
        (refusal(|s| s.authority = None), "needs the certificate of the CA"),
        (refusal(|s| s.authority = Some(b"nothing".to_vec())), "the CA's file has no certificate"),
        (
            refusal(|s| {
                s.authority = Some(b"-----BEGIN CERTIFICATE-----\n%\n-----END CERTIFICATE-----\n".to_vec())
            }),
            "the CA's file is not PEM",
        ),
        (refusal(|s| s.identity = Identity::Token(String::new())), "the token is not"),
        (refusal(|s| s.identity = Identity::Token("a\r\nb".into())), "the token is not"),
        (refusal(|s| s.identity = Identity::Token("a".repeat(513))), "the token is not"),
        (refusal(|s| s.identity = pair("", &certificate.1)), "the certificate's file has no certificate"),
        (refusal(|s| s.identity = pair(&certificate.0, "")), "the key's file has no private key"),
        (refusal(|s| s.identity = pair(&certificate.0, &other.1)), "do not belong together"),
        (
            refusal(|s| {
                s.urls.push("http://127.0.0.1:1".into());
                s.identity = pair(&certificate.0, &certificate.1);
            }),
            "has no TLS, and so takes no certificate",
        ),
    ];
    for (reason, expected) in cases {
        assert!(reason.contains(expected), "{reason}");
    }
}
