//! The vNICs that a text names, even an invalid one: a refusal can say which vNICs it concerns.

use super::source::Source;
use crate::check::vnic_name;
use toml_edit::{Document, Key};

/// Returns the valid names with their lines, from 1, in the order of the text.
///
/// In a text that is no TOML, only table headers count: `[vnic.NAME]` or below.
pub fn names(text: &str) -> Vec<(String, usize)> {
    let candidates = match Document::parse(text) {
        Ok(document) => in_tables(&Source::new(text, ""), &document),
        Err(_) => {
            text.lines().zip(1..).filter_map(|(line, number)| Some((in_header(line)?, number))).collect()
        }
    };
    let mut names: Vec<(String, usize)> = Vec::new();
    for (name, line) in candidates {
        if vnic_name(&name).is_ok() && !names.iter().any(|(known, _)| *known == name) {
            names.push((name, line));
        }
    }
    names
}

fn in_tables(source: &Source<'_>, document: &Document<&str>) -> Vec<(String, usize)> {
    let Some(vnics) = document.get("vnic").and_then(|item| item.as_table_like()) else { return vec![] };
    let line = |name: &str| vnics.key(name).and_then(Key::span).map_or(1, |span| source.line(&span));
    let mut names: Vec<_> = vnics.iter().map(|(name, _)| (name.to_owned(), line(name))).collect();
    names.sort_by_key(|(_, line)| *line);
    names
}

/// Returns the vNIC of a line such as `[vnic.web.tx]`.
fn in_header(line: &str) -> Option<String> {
    let (header, _) = line.trim_start().strip_prefix('[')?.split_once(']')?;
    match &Key::parse(header).ok()?[..] {
        [vnic, name, ..] if vnic.get() == "vnic" => Some(name.get().to_owned()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<(String, usize)> {
        names(text)
    }

    fn named(pairs: &[(&str, usize)]) -> Vec<(String, usize)> {
        pairs.iter().map(|(name, line)| ((*name).to_owned(), *line)).collect()
    }

    #[test]
    fn names_are_found_in_invalid_texts() {
        let text =
            "# two\n[vnic.web]\nmac = 5\n\n[vnic.web.tx]\nmax = \"?\"\n[vnic.\"db\"]\n[host]\n[vnic.'a b']\n";
        assert_eq!(found(text), named(&[("web", 2), ("db", 7)]));
        let broken = text.to_owned() + "attach = { vhost";
        assert_eq!(found(&broken), named(&[("web", 2), ("db", 7)]));
    }

    #[test]
    fn names_are_found_in_each_form_of_a_table() {
        assert_eq!(found("vnic.b.mac = 1\nvnic.a = { mac = 2 }"), named(&[("b", 1), ("a", 2)]));
        assert_eq!(found("[vnic]\nb = {}\na = {}\n"), named(&[("b", 2), ("a", 3)]));
        for none in ["", "vnic = 5", "[vnic", "[[vnic]]", "[vnic]\n", "[other.web]\nx = {"] {
            assert_eq!(found(none), [], "{none}");
        }
    }
}
