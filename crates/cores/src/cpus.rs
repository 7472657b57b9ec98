//! Sets of CPUs as the kernel writes them: lists (`0-3,7`) and masks (`ff,00000001`). Pure.

use std::collections::BTreeSet;

/// CPUs by number.
pub type Cpus = BTreeSet<usize>;

/// More than any Linux has (CONFIG_NR_CPUS).
pub const MOST: usize = 8192;

/// Parses a list such as `0-3,7`; empty text is an empty list. `None` if it is no list, or names an
/// impossible CPU.
pub fn from_list(text: &str) -> Option<Cpus> {
    let mut cpus = Cpus::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if last >= MOST {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

/// Formats a list such as `0-3,7`, as [`from_list`] reads it.
pub fn list(cpus: &Cpus) -> String {
    let mut ranges: Vec<(usize, usize)> = vec![];
    for &cpu in cpus {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == cpu => *last = cpu,
            _ => ranges.push((cpu, cpu)),
        }
    }
    let range = |(first, last)| if first == last { format!("{first}") } else { format!("{first}-{last}") };
    ranges.into_iter().map(range).collect::<Vec<_>>().join(",")
}

/// Formats a mask for the kernel: words of 32 bits in hexadecimal, the highest first.
pub fn mask(cpus: &Cpus) -> String {
    let words = cpus.last().map_or(0, |last| last / 32) + 1;
    let word = |at: usize| {
        let bits = (0..32).filter(|bit| cpus.contains(&(at * 32 + bit)));
        bits.fold(0_u32, |word, bit| word | 1 << bit)
    };
    let words = (0..words)
        .rev()
        .enumerate()
        .map(|(n, at)| if n == 0 { format!("{:x}", word(at)) } else { format!("{:08x}", word(at)) });
    words.collect::<Vec<_>>().join(",")
}

/// Parses a mask such as `ff,00000001`, whatever its leading zeros. `None` if it is none, or names an impossible CPU.
pub fn from_mask(text: &str) -> Option<Cpus> {
    let mut cpus = Cpus::new();
    for (at, word) in text.trim().rsplit(',').enumerate() {
        let word = u32::from_str_radix(word, 16).ok()?;
        cpus.extend((0..32).filter(|bit| word & (1 << bit) != 0).map(|bit| at * 32 + bit));
    }
    cpus.last().is_none_or(|last| *last < MOST).then_some(cpus)
}

/// Normalises a mask to the form of [`mask`]. `None` if it is none.
pub fn same_mask(text: &str) -> Option<String> {
    Some(mask(&from_mask(text)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn lists_and_masks_say_the_same_set(cpus in proptest::collection::btree_set(0_usize..200, 0..40)) {
            let list = cpus.iter().map(|cpu| format!("{cpu}-{cpu}")).collect::<Vec<_>>().join(",");
            prop_assert_eq!(from_list(&list), Some(cpus.clone()));
            prop_assert_eq!(from_list(&super::list(&cpus)), Some(cpus.clone()));
            let written = mask(&cpus);
            prop_assert_eq!(same_mask(&written), Some(written.clone()));
            // In the kernel's form: each word with all its digits, and words for possible CPUs.
            let shown = written.split(',').map(|word| format!("{word:0>8}")).collect::<Vec<_>>().join(",");
            prop_assert_eq!(same_mask(&format!("00000000,{shown}\n")), Some(written.clone()));
            prop_assert_eq!(from_mask(&written), Some(cpus));
        }
    }

    #[test]
    fn as_the_kernel_writes_them() {
        let cpus = |all: &[usize]| all.iter().copied().collect::<Cpus>();
        assert_eq!(from_list("0-2,5\n"), Some(cpus(&[0, 1, 2, 5])));
        assert_eq!(from_list("\n"), Some(cpus(&[])));
        for wrong in ["(null)", "1-", "a", "0-99999999999", "0-9000"] {
            assert_eq!(from_list(wrong), None, "{wrong}");
        }
        assert_eq!(list(&cpus(&[0, 1, 2, 5, 7, 8])), "0-2,5,7-8");
        assert_eq!(list(&cpus(&[])), "");
        assert_eq!(mask(&cpus(&[1, 2, 3])), "e");
        assert_eq!(mask(&cpus(&[])), "0");
        assert_eq!(mask(&cpus(&[0, 33])), "2,00000001");
        assert_eq!(same_mask("00000000,00000002,00000001\n").as_deref(), Some("2,00000001"));
        assert_eq!(
            [from_mask("none"), from_mask(""), from_mask(&format!("1{}", ",0".repeat(256)))],
            [None, None, None]
        );
    }
}
