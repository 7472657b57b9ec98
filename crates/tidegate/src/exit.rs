//! The output and the exit codes of all commands.
//!
//! ```text
//!  text ───▶ print, say, finish ─▶ control characters visible ─────────▶ standard output, standard error
//!  values ─▶ print_json ─────────▶ control characters as JSON escapes: the data stays exact
//! ```
//!
//! No other code of this program writes to either, except `capture`, whose output is binary.

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;
use tidegate_visible::visible;

pub const HELP: &str = "\
Exit codes:
  0  done
  1  failed; of `status`: something needs a person
  2  wrong usage
  3  refused: a contract is not valid, or a contract or path is not admissible
  4  the agent, the switch or the controller cannot be reached";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Code {
    /// Any failure without a code of its own.
    Failed = 1,
    /// The command line is wrong.
    Usage = 2,
    /// A contract is not valid, or a contract or path is not admissible.
    Refused = 3,
    /// The agent, the switch or the controller cannot be reached.
    Unreachable = 4,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub code: Code,
    /// What was wrong and what to do. Line breaks in it are this program's own. Empty if standard output
    /// said everything.
    pub message: String,
}

impl Failure {
    /// Creates a failure with exit code 1 and a message of one line.
    pub fn failed(message: impl Display) -> Self {
        Self { code: Code::Failed, message: visible(&message.to_string()).into_owned() }
    }

    pub fn usage(message: impl Display) -> Self {
        Self { code: Code::Usage, message: message.to_string() }
    }
}

/// Writes the message to standard error and returns the exit code.
pub fn finish(result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            tidegate_log::flush();
            if !failure.message.is_empty() {
                print_error(&format!("tidegate: {}", failure.message));
            }
            ExitCode::from(failure.code as u8)
        }
    }
}

/// Prints clap's error or help text. Escapes only the error, because it quotes the command line.
pub fn print_usage(error: &clap::Error) -> ExitCode {
    if error.use_stderr() {
        print_error(error.render().to_string().trim_end());
    } else if let Err(source) = error.print() {
        return finish(Err(Failure::failed(source)));
    }
    ExitCode::from(error.exit_code() as u8)
}

/// Writes whole lines to standard error, with control characters made visible. Ignores write errors: there
/// is no other place to report them.
pub fn print_error(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{}", tidegate_visible::lines(text));
}

/// Writes lines to standard output, with control characters made visible.
///
/// # Errors
/// Standard output cannot be written. A broken pipe is no error: a reader such as `head` may stop early.
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

/// Writes a value to standard output as JSON in one line.
///
/// # Errors
/// As [`print`].
pub fn print_json_line(value: &impl serde::Serialize) -> Result<(), Failure> {
    let mut text = serde_json::to_string(value).map_err(Failure::failed)?;
    text.push('\n');
    write(&tidegate_visible::json(&text))
}

/// Writes a value to standard output as indented JSON.
///
/// # Errors
/// As [`print`].
pub fn print_json(value: &impl serde::Serialize) -> Result<(), Failure> {
    let mut text = serde_json::to_string_pretty(value).map_err(Failure::failed)?;
    text.push('\n');
    write(&tidegate_visible::json(&text))
}
