//! How a path stands with the controller.
//!
//! ```text
//!  Path, PathRequest ─▶ as it was asked for, or unlike
//! ```

use tidegate_controller_api::{Path, PathRequest};

/// How a path stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Nothing is known yet.
    Asked,
    /// Another part is to come first.
    Waiting(Vec<String>),
    /// The controller has too much to do, or changes it just now.
    Busy,
    /// The controller says no, or nothing can be asked for.
    Refused(Vec<String>),
    /// No controller answers.
    Away(String),
    /// The controller has another path than the one that was asked for.
    Unlike(String),
    /// There is one, as it was asked for.
    Granted(Box<Path>),
}

/// Says how a path differs from what was asked for; `None` if it does not.
pub fn unlike(path: &Path, asked: &PathRequest) -> Option<String> {
    let there = &path.request;
    if path.name != asked.name() || there.name() != asked.name() {
        return Some("the controller answers with another path".into());
    }
    if there != asked {
        return Some(format!(
            "the controller has it from {} to {} for {} bit/s, burst {} bytes, within {} ns, by {}; this host asks for \
             {} to {}, {} bit/s, burst {} bytes, within {} ns, by {}",
            there.source,
            there.target,
            there.rate,
            there.burst,
            there.budget,
            there.key,
            asked.source,
            asked.target,
            asked.rate,
            asked.burst,
            asked.budget,
            asked.key,
        ));
    }
    (path.bound > asked.budget)
        .then(|| format!("its bound is {} ns, and at most {} ns were asked for", path.bound, asked.budget))
}
