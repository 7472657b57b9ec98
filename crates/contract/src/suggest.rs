//! "Did you mean": the known word nearest to an unknown one.

/// Returns `; did you mean "max"?`, or nothing if no candidate is near.
pub(crate) fn did_you_mean<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    let lower = word.to_lowercase().replace('_', "-");
    let length = lower.chars().count();
    let near = 1 + length / 4;
    candidates
        .into_iter()
        // The distance is at least the difference of the lengths.
        .filter(|known| length.abs_diff(known.chars().count()) <= near.min(known.chars().count()))
        .map(|known| (edit_distance(&lower, &known.to_lowercase()), known))
        .filter(|(distance, known)| *distance <= near && *distance < known.chars().count())
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| format!("; did you mean {known:?}?"))
        .unwrap_or_default()
}

/// Counts insertions, deletions, substitutions and swaps of neighbours (optimal string alignment).
fn edit_distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![(0..=b.len()).collect::<Vec<_>>()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let substitute = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = substitute.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        for (a, b, distance) in
            [("", "", 0), ("max", "", 3), ("max", "amx", 1), ("mx", "max", 1), ("kitten", "sitting", 3)]
        {
            assert_eq!(edit_distance(a, b), distance, "{a} {b}");
            assert_eq!(edit_distance(b, a), distance, "{b} {a}");
        }
    }

    #[test]
    fn only_similar_names_are_suggested() {
        let keys = ["deadline", "max", "to", "host-latency"];
        assert_eq!(did_you_mean("deadlin", keys), "; did you mean \"deadline\"?");
        assert_eq!(did_you_mean("MAX", keys), "; did you mean \"max\"?");
        assert_eq!(did_you_mean("host_latenci", keys), "; did you mean \"host-latency\"?");
        assert_eq!(did_you_mean("colour", keys), "");
        assert_eq!(did_you_mean("x", keys), "");
        assert_eq!(did_you_mean(&"x".repeat(2 << 20), keys), "");
    }
}
