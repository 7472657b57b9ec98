//! The command line.

const HELP: &str = "\
Shows and lowers the rate at which this VM may send.

Usage: tidegate limit [RATE|none] [--nic MAC|INTERFACE]

  tidegate limit            each network interface with its hard and soft limit
  tidegate limit 400mbit    the soft limit, at most the hard one
  tidegate limit none       no soft limit: only the hard one applies
  --nic MAC|INTERFACE       of this interface only

The hard limit is the host's. Raising it does not raise a soft limit.
Units: bit, kbit, mbit, gbit.

Exit codes:
  0  done
  1  failed
  2  wrong usage
  3  refused
  4  the host cannot be reached
";

#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    /// Show or set.
    Limit(Arguments),
    /// Print this text.
    Text(String),
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Arguments {
    /// A rate, or `none`; absent to set nothing.
    pub soft: Option<String>,
    /// The interface; absent for all.
    pub nic: Option<String>,
}

/// Reads the words after the program's name.
///
/// # Errors
/// The reason why they are invalid.
pub fn read(words: &[String]) -> Result<Action, String> {
    let usage_error = |what: String| Err(format!("{what}; tidegate limit [RATE|none] [--nic MAC|INTERFACE]"));
    let mut words = words.iter().map(String::as_str);
    match words.next() {
        Some("limit") => {}
        Some("-h" | "--help" | "help") => return Ok(Action::Text(HELP.into())),
        Some("-V" | "--version") => {
            return Ok(Action::Text(format!("tidegate-guest {}\n", env!("CARGO_PKG_VERSION"))));
        }
        Some(other) => return usage_error(format!("{other:?} is not a command of this program")),
        None => return usage_error("the command is missing".into()),
    }
    let mut arguments = Arguments::default();
    while let Some(word) = words.next() {
        let (name, value) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
        match name {
            "-h" | "--help" => return Ok(Action::Text(HELP.into())),
            "--nic" if arguments.nic.is_some() => return usage_error("--nic is given twice".into()),
            "--nic" => match value.or_else(|| words.next()) {
                Some(nic) if !nic.is_empty() => arguments.nic = Some(nic.into()),
                _ => return usage_error("--nic needs a MAC or the name of an interface".into()),
            },
            option if option.starts_with('-') => return usage_error(format!("there is no option {option}")),
            rate if arguments.soft.is_some() => {
                return usage_error(format!("{rate:?} is a second rate; write only one"));
            }
            "" => return usage_error("the rate is empty".into()),
            rate if rate.contains(|c: char| !c.is_ascii_graphic()) => {
                return usage_error(format!("{rate:?} is not a rate; write one such as 400mbit"));
            }
            _ => arguments.soft = Some(word.into()),
        }
    }
    Ok(Action::Limit(arguments))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Result<Action, String> {
        read(&line.split(' ').filter(|w| !w.is_empty()).map(String::from).collect::<Vec<_>>())
    }

    #[test]
    fn words_to_arguments() {
        let limit = |soft: Option<&str>, nic: Option<&str>| {
            Ok(Action::Limit(Arguments { soft: soft.map(Into::into), nic: nic.map(Into::into) }))
        };
        assert_eq!(of("limit"), limit(None, None));
        assert_eq!(of("limit 400mbit"), limit(Some("400mbit"), None));
        assert_eq!(of("limit --nic eth0 none"), limit(Some("none"), Some("eth0")));
        assert_eq!(of("limit --nic=52:54:00:00:00:01"), limit(None, Some("52:54:00:00:00:01")));
        assert!(
            matches!(of("limit --help"), Ok(Action::Text(_)))
                && matches!(of("--version"), Ok(Action::Text(_)))
        );
        for line in [
            "",
            "demo",
            "limit 1mbit 2mbit",
            "limit --nic",
            "limit --nic=",
            "limit -x",
            "limit --nic a --nic b",
        ] {
            assert!(of(line).is_err(), "{line}");
        }
        assert!(read(&["limit".into(), "1 mbit".into()]).is_err());
    }
}
