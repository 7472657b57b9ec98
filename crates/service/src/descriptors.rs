//! How many file descriptors a service may have (RLIMIT_NOFILE; LimitNOFILE= of its unit).

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit to the hard one. Returns the limit.
pub fn raise_descriptors() -> u64 {
    let maximum = getrlimit(Resource::Nofile).maximum;
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        tracing::warn!(%error, "the limit on file descriptors cannot be raised to its maximum");
    }
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_becomes_the_hard_one() {
        assert_eq!(Some(raise_descriptors()), getrlimit(Resource::Nofile).maximum.or(Some(u64::MAX)));
    }
}
