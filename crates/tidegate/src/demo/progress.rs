//! Progress of the demo on standard error: a bar on a terminal, otherwise plain lines.

use crate::exit;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;

#[derive(Debug)]
pub struct Progress {
    bar: Option<ProgressBar>,
    /// Prefix of each message.
    part: String,
}

impl Progress {
    /// Starts a progress of about `total` milliseconds.
    pub fn new(total: u64) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self { bar: None, part: String::new() };
        }
        let bar = ProgressBar::new(total);
        // The template is constant; if it were wrong, the default style would serve.
        if let Ok(style) = ProgressStyle::with_template("{bar:24} {msg}") {
            bar.set_style(style);
        }
        Self { bar: Some(bar), part: String::new() }
    }

    /// Begins a part: later messages have its name as prefix.
    pub fn begin(&mut self, part: &str) {
        part.clone_into(&mut self.part);
    }

    pub fn show(&self, message: &str) {
        let message = format!("{}{message}", self.part);
        match &self.bar {
            Some(bar) => bar.set_message(message),
            None => exit::print_error(&message),
        }
    }

    /// Shows the present part on a terminal; elsewhere it would be too many lines.
    pub fn label(&self, message: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(message.to_owned());
        }
    }

    /// Records that `milliseconds` more are done.
    pub fn advance(&self, milliseconds: u64) {
        if let Some(bar) = &self.bar {
            bar.inc(milliseconds);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
