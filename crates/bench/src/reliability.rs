//! The results of one part of docs/reliability.md, as `bench/run --scene reliability` reads them.
//!
//! ```text
//!  a measurement ─▶ rows ─▶ target/reliability/NAME.json ◀─ rows of the same part, measured otherwise
//! ```

use serde::{Deserialize, Serialize};
use std::io;
use std::path::Path;
use std::process::Command;

/// How a figure compares with the requirement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The requirement is met.
    Kept,
    /// The requirement is not met.
    Missed,
    /// There is no requirement.
    Info,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Row {
    measure: String,
    asked: String,
    seen: String,
    verdict: Verdict,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    name: String,
    command: String,
    date: String,
    commit: String,
    rows: Vec<Row>,
    notes: Vec<String>,
}

impl Part {
    /// Creates a part without rows, with the current date and the commit of the current folder. `command`
    /// repeats the measurement.
    ///
    /// # Errors
    /// date(1) does not run.
    pub fn new(name: &str, command: &str) -> io::Result<Self> {
        let date = output_of("date", &["-u", "+%FT%TZ"]).ok_or_else(|| io::Error::other("date -u failed"))?;
        let commit =
            output_of("git", &["rev-parse", "--short=12", "HEAD"]).map_or("unknown".into(), |commit| {
                let differs =
                    output_of("git", &["status", "--porcelain", "-uno"]).is_none_or(|said| !said.is_empty());
                if differs { format!("{commit}+") } else { commit }
            });
        let (name, command) = (name.into(), command.into());
        Ok(Self { name, command, date, commit, rows: Vec::new(), notes: Vec::new() })
    }

    pub fn row(&mut self, measure: String, asked: &str, seen: String, verdict: Verdict) {
        self.rows.push(Row { measure, asked: asked.into(), seen, verdict });
    }

    pub fn note(&mut self, note: &str) {
        self.notes.push(note.into());
    }

    /// Writes the whole file. Rows of the old file for which `others` is true stay, before the new rows.
    ///
    /// # Errors
    /// The file cannot be written, or the old file is not a results file.
    pub fn write(mut self, path: &Path, others: impl Fn(&str) -> bool) -> io::Result<()> {
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        match std::fs::read(path) {
            Ok(bytes) => {
                let old: Self = serde_json::from_slice(&bytes).map_err(|e| named(e.into()))?;
                let kept_rows = old.rows.into_iter().filter(|row| others(&row.measure));
                self.rows = kept_rows.chain(self.rows).collect();
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(named(error)),
        }
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(named)?;
        }
        let mut new = path.as_os_str().to_owned();
        new.push(".new");
        std::fs::write(&new, serde_json::to_vec_pretty(&self)?).map_err(named)?;
        std::fs::rename(&new, path).map_err(named)
    }
}

/// Returns the output of a program; `None` if it fails.
fn output_of(program: &str, arguments: &[&str]) -> Option<String> {
    let output =
        Command::new(program).args(arguments).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_other_measurements_stay_in_a_part() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("reliability/kills.json");
        let write = |layout: &str, seen: &str| {
            let mut part = Part::new("kills", "tidegate-bench kills").unwrap();
            part.row(format!("lost, {layout}"), "0", seen.into(), Verdict::Kept);
            part.write(&path, |measure| !measure.ends_with(layout)).unwrap();
            let read: Part = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
            read.rows.into_iter().map(|row| (row.measure, row.seen)).collect::<Vec<_>>()
        };
        let row = |layout: &str, seen: &str| (format!("lost, {layout}"), seen.to_owned());
        assert_eq!(write("split", "1"), [row("split", "1")]);
        assert_eq!(write("packed", "2"), [row("split", "1"), row("packed", "2")]);
        assert_eq!(write("split", "3"), [row("packed", "2"), row("split", "3")]);
        std::fs::write(&path, "{}").unwrap();
        let part = Part::new("kills", "").unwrap();
        assert!(part.write(&path, |_| true).unwrap_err().to_string().contains("kills.json"));
    }
}
