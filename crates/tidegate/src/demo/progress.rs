//! What the demo says while it runs, on standard error: a bar on a terminal, plain lines elsewhere.

use crate::exit;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;

/// The demo's progress.
#[derive(Debug)]
pub struct Progress {
    bar: Option<ProgressBar>,
    /// Before each message.
    part: String,
}

impl Progress {
    /// Begins; the whole takes about `total` milliseconds.
    pub fn new(total: u64) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self { bar: None, part: String::new() };
        }
        let bar = ProgressBar::new(total);
        // The template is constant; the default style serves where it ever is wrong.
        if let Ok(style) = ProgressStyle::with_template("{bar:24} {msg}") {
            bar.set_style(style);
        }
        Self { bar: Some(bar), part: String::new() }
    }

    /// Begins a part: what is said from now on begins with its name.
    pub fn begin(&mut self, part: &str) {
        part.clone_into(&mut self.part);
    }

    /// What is being done now.
    pub fn say(&self, message: &str) {
        let message = format!("{}{message}", self.part);
        match &self.bar {
            Some(bar) => bar.set_message(message),
            None => exit::say(&message),
        }
    }

    /// That `milliseconds` more of the whole are done.
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
