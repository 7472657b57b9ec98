//! The `[controller]` table to TOML.

use super::string;
use crate::Controller;
use crate::controller::Identity;
use std::fmt::Write;
use toml_edit::{Array, Value};

impl Controller {
    /// Returns the table that a user would write. [`crate::parse()`] reads it back to an equal value.
    pub fn to_toml(&self) -> String {
        let list = |texts: &[String]| Value::from(texts.iter().map(String::as_str).collect::<Array>());
        let mut lines = vec![("url", list(&self.urls)), ("host", string(&self.host))];
        match &self.identity {
            Identity::Token { file } => lines.push(("token-file", string(file.display()))),
            Identity::Certificate { ca, certificate, key } => lines.extend([
                ("ca", string(ca.display())),
                ("certificate", string(certificate.display())),
                ("key", string(key.display())),
            ]),
        }
        lines.push(("uplinks", list(&self.uplinks)));
        let mut text = String::from("[controller]\n");
        for (key, value) in lines {
            writeln!(text, "{key:<11} = {}", value.decorated("", ""))
                .expect("writing to a string cannot fail");
        }
        text
    }
}
