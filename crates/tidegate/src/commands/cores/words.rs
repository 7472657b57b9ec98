//! Stages and CPUs in words. Pure.

use crate::format::{names, natural, percent};
use std::collections::{BTreeMap, BTreeSet};
use tidegate_contract::cores::cpus;
use tidegate_evidence::{CoresReport, StageReport};

/// Millionths in one.
const MILLION: f64 = 1e6;

/// Formats CPUs: `CPU 3`, `CPUs 0-3,8`.
pub fn cpus_of(all: &[usize]) -> String {
    let set = all.iter().copied().collect();
    format!("{} {}", if all.len() == 1 { "CPU" } else { "CPUs" }, cpus::list(&set))
}

/// Formats a load in millionths of a CPU: `38 %`.
pub fn load(millionths: u64) -> String {
    percent(millionths as f64 / MILLION)
}

/// Returns the word for a kind of stages.
pub fn kind(kind: &str) -> &str {
    match kind {
        "hard-irq" => "interrupt",
        "soft-irq" => "stack",
        "vhost" => "vhost-net",
        "vcpu" => "vCPU",
        "transmit" => "transmission",
        other => other,
    }
}

/// Describes the stages of one CPU, by kind: `worker plc1, plc2 (38 %); vCPU web1 (21 %)`. The largest load comes first.
pub fn stages<'a>(all: impl IntoIterator<Item = &'a StageReport>) -> String {
    let mut kinds: BTreeMap<&str, Kind<'_>> = BTreeMap::new();
    for stage in all {
        kinds.entry(&stage.kind).or_default().add(stage);
    }
    let mut kinds: Vec<(&str, Kind<'_>)> = kinds.into_iter().collect();
    kinds.sort_by_key(|(_, of)| std::cmp::Reverse(of.load()));
    kinds.iter().map(|(word, of)| of.text(kind(word))).collect::<Vec<_>>().join("; ")
}

/// The stages of one kind on one CPU.
#[derive(Default)]
struct Kind<'a> {
    vnics: BTreeSet<&'a str>,
    /// Names of stages that work for no vNIC in particular.
    unnamed: BTreeSet<&'a str>,
    /// Load of ports, which is a part of their worker's.
    ports: u64,
    others: u64,
    is_estimate: bool,
}

impl<'a> Kind<'a> {
    fn add(&mut self, stage: &'a StageReport) {
        self.vnics.extend(stage.vnics.iter().map(String::as_str));
        if stage.vnics.is_empty() {
            self.unnamed.insert(&stage.stage);
        }
        let load = if is_port(stage) { &mut self.ports } else { &mut self.others };
        *load = load.saturating_add(stage.load.into());
        self.is_estimate |= !stage.measured;
    }

    fn load(&self) -> u64 {
        self.ports.max(self.others)
    }

    fn text(&self, kind: &str) -> String {
        let about = if self.is_estimate { "about " } else { "" };
        let load = format!("({about}{})", load(self.load()));
        let of = |all: &BTreeSet<&str>| {
            let mut all: Vec<String> = all.iter().map(|name| (*name).to_owned()).collect();
            all.sort_by(|a, b| natural(a).cmp(&natural(b)));
            names(&all)
        };
        match (self.vnics.is_empty(), self.unnamed.is_empty()) {
            (true, _) => format!("{} {load}", of(&self.unnamed)),
            (false, true) => format!("{kind} {} {load}", of(&self.vnics)),
            (false, false) => format!("{kind} {}, {} {load}", of(&self.vnics), of(&self.unnamed)),
        }
    }
}

/// Whether a stage is a vNIC's part of its worker's work.
pub fn is_port(stage: &StageReport) -> bool {
    stage.kind == "worker" && stage.stage.starts_with("port ")
}

/// Describes what stands in the way of the plan: deadlines without a CPU, faults, other programs; empty if nothing does.
pub fn obstacles(cores: &CoresReport) -> String {
    let mut out = String::new();
    let mut section = |title: &str, lines: Vec<String>| {
        if !lines.is_empty() {
            out += &format!(
                "\n{title}:\n{}",
                lines.iter().map(|line| format!("  {line}\n")).collect::<String>()
            );
        }
    };
    let impossible = cores.plan.iter().flat_map(|plan| &plan.impossible);
    section(
        "Deadlines whose needs this machine cannot meet",
        impossible.map(|i| format!("{}: {}", i.vnic, i.reason)).collect(),
    );
    let mut missing: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for stage in &cores.stages {
        if let Some(fault) = &stage.missing {
            missing.entry(fault).or_default().push(stage.stage.clone());
        }
    }
    let missing = missing.into_iter().map(|(fault, stages)| format!("{}: {fault}", names(&stages)));
    let unsteered = cores
        .steering
        .iter()
        .filter_map(|nic| Some(format!("steering of {}: {}", nic.device, nic.missing.as_ref()?)));
    section("Missing", missing.chain(unsteered).collect());
    let (conflicts, notes): (Vec<_>, Vec<_>) =
        cores.conflicts.iter().partition(|conflict| conflict.needs_a_person());
    let conflicts = conflicts.iter().map(|c| format!("{}: {}\n    do: {}", c.with, c.what, c.remedy));
    section("Conflicts", conflicts.collect());
    section("Notes", notes.iter().map(|note| format!("{}: {}", note.with, note.what)).collect());
    out
}

/// Breaks a text at spaces into lines of at most `width` characters; a longer word is cut.
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let mut word: Vec<char> = word.chars().collect();
        loop {
            let line = lines.last_mut().expect("one at least");
            let used = line.chars().count();
            let gap = usize::from(used > 0);
            if used + gap + word.len() <= width {
                line.extend(std::iter::repeat_n(' ', gap).chain(word));
                break;
            }
            if used == 0 {
                let rest = word.split_off(width.max(1));
                line.extend(word);
                word = rest;
            }
            lines.push(String::new());
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::cores::samples::stage;
    use proptest::prelude::*;

    #[test]
    fn a_cpus_stages_are_grouped_by_kind() {
        let port = |vnic: &str, load| StageReport {
            stage: format!("port {vnic}"),
            ..stage("worker", &[vnic], load, &[1], &[])
        };
        let worker = StageReport {
            stage: "worker 0".into(),
            vnics: vec![],
            ..stage("worker", &[], 380_000, &[1], &[])
        };
        let guess = StageReport { measured: false, ..stage("hard-irq", &[], 4_000, &[1], &[]) };
        let all = [
            stage("vcpu", &["web1"], 210_000, &[1], &[]),
            port("plc1", 100_000),
            port("plc2", 90_000),
            worker,
            guess,
        ];
        assert_eq!(
            stages(&all),
            "worker plc1, plc2, worker 0 (38 %); vCPU web1 (21 %); hard-irq (about 0.4 %)"
        );
        assert_eq!(stages([]), "");
        assert_eq!((cpus_of(&[3]), cpus_of(&[0, 1, 2, 8])), ("CPU 3".into(), "CPUs 0-2,8".into()));
    }

    proptest! {
        #[test]
        fn wrapped_lines_fit_and_keep_the_text(text in "[a-z ü]{0,200}", width in 1usize..40) {
            let lines = wrap(&text, width);
            prop_assert!(lines.iter().all(|line| line.chars().count() <= width));
            let without = |text: &str| text.replace(' ', "");
            prop_assert_eq!(without(&lines.concat()), without(&text));
        }
    }
}
