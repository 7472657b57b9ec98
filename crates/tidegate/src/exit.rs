//! How a command ends: exit codes that scripts can rely on.

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

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
    /// What was wrong and what to do; may have several lines. Empty where all was said on standard output.
    pub message: String,
}

impl Failure {
    /// A failure with exit code 1.
    pub fn failed(message: impl Display) -> Self {
        Self { code: Code::Failed, message: message.to_string() }
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
                eprintln!("tidegate: {}", failure.message);
            }
            ExitCode::from(failure.code as u8)
        }
    }
}

/// Writes to standard output. That a reader such as `head` has seen enough is no failure.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::failed(format!("cannot write to standard output: {e}")))
        }
        _ => Ok(()),
    }
}

/// Writes a value to standard output as JSON.
pub fn print_json(value: &impl serde::Serialize) -> Result<(), Failure> {
    let mut text = serde_json::to_string_pretty(value).map_err(Failure::failed)?;
    text.push('\n');
    print(&text)
}
