//! `operator.toml`: where the controllers are, and as whom an operator asks.
//!
//! ```text
//!  controller = ["https://10.0.0.1:6654"]        one or several
//!  ca = "ca.pem"                                 relative to the file's folder
//!  token-file = "token"                          or certificate = "operator.pem", key = "operator.pem"
//! ```

use crate::format::path;
use std::path::{Path, PathBuf};
use toml_edit::{Document, Item, Value};

/// What the file says; all of it is optional.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Operator {
    pub controllers: Vec<String>,
    pub authority: Option<PathBuf>,
    pub token: Option<PathBuf>,
    pub certificate: Option<PathBuf>,
    pub key: Option<PathBuf>,
}

impl Operator {
    /// Reads the text of `file`. Errors name the line.
    pub fn parse(text: &str, file: &Path) -> Result<Self, String> {
        let at = |span: Option<std::ops::Range<usize>>, what: &str| {
            let line = text[..span.map_or(text.len(), |span| span.start)].matches('\n').count() + 1;
            format!("{}:{line}: {what}", path(file))
        };
        let document = Document::parse(text).map_err(|error| at(error.span(), error.message().trim_end()))?;
        let mut read = Self::default();
        for (key, item) in document.iter() {
            let wrong = |what: &str| at(item.span(), what);
            let file_of = |item: &Item| match item.as_str() {
                Some(name) if !name.is_empty() => Ok(file.parent().unwrap_or(Path::new("")).join(name)),
                _ => Err(wrong(&format!(
                    "{key} is no text; write the name of a file, such as {key} = \"{key}.pem\""
                ))),
            };
            match key {
                "controller" => read.controllers = urls(item).ok_or_else(|| {
                    wrong(
                        "controller is no list of addresses; write controller = [\"https://10.0.0.1:6654\"]",
                    )
                })?,
                "ca" => read.authority = Some(file_of(item)?),
                "token-file" => read.token = Some(file_of(item)?),
                "certificate" => read.certificate = Some(file_of(item)?),
                "key" => read.key = Some(file_of(item)?),
                other => {
                    return Err(wrong(&format!(
                        "there is no key {other:?}; the keys are controller, ca, token-file, certificate, key"
                    )));
                }
            }
        }
        if read.token.is_some() && (read.certificate.is_some() || read.key.is_some()) {
            return Err(format!("{}: token-file and certificate exclude each other; remove one", path(file)));
        }
        Ok(read)
    }
}

fn urls(item: &Item) -> Option<Vec<String>> {
    match item.as_value()? {
        Value::String(one) => Some(vec![one.value().clone()]),
        Value::Array(all) => all.iter().map(|one| one.as_str().map(str::to_owned)).collect(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Operator, String> {
        Operator::parse(text, Path::new("/etc/tidegate/operator/operator.toml"))
    }

    #[test]
    fn files_are_relative_to_the_folder() {
        let read = parse(
            "controller = [\"https://a\", \"https://b\"]\nca = \"ca.pem\"\ntoken-file = \"/run/token\"\n",
        );
        assert_eq!(
            read,
            Ok(Operator {
                controllers: vec!["https://a".into(), "https://b".into()],
                authority: Some("/etc/tidegate/operator/ca.pem".into()),
                token: Some("/run/token".into()),
                ..Operator::default()
            })
        );
        assert_eq!(parse("controller = \"http://[::1]:1\"").unwrap().controllers, ["http://[::1]:1"]);
        assert_eq!(parse(""), Ok(Operator::default()));
    }

    #[test]
    fn faults_name_their_line() {
        for (text, expected) in [
            ("ca = 7", "operator.toml:1: ca is no text"),
            ("\n\ncontroller = [1]", "operator.toml:3: controller is no list"),
            ("controller = [\"https://a\"]\ntoken = \"x\"", "operator.toml:2: there is no key \"token\""),
            ("ca = ", "operator.toml:1: "),
            ("[ca]\nx = 1", "operator.toml:1: ca is no text"),
            ("token-file = \"t\"\nkey = \"k\"", "exclude each other"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
