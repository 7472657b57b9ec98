//! Formats quantities (three digits, fitting unit), names and paths for people.

use std::path::Path;
use tidegate_visible::visible;

/// Formats a path in one line, with control characters made visible.
#[expect(clippy::disallowed_methods, reason = "it is made visible here")]
pub fn path(path: &Path) -> String {
    visible(&path.display().to_string()).into_owned()
}

/// Formats a duration (ns): `850 ns`, `48.1 us`, `11.9 ms`, `2.50 s`.
pub fn duration(ns: u64) -> String {
    scaled(ns as f64, &[(1e9, "s"), (1e6, "ms"), (1e3, "us"), (1.0, "ns")])
}

/// Formats a rate: `0 bit/s`, `1.60 Mbit/s`, `941 Mbit/s`.
pub fn rate(bits_per_second: f64) -> String {
    scaled(bits_per_second, &[(1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s"), (1.0, "bit/s")])
}

/// Formats a size: `1 B`, `64.0 kB`, `1.50 MB`.
pub fn size(bytes: u64) -> String {
    scaled(bytes as f64, &[(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")])
}

/// Formats a count with separated thousands: `12,345`.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Formats a share (1 is all): `0 %`, `0.3 %`, `42 %`.
pub fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if percent > 0.0 && percent < 9.95 { format!("{percent:.1} %") } else { format!("{percent:.0} %") }
}

/// Returns a key by which names are in the order that people expect: `vm2` before `vm10`.
pub fn natural(name: &str) -> Vec<(&str, usize, &str)> {
    let mut parts = vec![];
    let mut rest = name;
    while !rest.is_empty() {
        let (text, after) = rest.split_at(rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len()));
        let digits = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
        let (number, after) = after.split_at(digits);
        let number = number.trim_start_matches('0');
        // Of two numbers the longer one is larger.
        parts.push((text, number.len(), number));
        rest = after;
    }
    parts
}

/// Joins the first five names, and counts the others.
pub fn names(all: &[String]) -> String {
    const SHOWN: usize = 5;
    match all.len().checked_sub(SHOWN) {
        None | Some(0) => all.join(", "),
        Some(more) => format!("{} and {more} more", all[..SHOWN].join(", ")),
    }
}

/// Formats a count with its noun: `1 frame`, `2 frames`.
pub fn plural(n: u64, one: &str) -> String {
    plural_of(n, one, &format!("{one}s"))
}

/// Formats a count with a noun whose plural has a form of its own: `1 switch`, `2 switches`.
pub fn plural_of(n: u64, one: &str, many: &str) -> String {
    format!("{} {}", count(n), if n == 1 { one } else { many })
}

fn scaled(value: f64, units: &[(f64, &str)]) -> String {
    // Picks the unit in which the rounded value is at least 1: 999,999 ns is 1.00 ms.
    let (unit, name) =
        *units.iter().find(|(unit, _)| value / unit >= 0.9995).unwrap_or(&units[units.len() - 1]);
    let value = value / unit;
    let digits = if unit == 1.0 || value >= 99.95 {
        0
    } else if value >= 9.995 {
        1
    } else {
        2
    };
    format!("{value:.digits$} {name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_names_are_in_order() {
        let mut names =
            ["vm10", "vm2", "a", "vm02b", "vm", "vm99999999999999999999999", "10", "9", "vm2-1", "ü1"];
        names.sort_by(|a, b| natural(a).cmp(&natural(b)));
        assert_eq!(
            names,
            ["9", "10", "a", "vm", "vm2", "vm2-1", "vm02b", "vm10", "vm99999999999999999999999", "ü1"]
        );
    }

    #[test]
    fn three_digits_and_a_unit() {
        let cases =
            [(0, "0 ns"), (850, "850 ns"), (1_000, "1.00 us"), (48_123, "48.1 us"), (999_999, "1.00 ms")];
        for (ns, text) in cases {
            assert_eq!(duration(ns), text);
        }
        assert_eq!(duration(11_900_000), "11.9 ms");
        assert_eq!(duration(2_500_000_000), "2.50 s");
        assert_eq!(rate(0.0), "0 bit/s");
        assert_eq!(rate(941_400_000.0), "941 Mbit/s");
        assert_eq!(size(1_500_000), "1.50 MB");
        assert_eq!(size(12), "12 B");
    }

    #[test]
    fn counts_and_shares() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([0.0, 0.003, 0.42, 1.0].map(percent), ["0 %", "0.3 %", "42 %", "100 %"]);
        assert_eq!(plural(1, "frame"), "1 frame");
        assert_eq!(plural(2_000, "frame"), "2,000 frames");
    }
}
