//! Finds the chain of a u32 filter.
//!
//! Chains of one block share u32's hash tables, and a dump of one chain goes through all tables of the
//! preference (`u32_walk`, net/sched/cls_u32.c). So filters of the same preference in two chains appear
//! twice, once for each. If one of them is ours, its table decides: ours is in chain 0, and so are all in
//! the same table.

use crate::handle::Handle;
use crate::tc::network::Filter;

/// Reduces each filter that appears in several chains to its real one, if a filter of ours decides.
pub fn settle(filters: &mut Vec<Filter>) {
    let tables: Vec<Table> =
        filters.iter().filter(|f| is_u32(f) && f.cookie().is_some()).map(table).collect();
    let real: Vec<bool> = filters.iter().map(|f| is_real(f, filters, &tables)).collect();
    let mut real = real.into_iter();
    filters.retain(|_| real.next().unwrap_or(true));
}

fn is_real(filter: &Filter, all: &[Filter], own_tables: &[Table]) -> bool {
    let (parent, preference, _) = table(filter);
    let concerned = is_u32(filter) && own_tables.iter().any(|(at, of, _)| (*at, *of) == (parent, preference));
    let same = |f: &&Filter| is_u32(f) && table(f) == table(filter) && f.handle == filter.handle;
    let chains = || all.iter().filter(same).map(|f| f.chain);
    let elsewhere = chains().filter(|chain| *chain != 0).min();
    match elsewhere {
        Some(chain) if concerned && chains().any(|other| other != chain) => {
            filter.chain == if own_tables.contains(&table(filter)) { 0 } else { chain }
        }
        _ => true,
    }
}

fn is_u32(filter: &Filter) -> bool {
    filter.kind == "u32"
}

/// Parent, preference, and hash table: the first 12 bits of a handle (`TC_U32_HTID`, linux/pkt_cls.h).
type Table = (Handle, u16, u32);

fn table(filter: &Filter) -> Table {
    (filter.parent, filter.preference, filter.handle >> 20)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tc::network::{ANY_PROTOCOL, Rule};
    use crate::tc::owner::Cookie;

    fn filter(chain: u32, preference: u16, handle: u32, ours: bool) -> Filter {
        let redirect = Rule::Redirect { to: 9, cookie: Cookie { made_clsact: false } };
        let rule = if ours { redirect } else { Rule::Other };
        let (parent, kind) = (Handle::INGRESS, "u32".to_owned());
        Filter { parent, preference, protocol: ANY_PROTOCOL, kind, handle, chain, rule }
    }

    fn settled(filters: &[Filter]) -> Vec<(u32, u32)> {
        let mut filters = filters.to_vec();
        settle(&mut filters);
        filters.iter().map(|f| (f.chain, f.handle)).collect()
    }

    #[test]
    fn the_table_of_our_filter_tells_which_filters_are_in_chain_0() {
        let said = |chain| {
            [
                filter(chain, 2, 0x8040_0800, true),
                filter(chain, 2, 0x8040_0801, false),
                filter(chain, 2, 0x8030_0800, false),
            ]
        };
        let all = [said(0), said(5)].concat();
        assert_eq!(settled(&all), [(0, 0x8040_0800), (0, 0x8040_0801), (5, 0x8030_0800)]);
        let others = [said(0), said(5), said(7)].concat();
        assert_eq!(settled(&others), settled(&all));
    }

    #[test]
    fn without_our_filter_the_chain_of_filters_stays_unknown() {
        let said = |chain| [filter(chain, 9, 0x8040_0800, false), filter(chain, 9, 0x8030_0800, false)];
        let mut all = [said(0), said(5)].concat();
        assert_eq!(settled(&all).len(), 4);
        all.push(filter(0, 2, 0x8010_0800, true));
        assert_eq!(settled(&all).len(), 5, "of another preference");
        assert_eq!(settled(&said(5)), [(5, 0x8040_0800), (5, 0x8030_0800)]);
    }
}
