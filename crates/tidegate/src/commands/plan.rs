//! `tidegate plan -f FILE`, and the text of changes.

use crate::client::{Client, for_display};
use crate::commands::not_in_force;
use crate::commands::source::{ApplyOptions, Source};
use crate::exit::{self, Code, Failure};
use crate::format::{duration, plural, rate};
use crate::table::{Align, Table};
use serde_json::Value;
use tidegate_agent::views::{BeyondView, ChangeAction, EgressView, KeyChange, PlanView, Promise, VnicChange};

/// Arguments of `plan`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Exits with 3 where the contracts are not valid or not admissible.")]
pub struct Args {
    #[command(flatten)]
    source: Source,
    #[command(flatten)]
    options: ApplyOptions,
}

pub async fn run(client: &Client, args: Args, json: bool) -> Result<(), Failure> {
    let (path, toml) = args.source.read("/v1/plan", args.options)?;
    let answer: Value = client.post_toml(&path, &toml).await?;
    let plan: PlanView = for_display(answer.clone(), &path)?;
    if json {
        exit::print_json(&answer)?;
    } else {
        exit::print(&text(&plan))?;
    }
    if plan.admissible {
        return Ok(());
    }
    let message = plan.refusals.iter().fold("not admissible:".to_owned(), |text, why| text + "\n  " + why);
    Err(Failure { code: Code::Refused, message })
}

pub fn text(plan: &PlanView) -> String {
    let changed = plan.vnics.iter().filter(|v| v.action != ChangeAction::None).count()
        + plan.host.len().min(1)
        + plan.tables.len();
    let missing = not_in_force::lines(&plan.vnics);
    let mut out = match (changed as u64, plan.applied, plan.admissible) {
        (0, _, true) => not_in_force::nothing_to_change(&missing),
        (n, true, _) => format!("Done, {}:\n", plural(n, "change")),
        (n, false, true) => format!("Admissible, {}:\n", plural(n, "change")),
        (n, false, false) => format!("NOT admissible, {}:\n", plural(n, "change")),
    };
    if !plan.host.is_empty() {
        out += &format!("  change host\n{}", keys(&plan.host));
    }
    for change in &plan.tables {
        out += &named(&change.table, change.action, &change.changes);
    }
    for change in &plan.vnics {
        out += &vnic(change);
    }
    if !plan.admission.bounds.is_empty() {
        out += &format!("\n{}", bounds(&plan.admission.bounds));
    }
    if !plan.admission.egresses.is_empty() {
        out += &format!("\n{}", egresses(&plan.admission.egresses));
    }
    if changed > 0 {
        out += &not_in_force::lines_below(&missing);
    }
    for note in &plan.notes {
        out += &format!("note: {note}\n");
    }
    out
}

/// Describes the change of one vNIC; empty if there is none.
pub fn vnic(change: &VnicChange) -> String {
    named(&change.vnic, change.action, &change.changes)
}

fn named(name: &str, action: ChangeAction, changes: &[KeyChange]) -> String {
    let action = match action {
        ChangeAction::Create => "create",
        ChangeAction::Change => "change",
        ChangeAction::Remove => "remove",
        ChangeAction::None => return String::new(),
    };
    format!("  {action} {name}\n{}", keys(changes))
}

fn keys(changes: &[KeyChange]) -> String {
    let mut out = String::new();
    for KeyChange { key, from, to } in changes {
        out += &match (from, to) {
            (None, Some(to)) => format!("    {key} = {to}\n"),
            (Some(from), None) => format!("    {key}: {from} -> none\n"),
            (Some(from), Some(to)) => format!("    {key}: {from} -> {to}\n"),
            (None, None) => continue,
        };
    }
    out
}

fn bounds(promises: &[Promise]) -> String {
    let mut table = Table::new(&[
        ("real-time vNIC", Align::Left),
        ("to", Align::Left),
        ("deadline", Align::Right),
        ("delay bound", Align::Right),
        ("margin", Align::Right),
    ]);
    for promise in promises {
        table.row([
            promise.vnic.clone(),
            promise.egress.clone(),
            duration(promise.deadline_ns),
            promise.suspended.as_ref().map_or_else(|| duration(promise.bound_ns), |_| "not promised".into()),
            promise.suspended.as_ref().map_or_else(|| duration(promise.margin_ns), |_| "-".into()),
        ]);
    }
    let mut out = table.render();
    for promise in promises {
        out += &beyond(promise)
            .map_or_else(String::new, |way| format!("{} to {}: {way}\n", promise.vnic, promise.egress));
    }
    let mut said: Vec<&str> = vec![];
    for promise in promises {
        if let Some(why) = promise.suspended.as_ref().filter(|_| !said.contains(&promise.vnic.as_str())) {
            out += &format!("{}: not promised right now: {why}\n", promise.vnic);
            said.push(&promise.vnic);
        }
    }
    out
}

/// Describes a promise between hosts as a whole; `None` within this host.
pub fn beyond(promise: &Promise) -> Option<String> {
    let BeyondView { peer, latency_ns, arrival_budget_ns } = promise.beyond.as_ref()?;
    let away = latency_ns.saturating_add(*arrival_budget_ns);
    Some(format!(
        "at most {} of {} from host to host, with {} of network to {peer} and {} of its arrival budget",
        duration(promise.bound_ns.saturating_add(away)),
        duration(promise.deadline_ns.saturating_add(away)),
        duration(*latency_ns),
        duration(*arrival_budget_ns),
    ))
}

fn egresses(egresses: &[EgressView]) -> String {
    let mut table = Table::new(&[
        ("egress", Align::Left),
        ("capacity", Align::Right),
        ("real-time", Align::Right),
        ("guaranteed", Align::Right),
        ("not promised", Align::Right),
        ("to whom", Align::Left),
    ]);
    for egress in egresses {
        table.row([
            egress.egress.clone(),
            rate(egress.capacity_bps as f64),
            rate(egress.realtime_bps as f64),
            rate(egress.guaranteed_bps as f64),
            rate(egress.remaining_bps as f64),
            egress.vnics.join(", "),
        ]);
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::samples;
    use serde_json::json;

    fn plan(admissible: bool, applied: bool) -> PlanView {
        serde_json::from_value(json!({
            "applied": applied, "admissible": admissible,
            "refusals": [],
            "vnics": [
                {"vnic": "web", "action": "change", "changes": [
                    {"key": "tx.max", "from": "50mbit", "to": "100mbit"},
                    {"key": "deadline", "from": "1ms"},
                    {"key": "tx.burst", "to": "4kB"}
                ]},
                {"vnic": "same", "action": "none", "changes": []},
                {"vnic": "old", "action": "remove", "changes": []}
            ],
            "host": [],
            "admission": {
                "egresses": [{"egress": "sink", "capacity_bps": 1_000_000_000, "realtime_bps": 4_000_000,
                    "guaranteed_bps": 0, "remaining_bps": 996_000_000, "vnics": ["voice"]}],
                "bounds": samples::voice().promises
            },
            "notes": ["web: a note"]
        }))
        .unwrap()
    }

    #[test]
    fn a_plan_lists_changes_and_what_follows() {
        let expected = "\
Admissible, 2 changes:
  change web
    tx.max: 50mbit -> 100mbit
    deadline: 1ms -> none
    tx.burst = 4kB
  remove old

real-time vNIC  to    deadline  delay bound  margin
voice           sink   1.00 ms       278 us  722 us

egress     capacity    real-time  guaranteed  not promised  to whom
sink    1.00 Gbit/s  4.00 Mbit/s     0 bit/s    996 Mbit/s  voice
note: web: a note
";
        assert_eq!(text(&plan(true, false)), expected);
    }

    #[test]
    fn what_is_not_promised_has_no_bound() {
        let mut plan = plan(true, false);
        plan.admission.bounds = samples::suspended().promises;
        let expected = "
real-time vNIC  to    deadline   delay bound  margin
voice           sink   1.00 ms  not promised       -
voice: not promised right now: guest memory is not preallocated: add prealloc=on
";
        let text = text(&plan);
        assert!(text.contains(expected), "{text}");
    }

    #[test]
    fn uplinks_change_and_their_promises_go_on() {
        let mut plan = PlanView { vnics: vec![], ..plan(true, false) };
        plan.tables = serde_json::from_value(json!([
            {"table": "remote.plc9", "action": "remove", "changes": []},
            {"table": "uplink.net0", "action": "change", "changes": [{"key": "rate", "from": "1gbit", "to": "2gbit"}]}
        ]))
        .unwrap();
        plan.admission.egresses.clear();
        let promise = &mut plan.admission.bounds[0];
        promise.egress = "net0".into();
        let away = BeyondView { peer: "host2".into(), latency_ns: 100_000, arrival_budget_ns: 500_000 };
        promise.beyond = Some(away);
        let expected = "\
Admissible, 2 changes:
  remove remote.plc9
  change uplink.net0
    rate: 1gbit -> 2gbit

real-time vNIC  to    deadline  delay bound  margin
voice           net0   1.00 ms       278 us  722 us
voice to net0: at most 878 us of 1.60 ms from host to host, with 100 us of network to host2 and 500 us of its arrival budget
note: web: a note
";
        assert_eq!(text(&plan), expected);
    }

    #[test]
    fn the_first_line_says_how_it_stands() {
        let first = |plan: &PlanView| text(plan).lines().next().unwrap().to_owned();
        assert_eq!(first(&plan(true, true)), "Done, 2 changes:");
        assert_eq!(first(&plan(false, false)), "NOT admissible, 2 changes:");
        let nothing = PlanView { vnics: vec![], ..plan(true, false) };
        assert_eq!(first(&nothing), "Nothing to change: all contracts are in force.");
    }
}
