//! Requests and replies, one line each. See docs/reference/guest.md.
//!
//! ```text
//!  request = "1" TAG ( "limit" | "set" ( MAC | "*" ) ( RATE | "none" ) )
//!  reply   = "1" TAG ( "vnic" NAME MAC HARD SOFT IN-FORCE | "ok" | "error" KIND TEXT )
//! ```

use std::fmt;

/// Version of the protocol, the first word of every line.
pub const VERSION: &str = "1";
/// Longest tag, bytes.
const TAG: usize = 16;
/// Longest text of an error (bytes): the whole line is within [`crate::lines::REPLY`].
const LONGEST_ERROR: usize = 900;
/// In place of a tag that could not be read.
const NO_TAG: &str = "-";

/// Identifies a reply: 1 to 16 letters and digits of the guest's choice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tag(String);

impl Tag {
    /// Returns a tag; `None` if `text` is none.
    pub fn new(text: &str) -> Option<Self> {
        let good = (1..=TAG).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric());
        (good || text == NO_TAG).then(|| Self(text.into()))
    }

    /// Returns the replacement of a missing tag.
    pub fn none() -> Self {
        Self(NO_TAG.into())
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A guest's request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Its tag.
    pub tag: Tag,
    /// The request.
    pub ask: Ask,
}

/// The kinds of requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// The limits of its vNICs.
    Limit,
    /// A new soft limit.
    Set {
        /// The vNIC's MAC as written; absent for all vNICs.
        mac: Option<String>,
        /// A rate as written, such as `400mbit`; absent to remove the soft limit.
        soft: Option<String>,
    },
}

/// A line that is no request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// Its tag, if it has one.
    pub tag: Tag,
    /// The fault.
    pub why: String,
}

impl Request {
    /// Reads a line.
    ///
    /// # Errors
    /// The fault of an invalid line.
    pub fn parse(line: &str) -> Result<Self, Malformed> {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let tag = words.get(1).and_then(|tag| Tag::new(tag));
        let wrong =
            |why: &str| Err(Malformed { tag: tag.clone().unwrap_or_else(Tag::none), why: why.to_owned() });
        if words.first().is_some_and(|version| *version != VERSION) {
            return wrong(
                "this host speaks version 1: write \"1 TAG limit\" or \"1 TAG set MAC|* RATE|none\"",
            );
        }
        let Some(tag) = tag.clone() else {
            return wrong("the second word is a tag of 1 to 16 letters and digits");
        };
        let ask = match words.get(2..).unwrap_or_default() {
            ["limit"] => Ask::Limit,
            ["set", mac, soft] => Ask::Set {
                mac: (*mac != "*").then(|| (*mac).to_owned()),
                soft: (*soft != "none").then(|| (*soft).to_owned()),
            },
            _ => return wrong("expected \"limit\" or \"set MAC|* RATE|none\" after the tag"),
        };
        Ok(Self { tag, ask })
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tag, ask } = self;
        match ask {
            Ask::Limit => write!(f, "{VERSION} {tag} limit"),
            Ask::Set { mac, soft } => {
                let (mac, soft) = (mac.as_deref().unwrap_or("*"), soft.as_deref().unwrap_or("none"));
                write!(f, "{VERSION} {tag} set {mac} {soft}")
            }
        }
    }
}

/// One line of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The request's tag.
    pub tag: Tag,
    /// The content.
    pub body: ReplyBody,
}

/// The content of an answer's line. `Ok` and `Error` end the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplyBody {
    /// The limits of one vNIC.
    Vnic(Limits),
    /// The end of the answer: all is done.
    Ok,
    /// The request failed.
    Error {
        /// The kind of failure.
        kind: Kind,
        /// The reason.
        text: String,
    },
}

/// The limits of one vNIC; rates as contracts write them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Its name on the host.
    pub name: String,
    /// Its MAC.
    pub mac: String,
    /// The host's limit, or `none`.
    pub hard: String,
    /// The soft limit, or `none`.
    pub soft: String,
    /// The present limit: a rate, `none`, or `pending` if it is about to come into force.
    pub in_force: String,
}

/// The kind of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The line is no request.
    Malformed,
    /// The host refuses.
    Refused,
    /// Not now: the host is busy, or in trouble.
    Unavailable,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Malformed, Self::Refused, Self::Unavailable];

    const fn word(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Refused => "refused",
            Self::Unavailable => "unavailable",
        }
    }
}

impl Reply {
    /// Returns an error on one line, whatever `text` contains.
    pub fn error(tag: Tag, kind: Kind, text: &str) -> Self {
        let plain = |c: char| if matches!(c, ' '..='~') { c } else { ' ' };
        let text: String = text.chars().map(plain).take(LONGEST_ERROR).collect();
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        Self { tag, body: ReplyBody::Error { kind, text: words.join(" ") } }
    }

    /// Parses a line; `None` if it is invalid.
    pub fn parse(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let (VERSION, tag, said) = (*words.first()?, Tag::new(words.get(1)?)?, words.get(2..)?) else {
            return None;
        };
        let body = match said {
            ["ok"] => ReplyBody::Ok,
            ["error", kind, text @ ..] => ReplyBody::Error {
                kind: Kind::ALL.into_iter().find(|k| k.word() == *kind)?,
                text: text.join(" "),
            },
            // Later releases may add words.
            ["vnic", name, mac, hard, soft, in_force, ..] => ReplyBody::Vnic(Limits {
                name: (*name).to_owned(),
                mac: (*mac).to_owned(),
                hard: (*hard).to_owned(),
                soft: (*soft).to_owned(),
                in_force: (*in_force).to_owned(),
            }),
            _ => return None,
        };
        Some(Self { tag, body })
    }
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{VERSION} {} ", self.tag)?;
        match &self.body {
            ReplyBody::Ok => f.write_str("ok"),
            ReplyBody::Error { kind, text } => write!(f, "error {} {text}", kind.word()),
            ReplyBody::Vnic(Limits { name, mac, hard, soft, in_force }) => {
                write!(f, "vnic {name} {mac} {hard} {soft} {in_force}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_malformed_line_gives_the_reason() {
        for (line, tag, wanted) in [
            ("", "-", "the second word is a tag"),
            ("limit", "-", "this host speaks version 1"),
            ("2 a limit", "a", "this host speaks version 1"),
            ("1 a/b limit", "-", "the second word is a tag"),
            ("1 12345678901234567 limit", "-", "the second word is a tag"),
            ("1 a limit now", "a", "expected \"limit\" or"),
            ("1 a set *", "a", "expected \"limit\" or"),
            ("1 a", "a", "expected \"limit\" or"),
        ] {
            let found = Request::parse(line).expect_err(line);
            assert!(found.tag.to_string() == tag && found.why.starts_with(wanted), "{line}: {found:?}");
        }
    }

    #[test]
    fn an_error_is_one_short_line() {
        let text = format!("a\nb\u{7}ü {}", "x".repeat(5000));
        let line = Reply::error(Tag::none(), Kind::Refused, &text).to_string();
        assert!(line.starts_with("1 - error refused a b x") && !line.contains('\n'), "{line}");
        assert!(line.len() <= crate::lines::REPLY);
        assert_eq!(Reply::parse("2 a ok"), None);
        assert_eq!(Reply::parse("1 a error odd x"), None);
    }

    fn word() -> impl Strategy<Value = String> {
        "[!-~]{1,20}"
    }

    fn tag() -> impl Strategy<Value = Tag> {
        "[a-zA-Z0-9]{1,16}|-".prop_map(|text| Tag::new(&text).expect("a tag"))
    }

    proptest! {
        #[test]
        fn requests_read_back(tag in tag(), set: bool, mac in word(), soft in word()) {
            let some = |word: String, none: &str| (word != none).then_some(word);
            let ask = if set { Ask::Set { mac: some(mac, "*"), soft: some(soft, "none") } } else { Ask::Limit };
            let request = Request { tag, ask };
            prop_assert_eq!(Request::parse(&request.to_string()), Ok(request));
        }

        #[test]
        fn replies_read_back(tag in tag(), words in prop::collection::vec(word(), 5), kind in 0usize..3, what in 0..3) {
            let body = match what {
                0 => ReplyBody::Ok,
                1 => ReplyBody::Error { kind: Kind::ALL[kind], text: words.join(" ") },
                _ => ReplyBody::Vnic(Limits {
                    name: words[0].clone(), mac: words[1].clone(), hard: words[2].clone(), soft: words[3].clone(),
                    in_force: words[4].clone(),
                }),
            };
            let reply = Reply { tag, body };
            prop_assert_eq!(Reply::parse(&reply.to_string()), Some(reply));
        }

        #[test]
        fn no_line_panics(line: String) {
            let _ = Request::parse(&line);
            let _ = Reply::parse(&line);
        }
    }
}
