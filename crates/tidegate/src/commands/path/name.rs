//! Names of paths, vNICs and hosts, as `controller/openapi.json` has them.

use tidegate_visible::visible;

/// Reads a path's name: two names of vNICs.
pub fn path(text: &str) -> Result<String, String> {
    let two = text.split_once('>').map(|(vnic, remote)| (named(vnic, "a vNIC"), named(remote, "a vNIC")));
    match two {
        Some((Ok(vnic), Ok(remote))) => Ok(format!("{vnic}>{remote}")),
        Some((Err(error), _) | (_, Err(error))) => Err(error),
        None => Err("expected VNIC>REMOTE in quotes, such as 'a1>b1': a shell takes > for itself".into()),
    }
}

/// Reads the name of a host.
pub fn host(text: &str) -> Result<String, String> {
    named(text, "a host")
}

fn named(text: &str, what: &str) -> Result<String, String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric();
    let is_name = text.len() <= 63
        && text.starts_with(is_plain)
        && text.chars().all(|c| is_plain(c) || matches!(c, '.' | '_' | '-'));
    if is_name {
        return Ok(text.to_owned());
    }
    Err(format!(
        "{:?} is no name of {what}: 1 to 63 letters, digits, `.`, `_` and `-`, the first a letter or digit",
        visible(text)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_two_vnics() {
        assert_eq!(path("a1>b1"), Ok("a1>b1".into()));
        for text in
            ["a1", "", ">", "a1>", "a1>b1>c1", "a/1>b1", "a1> b1", "-a>b", &format!("a>{}", "b".repeat(64))]
        {
            path(text).unwrap_err();
        }
    }
}
