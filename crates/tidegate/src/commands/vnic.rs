//! `tidegate vnic ls | show | set | rm`.

use crate::client::{Client, encode, for_display};
use crate::commands::window::Window;
use crate::commands::{not_in_force, plan, show};
use crate::exit::{self, Failure};
use crate::format::{count, duration};
use crate::table::{Align, Table};
use serde_json::Value;
use std::collections::BTreeMap;
use std::str::FromStr;
use tidegate_agent::views::{FileView, HostView, SetBody, VnicChange, VnicView};
use tidegate_contract::Vnic;
use tidegate_evidence::Quantity;
use tidegate_evidence::total;

/// What to do with vNICs.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// List them
    Ls,
    /// Show one: contract, counters, delay bound, worst delay seen and the margin
    Show {
        /// The vNIC
        name: String,
        /// Each figure with where it was read, and nothing else
        #[arg(long, conflicts_with = "last")]
        statistics: bool,
        #[command(flatten)]
        window: Window,
    },
    /// Change keys of a contract, live; not of one that a file owns
    #[command(after_help = "Example: tidegate vnic set plc1 tx.max=500mbit tx.burst=4kB deadline=none")]
    Set {
        /// The vNIC
        name: String,
        /// Keys as in the contract, and their values; `none` removes a key
        #[arg(required = true, value_name = "KEY=VALUE")]
        changes: Vec<KeyValue>,
    },
    /// Remove one and its port; not one that a file owns
    Rm {
        /// The vNIC
        name: String,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyValue {
    /// Dotted key, such as `tx.max`.
    pub key: String,
    /// Value as in TOML, without quotes.
    pub value: String,
}

impl FromStr for KeyValue {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((key, value)) if !key.trim().is_empty() => {
                Ok(Self { key: key.trim().into(), value: value.trim().into() })
            }
            _ => Err("expected KEY=VALUE, such as tx.max=500mbit".into()),
        }
    }
}

pub async fn run(client: &Client, command: Command, json: bool) -> Result<(), Failure> {
    match command {
        Command::Ls => list(client, json).await,
        Command::Show { name, statistics, window } => show_one(client, &name, statistics, window, json).await,
        Command::Set { name, changes } => set(client, &name, &changes, json).await,
        Command::Rm { name } => remove(client, &name, json).await,
    }
}

async fn list(client: &Client, json: bool) -> Result<(), Failure> {
    if json {
        return exit::print_json(&client.get::<Value>("/v1/vnics").await?);
    }
    let vnics: Vec<VnicView> = client.get_for_display("/v1/vnics").await?;
    let host: HostView = client.get_for_display("/v1/host").await?;
    exit::print(&(overview(&vnics) + &refusals(&host.files) + &notes(&host.problems)))
}

fn notes(problems: &[String]) -> String {
    problems.iter().map(|problem| format!("Note: {problem}\n")).collect()
}

/// Lists the refused files with the reasons, and the vNICs that each concerns.
fn refusals(files: &[FileView]) -> String {
    let refused = files.iter().filter_map(|file| Some((file, file.error.as_ref()?)));
    let text = refused.map(|(file, error)| {
        let place = file.line.map_or_else(|| file.path.clone(), |line| format!("{}:{line}", file.path));
        let first = error.lines().next().unwrap_or_default();
        // An error in the text begins with its place.
        let said = if first.starts_with(&place) { first.to_owned() } else { format!("{place}: {first}") };
        let concerned = if file.refused.is_empty() { &file.vnics } else { &file.refused };
        format!("Refused: {said}\n  concerns: {}; tidegate status says what to do\n", concerned.join(", "))
    });
    text.collect()
}

fn overview(vnics: &[VnicView]) -> String {
    if vnics.is_empty() {
        return "There are no vNICs. Put contracts in force with: tidegate apply -f FILE\n".into();
    }
    let columns = [
        ("name", Align::Left),
        ("state", Align::Left),
        ("segment", Align::Right),
        ("mac", Align::Left),
        ("tx.max", Align::Right),
        ("tx.min", Align::Right),
        ("rx.max", Align::Right),
        ("deadline", Align::Right),
        ("p99", Align::Right),
        ("misses", Align::Right),
        ("attach", Align::Left),
    ];
    let mut table = Table::new(&columns);
    let or_dash = |value: Option<String>| value.unwrap_or_else(|| "-".into());
    for view in vnics {
        let of = |value: fn(&Vnic) -> Option<String>| or_dash(view.contract.as_ref().and_then(value));
        let delay = view.stats.as_ref().map(|s| &s.delay).filter(|d| d.count > 0);
        let counts_misses = show::deadline(view).is_some() && !view.unknown.contains_key(&Quantity::Deadline);
        let misses = view.stats.as_ref().filter(|_| counts_misses).map(|s| total(s.misses.values().copied()));
        let suspended = view.deadline_suspended.as_ref().map_or("", |_| " (not promised)");
        table.row([
            view.name.clone(),
            show::condition(view),
            of(|c| Some(c.segment.to_string())),
            of(|c| Some(c.mac.to_string())),
            of(|c| c.tx.max.map(|v| v.to_string())) + &guest_limit_text(view),
            of(|c| c.tx.min.map(|v| v.to_string())),
            of(|c| c.rx.max.map(|v| v.to_string())),
            of(|c| c.deadline.map(|v| v.to_string())) + suspended,
            or_dash(delay.map(|d| duration(d.p99))),
            or_dash(misses.map(count)),
            of(|c| Some(show::attachment(&c.attach))),
        ]);
    }
    table.render()
}

fn guest_limit_text(view: &VnicView) -> String {
    show::soft(view).map_or_else(String::new, |soft| format!(" (guest: {soft})"))
}

async fn show_one(
    client: &Client,
    name: &str,
    statistics: bool,
    window: Window,
    json: bool,
) -> Result<(), Failure> {
    let path = window.api_path(&format!("/v1/vnics/{}", encode(name)));
    if statistics {
        return if json {
            let view: VnicView = client.get(&path).await?;
            exit::print_json(&view.figures)
        } else {
            exit::print(&show::statistics(&client.get_for_display(&path).await?))
        };
    }
    if json {
        return exit::print_json(&client.get::<Value>(&path).await?);
    }
    exit::print(&show::text(&client.get_for_display(&path).await?))
}

async fn set(client: &Client, name: &str, changes: &[KeyValue], json: bool) -> Result<(), Failure> {
    let mut set = BTreeMap::new();
    for KeyValue { key, value } in changes {
        if set.insert(key.clone(), value.clone()).is_some() {
            return Err(Failure::usage(format!("{key} is given twice")));
        }
    }
    let body = serde_json::to_value(SetBody { set }).map_err(Failure::failed)?;
    print_change(client.patch(&format!("/v1/vnics/{}", encode(name)), &body).await?, json)
}

async fn remove(client: &Client, name: &str, json: bool) -> Result<(), Failure> {
    print_change(client.delete(&format!("/v1/vnics/{}", encode(name))).await?, json)
}

fn print_change(answer: Value, json: bool) -> Result<(), Failure> {
    if json {
        exit::print_json(&answer)?;
    }
    let change: VnicChange = for_display(answer, "the change")?;
    let changes = std::slice::from_ref(&change);
    if !json {
        let text = plan::vnic(&change);
        let missing = not_in_force::lines(changes);
        exit::print(&match text.is_empty() {
            true => not_in_force::nothing_to_change(&missing),
            false => text + &not_in_force::lines_below(&missing),
        })?;
    }
    not_in_force::exit_code(changes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::samples;

    #[test]
    fn the_list_is_a_table() {
        let expected = "\
name   state    segment  mac                tx.max  tx.min  rx.max  deadline      p99  misses  attach
voice  up            42  52:54:00:00:00:01   4mbit       -       -       1ms  90.0 us       3  \
vhost-user /run/tidegate/vm/voice.sock
idle   waiting       42  52:54:00:00:00:02       -       -       -         -        -       -  tap tg-idle
";
        assert_eq!(overview(&[samples::voice(), samples::idle()]), expected);
        assert!(overview(&[]).contains("tidegate apply -f FILE"));
        assert!(overview(&[samples::lowered()]).contains(" 4mbit (guest: 3mbit)  "));
    }

    #[test]
    fn refused_contracts_and_suspended_deadlines_are_in_the_list() {
        let [readable, unreadable] = samples::refused();
        let as_before = VnicView { refused: readable.refused.clone(), ..samples::suspended() };
        let expected = "\
name   state              segment  mac                tx.max  tx.min  rx.max            deadline      p99  misses  attach
voice  up (file refused)       42  52:54:00:00:00:01   4mbit       -       -  1ms (not promised)  90.0 us       0  \
vhost-user /run/tidegate/vm/voice.sock
idle   refused                 42  52:54:00:00:00:02       -       -       -                   -        -       -  tap tg-idle
dark   refused                  -  -                       -       -       -                   -        -       -  -
";
        assert_eq!(overview(&[as_before, readable, unreadable]), expected);
    }

    #[test]
    fn refused_files_are_listed_with_their_vnics() {
        let file = |error: &str, line, names: &[&str]| FileView {
            path: "/etc/a.toml".into(),
            vnics: vec!["old".into()],
            error: Some(error.into()),
            line,
            refused: names.iter().map(|n| (*n).to_owned()).collect(),
        };
        let expected = "\
Refused: /etc/a.toml:2:17: unclosed
  concerns: cam; tidegate status says what to do
Refused: /etc/a.toml:4: egress sink refuses cam
  concerns: cam, web; tidegate status says what to do
Refused: /etc/a.toml: others need it
  concerns: old; tidegate status says what to do
";
        let files = [
            file("/etc/a.toml:2:17: unclosed\n  |\n", Some(2), &["cam"]),
            file("egress sink refuses cam", Some(4), &["cam", "web"]),
            file("others need it", None, &[]),
            FileView { error: None, ..file("", None, &[]) },
        ];
        assert_eq!(refusals(&files), expected);
    }

    #[test]
    fn a_change_needs_a_key() {
        assert_eq!("to=a,b=c".parse(), Ok(KeyValue { key: "to".into(), value: "a,b=c".into() }));
        assert!("=1".parse::<KeyValue>().is_err());
        assert!("tx.max".parse::<KeyValue>().is_err());
    }
}
