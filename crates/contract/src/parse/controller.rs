//! The `[controller]` table to a [`Controller`].

use super::{keys, reader::Table};
use crate::Controller;
use crate::controller::{Identity, OnRefused, OnUnreachable};
use std::{path::PathBuf, str::FromStr};

pub(super) fn read(table: &Table<'_>) -> Controller {
    table.check_known_keys(keys::CONTROLLER);
    for (key, example) in [
        ("url", "url = [\"https://10.0.0.1:6654\"]"),
        ("host", "host = \"h1\" (this host's name in the controller's configuration)"),
        ("uplinks", "uplinks = [\"net0\"] (those whose network it controls)"),
    ] {
        if !table.has(key) {
            table.report_missing(key, example);
        }
    }
    let urls: Vec<String> = table.texts("url", "a URL such as \"https://10.0.0.1:6654\"");
    let is_plain = urls.first().is_some_and(|url| url.starts_with("http://"));
    // Without a readable URL its own fault is enough.
    if !urls.is_empty() {
        identity_keys(table, is_plain);
    }
    let path = |key| table.text::<PathBuf>(key, "an absolute path", "/stand-in".into());
    let path = |key| path(key).unwrap_or_else(|| "/stand-in".into());
    let controller = Controller {
        host: table
            .text("host", "the name of this host", "stand-in".into())
            .unwrap_or_else(|| "stand-in".into()),
        identity: if is_plain {
            Identity::Token { file: path("token-file") }
        } else {
            Identity::Certificate { ca: path("ca"), certificate: path("certificate"), key: path("key") }
        },
        uplinks: table.texts("uplinks", "the name of an uplink"),
        urls,
    };
    if table.has("url") && table.has("uplinks") {
        table.report_problems(controller.check());
    }
    controller
}

/// Notes keys of the identity that are missing, or belong to the other scheme.
fn identity_keys(table: &Table<'_>, is_plain: bool) {
    let files = [
        ("ca", "ca = \"/etc/tidegate/controller/ca.pem\" (certificates that sign the controller's)"),
        ("certificate", "certificate = \"/etc/tidegate/controller/h1.pem\" (`tidegate enrol` gets one)"),
        ("key", "key = \"/etc/tidegate/controller/h1.key\" (of the certificate)"),
    ];
    let token =
        [("token-file", "token-file = \"/etc/tidegate/controller/token\" (this host's enrolment token)")];
    let (wanted, other, why) = if is_plain {
        (&token[..], &files[..], "has no effect with http://, where token-file is the identity; remove it")
    } else {
        (&files[..], &token[..], "has no effect with https://, where certificate is the identity; remove it")
    };
    for (key, example) in wanted.iter().filter(|(key, _)| !table.has(key)) {
        table.report_missing(key, example);
    }
    for (key, _) in other.iter().filter(|(key, _)| table.has(key)) {
        table.report(key, why);
    }
}

impl FromStr for OnRefused {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.iter().find(|(name, _)| *name == text);
        known
            .map(|(_, value)| *value)
            .ok_or_else(|| format!("{text:?} is unknown; \"fail\" or \"best-effort\""))
    }
}

impl FromStr for OnUnreachable {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.iter().find(|(name, _)| *name == text);
        known
            .map(|(_, value)| *value)
            .ok_or_else(|| format!("{text:?} is unknown; \"best-effort\" or \"wait\""))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Document, Errors, parse};

    const TLS: &str = "[controller]\nurl = [\"https://10.0.0.1:6654\", \"https://[2001:db8::1]:6654\"]\nhost = \"h1\"\n\
                       ca = \"/etc/ca.pem\"\ncertificate = \"/etc/h1.pem\"\nkey = \"/etc/h1.key\"\nuplinks = [\"net0\"]\n";
    const PLAIN: &str = "[controller]\nurl = [\"http://127.0.0.1:6654\"]\nhost = \"h1\"\ntoken-file = \"/etc/token\"\n\
                         uplinks = [\"net0\", \"net1\"]\n";

    #[test]
    fn reads_and_writes_the_table() {
        for (text, identity) in [
            (
                TLS,
                Identity::Certificate {
                    ca: "/etc/ca.pem".into(),
                    certificate: "/etc/h1.pem".into(),
                    key: "/etc/h1.key".into(),
                },
            ),
            (PLAIN, Identity::Token { file: "/etc/token".into() }),
        ] {
            let document = parse(text, "t.toml").unwrap_or_else(|errors| panic!("{errors}"));
            let controller = &document.controller.as_ref().expect("a table").value;
            assert_eq!((controller.host.as_str(), &controller.identity), ("h1", &identity));
            let again = parse(&controller.to_toml(), "t.toml").expect("what was written is read");
            assert_eq!(&again.controller.expect("a table").value, controller);
            let json = serde_json::to_string(&document).expect("serialises");
            assert_eq!(serde_json::from_str::<Document>(&json).expect("parses"), document);
        }
    }

    #[test]
    fn refuses_bad_tables() {
        for (text, from, to, wanted) in [
            (TLS, "host =", "hosts =", "controller.hosts: unknown key; did you mean \"host\"?"),
            (TLS, "ca = \"/etc/ca.pem\"\n", "", "controller.ca: missing; write ca ="),
            (
                TLS,
                "key = \"/etc/h1.key\"",
                "token-file = \"/t\"",
                "controller.token-file: has no effect with https",
            ),
            (PLAIN, "token-file", "ca", "controller.ca: has no effect with http"),
            (PLAIN, "token-file = \"/etc/token\"", "", "controller.token-file: missing; write token-file ="),
            (
                PLAIN,
                "\"/etc/token\"",
                "\"token\"",
                "controller.token-file: expected the absolute path of a file",
            ),
            (PLAIN, "\"h1\"", "\"h 1\"", "controller.host: "),
            (PLAIN, "[\"http://127.0.0.1:6654\"]", "[]", "controller.url: no URL is listed"),
            (
                PLAIN,
                "6654\"",
                "6654/v1\"",
                "controller.url: \"http://127.0.0.1:6654/v1\" has more than scheme, host and port",
            ),
            (
                PLAIN,
                "http://127.0.0.1:6654",
                "ftp://127.0.0.1",
                "controller.url: \"ftp://127.0.0.1\" is no URL",
            ),
            (
                PLAIN,
                "127.0.0.1:6654",
                "me@127.0.0.1",
                "controller.url: \"http://me@127.0.0.1\" has more than",
            ),
            (
                PLAIN,
                "127.0.0.1:6654",
                "127.0.0.1:0x1",
                "controller.url: \"http://127.0.0.1:0x1\" has no port",
            ),
            (PLAIN, "6654\"]", "6654\", \"https://a\"]", "controller.url: \"https://a\" has another scheme"),
            (
                PLAIN,
                "6654\"]",
                "6654\", \"http://127.0.0.1:6654\"]",
                "controller.url: http://127.0.0.1:6654 is listed twice",
            ),
            (PLAIN, "[\"net0\", \"net1\"]", "[]", "controller.uplinks: no uplink is listed"),
            (PLAIN, "\"net1\"", "\"net0\"", "controller.uplinks: net0 is listed twice"),
        ] {
            assert!(text.contains(from), "{from}");
            let Errors(errors) = parse(&text.replacen(from, to, 1), "t.toml").expect_err(to);
            let said: Vec<String> = errors.iter().map(|e| format!("{}: {}", e.key, e.message)).collect();
            assert!(said.iter().any(|said| said.starts_with(wanted)), "{wanted}: {said:?}");
        }
    }
}
