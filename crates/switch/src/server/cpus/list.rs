//! CPU lists such as `2,3` or `0,4-7`: the form of cpuset(7), of files in sysfs and of `--cpus`.

/// Bound on CPU numbers, above any kernel's.
const MOST: usize = 65_536;

/// Parses a list; the CPUs stay in its order.
///
/// # Errors
/// The part that is neither a CPU number nor a range.
pub fn parse(text: &str) -> Result<Vec<usize>, String> {
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let cpu = |text: &str| {
            text.trim()
                .parse::<usize>()
                .ok()
                .filter(|n| *n < MOST)
                .ok_or_else(|| format!("`{part}` is neither a CPU number nor a range such as 4-7"))
        };
        let (first, last) = (cpu(first)?, cpu(last)?);
        if first > last {
            return Err(format!("`{part}`: the first CPU of the range is higher than the last"));
        }
        cpus.extend(first..=last);
    }
    Ok(cpus)
}

/// Formats `cpus` as a list, in their order.
pub fn text(cpus: &[usize]) -> String {
    let ranges = cpus.chunk_by(|a, b| *b == a + 1).map(|range| match range {
        [only] => only.to_string(),
        [first, second] => format!("{first},{second}"),
        [first, .., last] => format!("{first}-{last}"),
        [] => String::new(),
    });
    ranges.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lists() {
        assert_eq!(parse("3"), Ok(vec![3]));
        assert_eq!(parse("0,4-6,2"), Ok(vec![0, 4, 5, 6, 2]));
        assert_eq!(text(&[0, 4, 5, 6, 2, 3]), "0,4-6,2,3");
        for wrong in ["", "a", "1,", "3-1", "-1", "1-99999999"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn a_written_list_is_read_back(cpus in proptest::collection::vec(0..200usize, 1..20)) {
            prop_assert_eq!(parse(&text(&cpus)), Ok(cpus));
        }
    }
}
