//! Answers and errors of controllers, for people.
//!
//! ```text
//!  an answer ──▶ shown ──▶ the same type, each text in one line and visible
//!  an error ───▶ Failure: exit code 3 refused, 4 not reached or not leading, 1 all else
//! ```

use crate::exit::{Code, Failure};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tidegate_controller_api::ProblemCode;
use tidegate_controller_api::client::Error;
use tidegate_visible::visible;

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = match &error {
            Error::Unreachable { .. } | Error::Broken { .. } => Code::Unreachable,
            Error::Problem { problem, .. } => match problem.code {
                ProblemCode::Refused | ProblemCode::Waiting | ProblemCode::Invalid => Code::Refused,
                ProblemCode::Standby | ProblemCode::Busy => Code::Unreachable,
                _ => Code::Failed,
            },
        };
        let advice = match &error {
            Error::Problem { problem, .. } => advice(problem.code),
            _ => "",
        };
        Self { code, message: format!("{error}{advice}") }
    }
}

fn advice(code: ProblemCode) -> &'static str {
    match code {
        ProblemCode::Unauthorized => {
            "\nAsk with an operator's token (--token-file) or certificate (--certificate, --key)."
        }
        ProblemCode::Waiting => "\nAsk again: the far host's agent admits the sender within seconds.",
        ProblemCode::Standby => "\nName all controllers with --controller, or wait until one of them leads.",
        _ => "",
    }
}

/// Makes control characters in all texts of an answer visible.
pub fn shown<T: Serialize + DeserializeOwned>(answer: &T) -> Result<T, Failure> {
    let mut value = serde_json::to_value(answer).map_err(Failure::failed)?;
    make_visible(&mut value);
    serde_json::from_value(value).map_err(Failure::failed)
}

fn make_visible(value: &mut Value) {
    match value {
        Value::String(text) => *text = visible(text).into_owned(),
        Value::Array(all) => all.iter_mut().for_each(make_visible),
        Value::Object(entries) => entries.values_mut().for_each(make_visible),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_controller_api::Problem;

    #[test]
    fn the_kind_of_problem_decides_the_exit_code() {
        let code = |code| {
            let problem = Problem { code, message: String::new(), reasons: vec![], leader: None };
            Failure::from(Error::Problem { problem, status: 400, retry_after: None }).code
        };
        assert_eq!(code(ProblemCode::Refused), Code::Refused);
        assert_eq!(code(ProblemCode::Waiting), Code::Refused);
        assert_eq!(code(ProblemCode::Standby), Code::Unreachable);
        assert_eq!(code(ProblemCode::NotFound), Code::Failed);
        assert_eq!(code(ProblemCode::Unknown), Code::Failed);
        assert_eq!(Failure::from(Error::Unreachable { attempts: vec![] }).code, Code::Unreachable);
    }

    #[test]
    fn a_refusal_has_each_route_in_a_line() {
        let problem = Problem {
            code: ProblemCode::Refused,
            message: "no route fits".into(),
            reasons: vec![
                "link s1:1>s2:1: 520000000 bit/s of 500000000\nforged".into(),
                "link s1:3>s3:1: late".into(),
            ],
            leader: None,
        };
        let failure = Failure::from(Error::Problem { problem, status: 409, retry_after: None });
        assert_eq!(
            failure.message,
            "no route fits\n  link s1:1>s2:1: 520000000 bit/s of 500000000\\nforged\n  link s1:3>s3:1: late"
        );
    }
}
