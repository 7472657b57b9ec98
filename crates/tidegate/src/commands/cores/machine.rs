//! A drawing of the machine: a box for each last level of cache, a bracket around the CPUs of one core, and who works there.
//!
//! ```text
//!  cpus, stages ─▶ caches ─▶ cores ─▶ rows, neighbours without work as one ─▶ lines of at most `width` characters
//! ```

use super::words::{cpus_of, stages, wrap};
use crate::format::{percent, plural};
use std::collections::{BTreeMap, BTreeSet};
use tidegate_evidence::{CpuReport, StageReport};

/// Least neighbours without work that become one row.
const FOLDED: usize = 3;
/// Most lines of one CPU.
const LINES: usize = 6;
/// Characters before the text of a row: `│ ┌ CPU 127  100 %  `.
const BEFORE: usize = 19;

/// Where a stage is drawn, if that is one CPU.
pub type Place = fn(&StageReport) -> Option<usize>;

/// Draws the machine. A stage that `place` gives no CPU is left out.
pub fn draw(cpus: &[CpuReport], all: &[StageReport], place: Place, width: usize) -> String {
    let mut on: BTreeMap<usize, Vec<&StageReport>> = BTreeMap::new();
    for stage in all {
        if let Some(cpu) = place(stage) {
            on.entry(cpu).or_default().push(stage);
        }
    }
    let mut caches: BTreeMap<(u32, u32), BTreeMap<u32, Vec<Row<'_>>>> = BTreeMap::new();
    for cpu in cpus {
        let row =
            Row { cpu, text: on.get(&cpu.cpu).map_or_else(String::new, |all| stages(all.iter().copied())) };
        caches.entry((cpu.node, cpu.cache)).or_default().entry(cpu.core).or_default().push(row);
    }
    let text = width.saturating_sub(BEFORE + 2).max(20);
    let mut out = String::new();
    for ((node, cache), cores) in caches {
        let mut cores: Vec<Vec<Row<'_>>> = cores.into_values().collect();
        // The kernel numbers siblings far apart: cores are in the order of their first CPU.
        cores.iter_mut().for_each(|rows| rows.sort_by_key(|row| row.cpu.cpu));
        cores.sort_by_key(|rows| rows[0].cpu.cpu);
        let numbers: Vec<usize> = cores.iter().flatten().map(|row| row.cpu.cpu).collect();
        let title = format!(" node {node}, cache {cache}: {} ", cpus_of(&numbers));
        out += &format!("┌{}{}┐\n", title, "─".repeat((text + BEFORE).saturating_sub(title.chars().count())));
        for line in folded(&cores).into_iter().flat_map(|part| lines(part, text)) {
            out += &format!("│{line:<0$}│\n", text + BEFORE);
        }
        out += &format!("└{}┘\n", "─".repeat(text + BEFORE));
    }
    out
}

/// One CPU.
struct Row<'a> {
    cpu: &'a CpuReport,
    /// Who works there.
    text: String,
}

impl Row<'_> {
    /// Returns what is said of the CPU itself.
    fn marks(&self) -> String {
        let CpuReport { isolated, housekeeping, own, .. } = self.cpu;
        let marks = [(*own, "own"), (*housekeeping, "housekeeping"), (*isolated, "isolated")];
        marks.iter().filter(|(is, _)| *is).map(|(_, mark)| *mark).collect::<Vec<_>>().join(", ")
    }

    fn words(&self) -> String {
        match (self.marks().as_str(), self.text.as_str()) {
            ("", text) => text.to_owned(),
            (marks, "") => marks.to_owned(),
            (marks, text) => format!("{marks}: {text}"),
        }
    }
}

/// Neighbouring cores that are one row, or one core.
enum Part<'a> {
    Core(&'a [Row<'a>]),
    Empty(&'a [Vec<Row<'a>>]),
}

/// Joins neighbours without work that are said the same of.
fn folded<'a>(cores: &'a [Vec<Row<'a>>]) -> Vec<Part<'a>> {
    let said = |core: &Vec<Row<'_>>| -> Option<Vec<String>> {
        core.iter().all(|row| row.text.is_empty()).then(|| core.iter().map(Row::marks).collect())
    };
    let mut parts = vec![];
    for same in cores.chunk_by(|a, b| said(a).is_some() && said(a) == said(b)) {
        if same.len() >= FOLDED && said(&same[0]).is_some() {
            parts.push(Part::Empty(same));
        } else {
            parts.extend(same.iter().map(|core| Part::Core(core)));
        }
    }
    parts
}

fn lines(part: Part<'_>, width: usize) -> Vec<String> {
    match part {
        Part::Core(rows) => {
            let row = |(at, row): (usize, &Row<'_>)| core_lines(bracket(at, rows.len()), row, width);
            rows.iter().enumerate().flat_map(row).collect()
        }
        Part::Empty(cores) => {
            let numbers: Vec<usize> = cores.iter().flatten().map(|row| row.cpu.cpu).collect();
            let marks: BTreeSet<String> =
                cores.iter().flatten().map(Row::marks).filter(|marks| !marks.is_empty()).collect();
            let mut text =
                format!("{}: {}, no work for frames", cpus_of(&numbers), plural(cores.len() as u64, "core"));
            if let Some(busy) = busy_range(cores) {
                text += &format!(", busy {busy}");
            }
            for mark in marks {
                text += &format!(", {mark}");
            }
            wrap(&text, width + BEFORE - 4).into_iter().map(|line| format!("   {line}")).collect()
        }
    }
}

fn core_lines([first, later]: [char; 2], row: &Row<'_>, width: usize) -> Vec<String> {
    let busy = row.cpu.busy.map_or_else(|| "-".into(), |busy| percent(f64::from(busy) / 1e6));
    let mut text = wrap(&row.words(), width);
    if text.len() > LINES {
        text.truncate(LINES);
        text.push("... and more: --json has all".into());
    }
    let line = |(at, text): (usize, String)| match at {
        0 => format!(" {first} CPU {:<4} {busy:>5}  {text}", row.cpu.cpu),
        _ => format!(" {later}{}{text}", " ".repeat(BEFORE - 2)),
    };
    text.into_iter().enumerate().map(line).collect()
}

/// Returns the characters before the first and before further lines of one of several siblings.
fn bracket(at: usize, of: usize) -> [char; 2] {
    match (at, of) {
        (_, 1) => [' ', ' '],
        (0, _) => ['┌', '│'],
        (at, of) if at + 1 == of => ['└', ' '],
        _ => ['├', '│'],
    }
}

/// Returns the least and the largest busy time, if all are known.
fn busy_range(cores: &[Vec<Row<'_>>]) -> Option<String> {
    let busy: Vec<u32> = cores.iter().flatten().map(|row| row.cpu.busy).collect::<Option<_>>()?;
    let (least, most) = (busy.iter().min()?, busy.iter().max()?);
    let share = |millionths: u32| percent(f64::from(millionths) / 1e6);
    Some(if share(*least) == share(*most) {
        share(*most)
    } else {
        format!("{} to {}", share(*least), share(*most))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::cores::samples::{large, small};

    fn present(stage: &StageReport) -> Option<usize> {
        (stage.present.len() == 1).then(|| stage.present[0])
    }

    #[test]
    fn a_small_machine() {
        let cores = small();
        let expected = "\
┌ node 0, cache 0: CPUs 0-3 ───────────────────────────────────────────────────┐
│ ┌ CPU 0     11 %  housekeeping: interrupt 24 (eth1-0) (about 4.0 %)          │
│ └ CPU 2    3.0 %  housekeeping                                               │
│ ┌ CPU 1     41 %  own: worker plc1, plc2 (38 %)                              │
│ └ CPU 3      0 %  isolated                                                   │
└──────────────────────────────────────────────────────────────────────────────┘
";
        assert_eq!(draw(&cores.cpus, &cores.stages, present, 80), expected);
    }

    #[test]
    fn a_large_machine_is_folded_and_fits() {
        let cores = large();
        for width in [80, 100, 120] {
            let drawn = draw(&cores.cpus, &cores.stages, present, width);
            assert!(drawn.lines().all(|line| line.chars().count() == width), "{drawn}");
            assert!(drawn.lines().count() < 60, "{drawn}");
        }
        let drawn = draw(&cores.cpus, &cores.stages, present, 100);
        let row = "│   CPUs 34-63,98-127: 30 cores, no work for frames, busy 2.0 %                                    │";
        assert!(drawn.contains(row), "{drawn}");
        let worker = "│ ┌ CPU 33   2.0 %  worker vm0, vm1, vm2, vm3, vm4 and 495 more (90 %)                             │";
        assert!(drawn.contains(worker), "{drawn}");
    }
}
