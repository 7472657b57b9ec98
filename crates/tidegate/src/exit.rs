//! What a command prints, and how it ends: exit codes that scripts can rely on.
//!
//! ```text
//!  text of others ─▶ print, say, finish ─▶ nothing that acts on a terminal or hides ─▶ standard output, standard error
//!  values ─▶ print_json ─▶ the same, as JSON's own escapes: the data is exact
//! ```
//!
//! Nothing else of this program writes to either, but a capture, which is no text.

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;
use tidegate_visible::visible;

/// The exit codes, as `--help` states them. 0 is success.
pub const HELP: &str = "\
Exit codes:
  0  done
  1  failed; of `status`: something needs a person
  2  wrong usage
  3  refused: a contract is not valid, or is not admissible
  4  the agent or the switch cannot be reached";

/// Why a command did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Code {
    /// Anything that is none of the below.
    Failed = 1,
    /// The command line makes no sense.
    Usage = 2,
    /// A contract is not valid or not admissible.
    Refused = 3,
    /// The agent or the switch cannot be reached.
    Unreachable = 4,
}

/// An error for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The exit code.
    pub code: Code,
    /// What was wrong and what to do; may have several lines, of our own making. Empty where all was said on standard
    /// output.
    pub message: String,
}

impl Failure {
    /// A failure with exit code 1, told in one line.
    pub fn failed(message: impl Display) -> Self {
        Self { code: Code::Failed, message: visible(&message.to_string()).into_owned() }
    }

    /// A failure with exit code 2.
    pub fn usage(message: impl Display) -> Self {
        Self { code: Code::Usage, message: message.to_string() }
    }
}

/// Ends the process's work: the message on standard error, the code for the shell.
pub fn finish(result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            tidegate_log::flush();
            if !failure.message.is_empty() {
                say(&format!("tidegate: {}", failure.message));
            }
            ExitCode::from(failure.code as u8)
        }
    }
}

/// Ends where the command line makes no sense, or asks for help: that is our own text, the other quotes its words.
pub fn usage(error: &clap::Error) -> ExitCode {
    if error.use_stderr() {
        say(error.render().to_string().trim_end());
    } else if let Err(failed) = error.print() {
        return finish(Err(Failure::failed(failed)));
    }
    ExitCode::from(error.exit_code() as u8)
}

/// Writes lines to standard error, ended; what cannot be shown there is written out. Errors of that are ignored: there is
/// no other place to report them.
pub fn say(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{}", tidegate_visible::lines(text));
}

/// Writes lines to standard output; what cannot be shown there is written out.
///
/// # Errors
/// It cannot be written. That a reader such as `head` has seen enough is no failure.
pub fn print(text: &str) -> Result<(), Failure> {
    write(&tidegate_visible::lines(text))
}

fn write(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::failed(format!("cannot write to standard output: {e}")))
        }
        _ => Ok(()),
    }
}

/// Writes a value to standard output as JSON.
///
/// # Errors
/// As [`print`].
pub fn print_json(value: &impl serde::Serialize) -> Result<(), Failure> {
    let mut text = serde_json::to_string_pretty(value).map_err(Failure::failed)?;
    text.push('\n');
    write(&tidegate_visible::json(&text))
}
