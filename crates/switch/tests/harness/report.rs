//! A test's results as a part of docs/reliability.md (`make reliability`): JSON, in the file that
//! `TIDEGATE_REPORT` names.

use serde_json::{Value, json};
use std::process::Command;

pub fn row(measure: String, asked: &str, seen: String, kept: bool) -> Value {
    json!({ "measure": measure, "asked": asked, "seen": seen, "verdict": if kept { "kept" } else { "missed" } })
}

/// As [`row`], for a result without a requirement.
pub fn info(measure: String, seen: String) -> Value {
    json!({ "measure": measure, "asked": "", "seen": seen, "verdict": "info" })
}

/// Writes the part `name`, measured by `test`, if TIDEGATE_REPORT is set.
pub fn write(name: &str, test: &str, rows: &[Value], notes: &[&str]) {
    let Some(path) = std::env::var_os("TIDEGATE_REPORT") else { return };
    let said = |program: &str, args: &[&str]| {
        let output = Command::new(program).args(args).output().ok().filter(|output| output.status.success());
        output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let changed = said("git", &["status", "--porcelain", "-uno"]).is_some_and(|text| !text.is_empty());
    let commit = said("git", &["rev-parse", "--short=12", "HEAD"])
        .map_or_else(|| "unknown".to_owned(), |commit| commit + if changed { "+" } else { "" });
    let build = if cfg!(debug_assertions) { "" } else { "--release " };
    let command = format!(
        "TIDEGATE_REPORT=$PWD/target/reliability/{name}.json cargo test {build}-p tidegate-switch --test {test}"
    );
    let date = said("date", &["-u", "+%FT%TZ"]).unwrap_or_default();
    let part = json!({
        "name": name, "command": command, "date": date, "commit": commit, "rows": rows, "notes": notes,
    });
    let new = std::path::PathBuf::from(&path).with_extension("json.new");
    std::fs::write(&new, serde_json::to_vec_pretty(&part).unwrap()).unwrap();
    std::fs::rename(&new, &path).unwrap();
}
