//! Times of CPUs: `/proc/stat` (proc_stat(5)).

use std::collections::BTreeMap;

/// Times of one CPU since boot, clock ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// All but idle time and waiting for disks.
    pub busy: u64,
    /// In interrupts.
    pub hard: u64,
    /// In softirqs.
    pub soft: u64,
}

/// Parses the lines of CPUs.
pub fn parse(text: &str) -> BTreeMap<usize, Times> {
    let line = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let cpu = fields.next()?.strip_prefix("cpu")?.parse().ok()?;
        let times: Vec<u64> = fields.map_while(|field| field.parse().ok()).collect();
        // user nice system idle iowait irq softirq steal; the guests' times after them are in user and nice.
        let [user, nice, system, _, _, hard, soft, rest @ ..] = times.as_slice() else { return None };
        let stolen = rest.first().copied().unwrap_or(0);
        let busy = [user, nice, system, hard, soft, &stolen]
            .into_iter()
            .fold(0_u64, |sum, time| sum.saturating_add(*time));
        Some((cpu, Times { busy, hard: *hard, soft: *soft }))
    };
    text.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_cpus() {
        let text =
            "cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 1 2 3 100 50 6 7 8 1 0\ncpu12 1 0 0 0 0 0 2\ncpux 1\nintr 5\n";
        let found = parse(text);
        assert_eq!(found.len(), 2);
        assert_eq!(found[&0], Times { busy: 27, hard: 6, soft: 7 });
        assert_eq!(found[&12], Times { busy: 3, hard: 0, soft: 2 });
    }
}
