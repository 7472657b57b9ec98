//! The program inside a guest: `tidegate limit [RATE|none] [--nic MAC|INTERFACE]`.
//!
//! ```text
//!  arguments ─▶ port: found, opened ─▶ talk: request, answer, in time ─▶ one line for each network interface
//! ```
//!
//! - `arguments`: the command line
//! - `port`: the virtio-serial port
//! - `talk`: a conversation that ends
//! - `interfaces`: MACs and names of interfaces

mod arguments;
mod interfaces;
mod port;
mod talk;

use arguments::{Action, Arguments};
use interfaces::Interfaces;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use talk::TalkError;
use tidegate_guest::message::{Ask, Limits};
use tidegate_visible::lines;

/// Exit codes, like those of `tidegate` on the host.
mod code {
    /// Any other failure.
    pub const FAILED: u8 = 1;
    /// The command line is invalid.
    pub const USAGE: u8 = 2;
    /// The host does not allow it.
    pub const REFUSED: u8 = 3;
    /// There is no port, or the host does not answer on it.
    pub const UNREACHABLE: u8 = 4;
}

/// What went wrong, and the exit code for it.
struct Failure(u8, String);

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args_os().skip(1).map(|w| w.to_string_lossy().into_owned()).collect();
    let output = match arguments::read(&words) {
        Ok(Action::Text(text)) => Ok(text),
        Ok(Action::Limit(arguments)) => limit(&arguments, Path::new("/")),
        Err(why) => Err(Failure(code::USAGE, why)),
    };
    let printed = output.and_then(|text| {
        std::io::stdout().write_all(lines(&text).as_bytes()).map_err(|e| Failure(code::FAILED, e.to_string()))
    });
    match printed {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure(code, why)) => {
            eprintln!("tidegate: {}", lines(&why));
            ExitCode::from(code)
        }
    }
}

/// Sets the soft limit if requested, then shows the limits.
fn limit(arguments: &Arguments, root: &Path) -> Result<String, Failure> {
    let interfaces = Interfaces::read(root);
    let mac = arguments.nic.as_deref().map(|nic| {
        let unknown = || Failure(code::FAILED, format!("this VM has no network interface {nic}"));
        interfaces.mac(nic).ok_or_else(unknown)
    });
    let mac = mac.transpose()?;
    let port = port::find(root).map_err(|why| Failure(code::UNREACHABLE, why))?;
    let set = arguments
        .soft
        .clone()
        .map(|soft| Ask::Set { mac: mac.clone(), soft: (soft != "none").then_some(soft) });
    let asks = set.into_iter().chain([Ask::Limit]).collect();
    let vnics = talk::talk(port, asks).map_err(|error| match error {
        TalkError::Refused(why) => Failure(code::REFUSED, why),
        TalkError::Silent(why) => Failure(code::UNREACHABLE, why),
        TalkError::Failed(why) => Failure(code::FAILED, why),
    })?;
    let matching: Vec<&Limits> =
        vnics.iter().filter(|v| mac.as_ref().is_none_or(|mac| v.mac.eq_ignore_ascii_case(mac))).collect();
    if let (Some(nic), true) = (&arguments.nic, matching.is_empty()) {
        return Err(Failure(code::FAILED, format!("the host has no contract for {nic}")));
    }
    Ok(table(&matching, &interfaces))
}

/// Formats a line for each vNIC: its interface, or its MAC without one; the hard limit and the soft one.
fn table(vnics: &[&Limits], interfaces: &Interfaces) -> String {
    let rows: Vec<(String, &Limits)> = vnics
        .iter()
        .map(|v| (interfaces.name(&v.mac).map_or_else(|| v.mac.clone(), str::to_owned), *v))
        .collect();
    let widest = rows.iter().map(|(nic, _)| nic.len()).max().unwrap_or(0);
    let line = |(nic, v): (String, &Limits)| {
        // Without a soft limit the host's applies.
        let soft = if v.soft == "none" { &v.hard } else { &v.soft };
        let late = if v.in_force == "pending" { " (pending)" } else { "" };
        format!("{nic:widest$} {} {soft}{late}\n", v.hard)
    };
    rows.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_for_each_interface() {
        let limits = |mac: &str, hard: &str, soft: &str, in_force: &str| Limits {
            name: "v".into(),
            mac: mac.into(),
            hard: hard.into(),
            soft: soft.into(),
            in_force: in_force.into(),
        };
        let interfaces = Interfaces::of([("eth0", "52:54:00:00:00:01")]);
        let vnics = [
            limits("52:54:00:00:00:01", "500mbit", "400mbit", "400mbit"),
            limits("52:54:00:00:00:02", "1gbit", "none", "pending"),
            limits("52:54:00:00:00:03", "none", "none", "none"),
        ];
        let expected = "\
eth0              500mbit 400mbit
52:54:00:00:00:02 1gbit 1gbit (pending)
52:54:00:00:00:03 none none
";
        assert_eq!(table(&vnics.iter().collect::<Vec<_>>(), &interfaces), expected);
    }
}
