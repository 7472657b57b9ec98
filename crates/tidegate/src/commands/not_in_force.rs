//! Accepted contracts that are not in force: the output and exit codes of `apply`, `plan` and `vnic set`.

use crate::exit::{Code, Failure};
use crate::format::names;
use std::collections::BTreeMap;
use tidegate_agent::views::{NotInForce, State, VnicChange};

/// Describes the contracts that are not in force, in one line per reason, such as `a, b are pending: no
/// switch at ...`.
pub fn lines(changes: &[VnicChange]) -> Vec<String> {
    let mut by_reason = BTreeMap::<(bool, &str), Vec<String>>::new();
    for (change, NotInForce { state, reason, .. }) in not_in_force(changes) {
        by_reason.entry((*state == State::Failed, reason)).or_default().push(change.vnic.clone());
    }
    let line = |((failed, reason), vnics): ((bool, &str), Vec<String>)| {
        let state_text = match (failed, vnics.len()) {
            (true, _) => "failed",
            (false, 1) => "is pending",
            (false, _) => "are pending",
        };
        format!("{} {state_text}: {}", names(&vnics), reason.replace('\n', "\n  "))
    };
    by_reason.into_iter().map(line).collect()
}

/// Describes a request that changes nothing.
pub fn nothing_to_change(lines: &[String]) -> String {
    match lines {
        [] => "Nothing to change: all contracts are in force.\n".into(),
        [one] => format!("Nothing to change, but {one}\n"),
        several => {
            format!("Nothing to change, but not all contracts are in force:\n  {}\n", several.join("\n  "))
        }
    }
}

/// Returns the lines to print below the changes that were made.
pub fn lines_below(lines: &[String]) -> String {
    lines.iter().map(|line| format!("not in force: {line}\n")).collect()
}

/// Returns the exit code, without a message: standard output has the reasons. A contract that waits for a
/// link or a VF is no failure: it comes into force by itself.
pub fn exit_code(changes: &[VnicChange]) -> Result<(), Failure> {
    let code = if not_in_force(changes).any(|(_, why)| why.place_away) {
        Code::Unreachable
    } else if not_in_force(changes).any(|(_, why)| why.state == State::Failed) {
        Code::Failed
    } else {
        return Ok(());
    };
    Err(Failure { code, message: String::new() })
}

fn not_in_force(changes: &[VnicChange]) -> impl Iterator<Item = (&VnicChange, &NotInForce)> {
    changes.iter().filter_map(|change| Some((change, change.not_in_force.as_ref()?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_agent::views::ChangeAction;

    fn change(vnic: &str, why: Option<(State, &str, bool)>) -> VnicChange {
        let not_in_force =
            why.map(|(state, reason, place_away)| NotInForce { state, reason: reason.into(), place_away });
        VnicChange { vnic: vnic.into(), action: ChangeAction::None, changes: vec![], not_in_force }
    }

    fn code(changes: &[VnicChange]) -> Option<Code> {
        exit_code(changes).err().map(|failure| failure.code)
    }

    #[test]
    fn one_reason_is_one_line() {
        let away = Some((State::Pending, "no switch at /run/s", true));
        let logger = [change("logger", away), change("ok", None)];
        assert_eq!(
            nothing_to_change(&lines(&logger)),
            "Nothing to change, but logger is pending: no switch at /run/s\n"
        );
        let all =
            [change("a", away), change("b", away), change("c", Some((State::Failed, "no\nroom", false)))];
        let expected = "\
Nothing to change, but not all contracts are in force:
  a, b are pending: no switch at /run/s
  c failed: no
  room
";
        assert_eq!(nothing_to_change(&lines(&all)), expected);
        assert_eq!(lines_below(&lines(&logger)), "not in force: logger is pending: no switch at /run/s\n");
        assert_eq!(
            nothing_to_change(&lines(&[change("ok", None)])),
            "Nothing to change: all contracts are in force.\n"
        );
    }

    #[test]
    fn the_exit_code_shows_that_a_place_is_away() {
        let away = change("a", Some((State::Pending, "no switch", true)));
        let failed = change("b", Some((State::Failed, "refused", false)));
        let waits = change("c", Some((State::Pending, "no link", false)));
        assert_eq!(code(&[failed.clone(), away]), Some(Code::Unreachable));
        assert_eq!(code(&[waits.clone(), failed]), Some(Code::Failed));
        assert_eq!(code(&[waits, change("ok", None)]), None);
    }
}
