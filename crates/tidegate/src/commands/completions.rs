//! `tidegate completions SHELL`.

use crate::exit::{self, Failure};
use clap_complete::Shell;

/// Arguments of `completions`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: tidegate completions bash > /etc/bash_completion.d/tidegate")]
pub struct Args {
    /// The shell
    shell: Shell,
}

pub fn run(args: Args, command: clap::Command) -> Result<(), Failure> {
    exit::print(&script(args.shell, command))
}

fn script(shell: Shell, mut command: clap::Command) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "tidegate", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::{CommandFactory, ValueEnum};

    #[test]
    fn every_shell_gets_every_command() {
        for shell in Shell::value_variants() {
            let script = script(*shell, Cli::command());
            for word in ["apply", "vnic", "capture", "--snaplen"] {
                // Some shells name options without their dashes.
                assert!(script.contains(word.trim_start_matches('-')), "{shell}: {word}");
            }
        }
    }
}
