//! `tidegate status`: what needs a person, and which command to run next.

use crate::client::{self, Client, ClientError};
use crate::exit::{self, Code, Failure};
use crate::format::{count, duration, names, path, plural};
use crate::table::{Align, Table};
use serde_json::{Value, json};
use std::fmt::Write;
use tidegate_agent::views::PlaceView;
use tidegate_agent::views::{Attention, AttentionKind, HostLatency, PlacedCounts, StatusView};
use tidegate_evidence::OwnCpus;
use tidegate_visible::visible;

/// Most items of one kind that the text shows; `--json` has all.
const SHOWN: usize = 10;
/// Name of the place of the CPUs.
const CORES: &str = "cores";

/// Arguments of `status`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exits with 0 where all is well, 1 where something needs a person, 4 where the agent is away."
)]
pub struct Args {}

/// Prints the status. Fails if something needs a person.
pub async fn run(client: &Client, Args {}: Args, json: bool) -> Result<(), Failure> {
    match print_status(client, json).await {
        Ok(0) => Ok(()),
        Ok(_) => Err(Failure { code: Code::Failed, message: String::new() }),
        // Exit code 1 means that the agent answered, so an error needs another code.
        Err(failure) if failure.code == Code::Failed => Err(Failure { code: Code::Unreachable, ..failure }),
        Err(failure) => Err(failure),
    }
}

/// Prints the status. Returns how many items need a person.
async fn print_status(client: &Client, json: bool) -> Result<usize, Failure> {
    let answer: Value = match client.get("/v1/status").await {
        Ok(answer) => answer,
        Err(error @ (ClientError::Unreachable { .. } | ClientError::Broken { .. })) => {
            return Err(report_unreachable(client, error, json)?);
        }
        Err(other) => return Err(other.into()),
    };
    if json {
        exit::print_json(&answer)?;
    }
    let status = for_display(answer)?;
    if !json {
        exit::print(&text(&status))?;
    }
    Ok(status.attention.len())
}

/// Makes the answer safe to show. The text about a refused file is errors that quote the file, and a last
/// line that says what is in force instead.
fn for_display(answer: Value) -> Result<StatusView, Failure> {
    let exact: StatusView = serde_json::from_value(answer.clone()).map_err(Failure::failed)?;
    let mut status: StatusView = client::for_display(answer, "GET /v1/status")?;
    for (attention, exact) in status.attention.iter_mut().zip(&exact.attention) {
        if let (AttentionKind::RefusedFile, Some((errors, kept))) = (exact.kind, exact.what.rsplit_once('\n'))
        {
            attention.what = format!("{}\n{}", client::with_excerpts(errors), visible(kept));
        }
    }
    Ok(status)
}

/// Reports in the same form that the agent is unreachable, and returns the failure with the exit code that
/// every command uses for it.
fn report_unreachable(client: &Client, error: ClientError, json: bool) -> Result<Failure, Failure> {
    let failure = Failure::from(error);
    let attention = Attention {
        kind: AttentionKind::PlaceAway,
        about: vec!["agent".into()],
        what: format!(
            "{}\nContracts in force stay in force without the agent; changes, repairs and metrics wait for the agent",
            failure.message
        ),
        next: "systemctl status tidegate-agent".into(),
    };
    if json {
        exit::print_json(&json!({"agent": client.socket(), "attention": [attention]}))?;
    } else {
        exit::print(&format!("{}.\n\n{}", attention_heading(1), attention_text(&attention)))?;
    }
    Ok(Failure { message: format!("cannot reach the agent at {}", path(client.socket())), ..failure })
}

fn attention_heading(n: usize) -> String {
    match n {
        1 => "1 thing needs a person".into(),
        n => format!("{n} things need a person"),
    }
}

/// Lists what needs a person, with the next command, and then the figures.
fn text(status: &StatusView) -> String {
    let mut out = match status.attention.len() {
        0 => "All is well: nothing needs a person.\n\n".to_owned(),
        n => format!("{}.\n\n", attention_heading(n)),
    };
    for kind in AttentionKind::ALL {
        let all: Vec<&Attention> = status.attention.iter().filter(|a| a.kind == kind).collect();
        all.iter().take(SHOWN).for_each(|attention| out += &attention_text(attention));
        if let Some(more) = all.len().checked_sub(SHOWN).filter(|more| *more > 0) {
            let _ = writeln!(out, "{}: {more} more; tidegate status --json has all\n", title(kind));
        }
    }
    out + &figures(status)
}

/// Describes one item: the subject, the reason, and the next command.
fn attention_text(attention: &Attention) -> String {
    let mut out = title(attention.kind).to_owned();
    if !attention.about.is_empty() {
        let _ = write!(out, ": {}", names(&attention.about));
    }
    out.push('\n');
    for line in attention.what.lines() {
        let _ = writeln!(out, "  {line}");
    }
    let _ = writeln!(out, "  run: {}\n", attention.next);
    out
}

fn title(kind: AttentionKind) -> &'static str {
    match kind {
        AttentionKind::PlaceAway => "away",
        AttentionKind::DeniedCall => "system calls denied",
        AttentionKind::Problem => "problem",
        AttentionKind::FailedVnic => "contract failed",
        AttentionKind::FailedUplink => "uplink failed",
        AttentionKind::SilentPeer => "host silent",
        AttentionKind::RefusedFile => "contract file refused",
        AttentionKind::PendingVnic => "contract pending",
        AttentionKind::Quarantine => "quarantined",
        AttentionKind::SuspendedDeadline => "deadline not promised",
        AttentionKind::ImpossibleDeadline => "no CPU for a deadline",
        AttentionKind::HostLatency => "host too slow",
        AttentionKind::NoRdma => "no RDMA",
        AttentionKind::NoZeroCopy => "no zero copy",
        AttentionKind::UnplacedWork => "work elsewhere than planned",
        AttentionKind::CpuConflict => "plan of CPUs contradicted",
        AttentionKind::Drift => "drift",
    }
}

fn figures(status: &StatusView) -> String {
    let StatusView { version, places, files, vnics, deadlines, host_latency, own_cpus, cores, drift, .. } =
        status;
    let counted = |parts: &[(usize, &str)]| {
        let nonzero: Vec<String> = parts
            .iter()
            .filter(|(n, _)| *n > 0)
            .map(|(n, what)| format!("{} {what}", count(*n as u64)))
            .collect();
        if nonzero.is_empty() { "none".to_owned() } else { nonzero.join(", ") }
    };
    let mut rows = vec![("agent", version.clone())];
    rows.extend(places.iter().map(|p| match &*p.name {
        // It has no vNICs.
        CORES if p.reachable => (CORES, placed_text(cores)),
        name => (name, place_text(p)),
    }));
    rows.extend([
        ("files", counted(&[(files.accepted, "accepted"), (files.refused, "refused")])),
        (
            "vNICs",
            counted(&[
                (vnics.in_force, "in force"),
                (vnics.pending, "pending"),
                (vnics.failed, "failed"),
                (vnics.refused, "refused"),
            ]),
        ),
        ("deadlines", counted(&[(deadlines.promised, "promised"), (deadlines.suspended, "not promised")])),
        ("H", host_latency_text(host_latency)),
    ]);
    rows.extend(own_cpus_text(own_cpus).map(|own| ("CPUs", own)));
    rows.extend([
        (
            "drift",
            format!(
                "{} repaired since the agent was started, {} in the last {} minutes",
                plural(drift.since_start, "difference"),
                count(drift.recently),
                status.recent_s / 60
            ),
        ),
        ("denied", format!("{} of the switch", plural(status.denied_calls, "system call"))),
    ]);
    let mut table = Table::new(&[("", Align::Left), ("", Align::Left)]);
    rows.into_iter().for_each(|(name, value)| table.row([name.to_owned(), value]));
    table.render().lines().skip(1).map(|line| format!("{line}\n")).collect()
}

fn place_text(place: &PlaceView) -> String {
    let vnics = plural(place.vnics as u64, "vNIC");
    match (place.reachable, place.pid) {
        (false, _) => "away".into(),
        (true, 0) => vnics,
        (true, pid) => format!("{vnics}, {} (pid {pid})", place.version),
    }
}

/// Describes the workers' own CPUs, and what is not kept off them; `None` if there is nothing to say.
fn own_cpus_text(own: &OwnCpus) -> Option<String> {
    let OwnCpus { cpus, queues, steered, awake, missing } = own;
    let list = |cpus: &[usize]| cpus.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    if cpus.is_empty() {
        return missing.clone();
    }
    let queues = plural(*queues as u64, "queue");
    let mut text =
        format!("{} of workers; {steered} of {queues} of taps run their stack on other CPUs", list(cpus));
    if !awake.is_empty() {
        let _ = write!(text, "; {} without halts while real-time frames flow", list(awake));
    }
    if let Some(missing) = missing {
        let _ = write!(text, "; {missing}");
    }
    Some(text)
}

/// Describes how much of the plan of CPUs is kept.
fn placed_text(PlacedCounts { kept, planned, elsewhere }: &PlacedCounts) -> String {
    let stages = plural(*planned as u64, "stage");
    match elsewhere {
        _ if !kept => "the plan is not kept".into(),
        0 => format!("{stages} of work on the CPUs of the plan"),
        elsewhere => {
            format!("{elsewhere} of {stages} of work not on the CPUs of the plan: tidegate cores show")
        }
    }
}

/// Describes how well the workers kept the host budget. All counts are those of the present switch; recent
/// ones may be of its predecessor, so they appear only where they need a person.
fn host_latency_text(latency: &HostLatency) -> String {
    let budget = duration(latency.budget_ns);
    match latency.loops {
        0 => format!("host-latency = {budget}; no loop was counted"),
        loops => format!(
            "host-latency = {budget}; since this switch was started, {} of {} loops took longer; the longest took {}",
            count(latency.loops_over_budget),
            count(loops),
            duration(latency.longest_loop_ns)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_agent::views::{DeadlineCounts, FileCounts, Repaired, VnicCounts};

    fn host() -> StatusView {
        let place = |name: &str, pid, vnics| PlaceView {
            name: name.into(),
            reachable: true,
            reason: None,
            version: "0.1.0".into(),
            pid,
            started: 0,
            vnics,
        };
        StatusView {
            version: "0.1.0".into(),
            attention: vec![],
            places: vec![place("switch", 814, 12), place("kernel", 0, 1), place("cores", 0, 0)],
            files: FileCounts { accepted: 3, refused: 0 },
            vnics: VnicCounts { in_force: 13, ..VnicCounts::default() },
            deadlines: DeadlineCounts { promised: 2, suspended: 0 },
            host_latency: HostLatency {
                budget_ns: 250_000,
                loops: 91_440,
                loops_over_budget: 3,
                recently_over_budget: 0,
                longest_loop_ns: 412_000,
            },
            own_cpus: OwnCpus::default(),
            cores: PlacedCounts::default(),
            drift: Repaired { since_start: 1, recently: 0 },
            denied_calls: 0,
            recent_s: 600,
        }
    }

    fn attention(kind: AttentionKind, about: &[&str], what: &str, next: &str) -> Attention {
        let about = about.iter().map(|name| (*name).to_owned()).collect();
        Attention { kind, about, what: what.into(), next: next.into() }
    }

    #[test]
    fn all_is_well() {
        let expected = "\
All is well: nothing needs a person.

agent      0.1.0
switch     12 vNICs, 0.1.0 (pid 814)
kernel     1 vNIC
cores      the plan is not kept
files      3 accepted
vNICs      13 in force
deadlines  2 promised
H          host-latency = 250 us; since this switch was started, 3 of 91,440 loops took longer; the longest took 412 us
drift      1 difference repaired since the agent was started, 0 in the last 10 minutes
denied     0 system calls of the switch
";
        assert_eq!(text(&host()), expected);
    }

    #[test]
    fn work_that_stays_on_a_workers_cpu_is_reported() {
        assert_eq!(own_cpus_text(&OwnCpus::default()), None);
        let not_put_back = OwnCpus { missing: Some("it was not put back".into()), ..OwnCpus::default() };
        assert_eq!(own_cpus_text(&not_put_back).as_deref(), Some("it was not put back"));
        let mut cpus = OwnCpus { cpus: vec![1, 3], queues: 4, steered: 4, awake: vec![3], missing: None };
        let cpus_text = "1, 3 of workers; 4 of 4 queues of taps run their stack on other CPUs";
        assert_eq!(
            own_cpus_text(&cpus).unwrap(),
            format!("{cpus_text}; 3 without halts while real-time frames flow")
        );
        cpus = OwnCpus { steered: 0, awake: vec![], missing: Some("not permitted".into()), ..cpus };
        assert_eq!(own_cpus_text(&cpus).unwrap(), cpus_text.replace("4 of 4", "0 of 4") + "; not permitted");
    }

    #[test]
    fn a_plan_that_is_kept_has_a_line() {
        let mut cores = PlacedCounts { kept: true, planned: 14, elsewhere: 0 };
        assert_eq!(placed_text(&cores), "14 stages of work on the CPUs of the plan");
        cores.elsewhere = 2;
        let elsewhere = "2 of 14 stages of work not on the CPUs of the plan: tidegate cores show";
        assert_eq!(placed_text(&cores), elsewhere);
        cores.kept = false;
        assert_eq!(placed_text(&cores), "the plan is not kept");
    }

    #[test]
    fn loops_are_counted_of_one_switch() {
        let after_a_restart = HostLatency {
            loops: 30,
            loops_over_budget: 0,
            recently_over_budget: 3,
            longest_loop_ns: 119_000,
            ..host().host_latency
        };
        let expected = "host-latency = 250 us; since this switch was started, 0 of 30 loops took longer; the longest took 119 us";
        assert_eq!(host_latency_text(&after_a_restart), expected);
    }

    #[test]
    fn items_that_need_a_person_come_first_with_their_command() {
        let mut status = host();
        status.places[0].reachable = false;
        status.attention = vec![
            attention(
                AttentionKind::PlaceAway,
                &["switch"],
                "no switch at /run/tidegate/switch/control.sock; contracts of 12 vNICs are pending",
                "systemctl status tidegate-switch",
            ),
            attention(
                AttentionKind::RefusedFile,
                &["/etc/tidegate/cam.toml:2"],
                "/etc/tidegate/cam.toml:2:17: unclosed inline table\n2 | attach = { vhost\n\
                 no contract of this file is in force",
                "tidegate plan -f /etc/tidegate/cam.toml",
            ),
            attention(
                AttentionKind::PendingVnic,
                &["a", "b", "c", "d", "e", "f", "g"],
                "there is no link",
                "tidegate why a",
            ),
        ];
        let expected = "\
3 things need a person.

away: switch
  no switch at /run/tidegate/switch/control.sock; contracts of 12 vNICs are pending
  run: systemctl status tidegate-switch

contract file refused: /etc/tidegate/cam.toml:2
  /etc/tidegate/cam.toml:2:17: unclosed inline table
  2 | attach = { vhost
  no contract of this file is in force
  run: tidegate plan -f /etc/tidegate/cam.toml

contract pending: a, b, c, d, e and 2 more
  there is no link
  run: tidegate why a

agent      0.1.0
switch     away
";
        let text = text(&status);
        assert!(text.starts_with(expected), "{text}");
    }

    #[test]
    fn a_thousand_things_fit_on_a_screen() {
        let mut status = host();
        status.attention = (0..1000)
            .map(|n| attention(AttentionKind::RefusedFile, &[&format!("/etc/{n}.toml:1")], "wrong", "x"))
            .collect();
        let text = text(&status);
        assert!(text.starts_with("1000 things need a person.\n"), "{text}");
        assert!(
            text.contains("\ncontract file refused: 990 more; tidegate status --json has all\n"),
            "{text}"
        );
        assert!(text.lines().count() < 60);
    }
}
