//! Parses files of `/proc` and `/sys` (proc(5)). Pure: accepts any text, and skips what it does not
//! understand.

use std::collections::{BTreeMap, BTreeSet};

/// Highest CPU number accepted, and most rows read from a file.
const CPUS: usize = 65_536;
const ROWS: usize = 16_384;

/// A row of `/proc/softirqs` or `/proc/interrupts`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// The text after the counts: an interrupt's chip and device.
    pub label: String,
    pub counts: BTreeMap<usize, u64>,
}

/// Parses the rows of `/proc/softirqs` or `/proc/interrupts`, by name.
pub fn rows(text: &str) -> BTreeMap<String, Row> {
    let mut lines = text.lines();
    let number = |word: &str| word.strip_prefix("CPU")?.parse().ok().filter(|cpu| *cpu < CPUS);
    let columns: Vec<usize> =
        lines.next().unwrap_or_default().split_whitespace().filter_map(number).collect();
    let row = |line: &str| {
        let (name, rest) = line.split_once(':')?;
        let mut words = rest.split_whitespace().peekable();
        let mut counts = BTreeMap::new();
        for cpu in &columns {
            let Some(count) = words.peek().and_then(|word| word.parse().ok()) else { break };
            counts.insert(*cpu, count);
            words.next();
        }
        Some((name.trim().to_owned(), Row { label: words.collect::<Vec<_>>().join(" "), counts }))
    };
    lines.take(ROWS).filter_map(row).collect()
}

/// Use of a CPU's time (ticks): a line of `/proc/stat`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// In threads of any priority, and in the kernel for them.
    pub threads: u64,
    pub idle: u64,
    pub irq: u64,
    pub softirq: u64,
    pub steal: u64,
}

impl Times {
    pub fn total(&self) -> u64 {
        [self.threads, self.idle, self.irq, self.softirq, self.steal].into_iter().fold(0, u64::saturating_add)
    }

    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            threads: self.threads.saturating_sub(earlier.threads),
            idle: self.idle.saturating_sub(earlier.idle),
            irq: self.irq.saturating_sub(earlier.irq),
            softirq: self.softirq.saturating_sub(earlier.softirq),
            steal: self.steal.saturating_sub(earlier.steal),
        }
    }
}

/// Parses the CPUs' lines of `/proc/stat`.
pub fn times(text: &str) -> BTreeMap<usize, Times> {
    let line = |line: &str| {
        let mut words = line.strip_prefix("cpu")?.split_whitespace();
        let cpu = words.next()?.parse().ok().filter(|cpu| *cpu < CPUS)?;
        let ticks: Vec<u64> = words.map_while(|word| word.parse().ok()).take(8).collect();
        let [user, nice, system, idle, iowait, irq, softirq, steal] = ticks.try_into().ok()?;
        let threads = user.saturating_add(nice).saturating_add(system);
        Some((cpu, Times { threads, idle: idle.saturating_add(iowait), irq, softirq, steal }))
    };
    // The line of all CPUs together has no number.
    text.lines()
        .filter(|line| line.starts_with("cpu") && !line.starts_with("cpu "))
        .filter_map(line)
        .collect()
}

/// A thread, as `/proc/PID/task/TID/stat` shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Thread {
    pub name: String,
    /// Page faults: without and with a read from disk.
    pub faults: (u64, u64),
    /// CPU time used (ticks).
    pub used: u64,
    /// Start time (ticks); tells apart threads that had the same number.
    pub began: u64,
    pub cpu: usize,
    /// Real-time priority, 1 to 99; `None` without.
    pub priority: Option<u8>,
}

pub fn thread(text: &str) -> Option<Thread> {
    // The name may contain anything, also parentheses.
    let (head, rest) = text.rsplit_once(')')?;
    let name = head.split_once('(')?.1.to_owned();
    let words: Vec<&str> = rest.split_whitespace().take(64).collect();
    // Fields count from 1; the third is the first after the name.
    let field = |n: usize| words.get(n - 3)?.parse::<u64>().ok();
    Some(Thread {
        name,
        faults: (field(10)?, field(12)?),
        used: field(14)?.saturating_add(field(15)?),
        began: field(22)?,
        cpu: usize::try_from(field(39)?).ok().filter(|cpu| *cpu < CPUS)?,
        priority: field(40).and_then(|p| u8::try_from(p).ok()).filter(|p| (1..=99).contains(p)),
    })
}

/// Parses CPU numbers such as `0-3,8`.
pub fn list(text: &str) -> BTreeSet<usize> {
    let number = |word: &str| word.trim().parse::<usize>().ok().filter(|cpu| *cpu < CPUS);
    let part = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(number(first)?..=number(last)?)
    };
    text.trim().split(',').take(ROWS).filter_map(part).flatten().collect()
}

/// Returns a value of a file of `Name: value` lines, such as `/proc/PID/status`.
pub fn value<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn interrupts_have_a_column_for_each_cpu_that_is_online() {
        let found = rows(
            "      CPU0       CPU2\n 36:  5  156046 PCI-MSIX 1-edge  virtio2-req.0\nLOC: 1 2 Local timer\nERR: 3\n",
        );
        let of = |counts: &[(usize, u64)], label: &str| Row {
            label: label.into(),
            counts: counts.iter().copied().collect(),
        };
        assert_eq!(found["36"], of(&[(0, 5), (2, 156_046)], "PCI-MSIX 1-edge virtio2-req.0"));
        assert_eq!(found["LOC"], of(&[(0, 1), (2, 2)], "Local timer"));
        assert_eq!(found["ERR"], of(&[(0, 3)], ""));
    }

    #[test]
    fn times_of_a_cpu() {
        let found = times("cpu  1 1 1 1 1 1 1 1 0 0\ncpu1 10 20 30 400 5 6 7 8 0 0\nintr 5\ncpu2 1 2\n");
        let times = Times { threads: 60, idle: 405, irq: 6, softirq: 7, steal: 8 };
        assert_eq!(found, [(1, times)].into());
        assert_eq!(times.total(), 486);
    }

    #[test]
    fn a_thread_may_have_any_name() {
        let rest = (4..=41).map(|n| n.to_string()).collect::<Vec<_>>().join(" ");
        let found = thread(&format!("77 (a) R (b) S {rest}")).unwrap();
        let expected = Thread {
            name: "a) R (b".into(),
            faults: (10, 12),
            used: 29,
            began: 22,
            cpu: 39,
            priority: Some(40),
        };
        assert_eq!(found, expected);
        assert_eq!(thread("77 (a) S 1 2 3"), None);
    }

    #[test]
    fn lists_of_cpus() {
        assert_eq!(list("0-2,8\n"), [0, 1, 2, 8].into());
        assert_eq!(list(""), BTreeSet::new());
        assert_eq!(list("3-1,x,99999999999"), BTreeSet::new());
        assert_eq!(value("A: 1\nCpus_allowed_list:\t0-3\n", "Cpus_allowed_list"), Some("0-3"));
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parsers_panic(text in "[ -~\n\t]{0,200}") {
            let _ = (rows(&text), times(&text), thread(&text), list(&text), value(&text, "a"));
        }
    }
}
