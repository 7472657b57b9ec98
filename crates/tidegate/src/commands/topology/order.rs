//! Switches in an order in which links are short.
//!
//! ```text
//!  neighbours of each switch ──▶ one after the other: the one with most links to those before, and fewest to come
//! ```

/// Returns all switches, each once; `neighbours[n]` are those of switch n, one entry for each link.
pub fn order(neighbours: &[Vec<usize>]) -> Vec<usize> {
    let mut placed = vec![false; neighbours.len()];
    let mut order = Vec::with_capacity(neighbours.len());
    while order.len() < neighbours.len() {
        let gain = |switch: usize| -> i64 {
            neighbours[switch].iter().map(|&other| if placed[other] { 1 } else { -1 }).sum()
        };
        let touches = |switch: usize| neighbours[switch].iter().any(|&other| placed[other]);
        let waiting = (0..neighbours.len()).filter(|&switch| !placed[switch]);
        // A switch without a link to those before comes only when there is none with one; the first of equals wins.
        let next = waiting.max_by_key(|&switch| (touches(switch), gain(switch), std::cmp::Reverse(switch)));
        let Some(next) = next else { break };
        placed[next] = true;
        order.push(next);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_line_stays_in_its_order_wherever_it_begins() {
        assert_eq!(order(&[vec![1], vec![0, 2], vec![1]]), [0, 1, 2]);
        assert_eq!(order(&[vec![2], vec![2], vec![0, 1]]), [0, 2, 1]);
        assert_eq!(order(&[]), [] as [usize; 0]);
    }

    proptest! {
        #[test]
        fn each_switch_is_there_once(links in prop::collection::vec((0usize..12, 0usize..12), 0..40)) {
            let mut neighbours = vec![vec![]; 12];
            for (a, b) in links {
                neighbours[a].push(b);
                neighbours[b].push(a);
            }
            let mut all = order(&neighbours);
            all.sort_unstable();
            prop_assert_eq!(all, (0..12).collect::<Vec<_>>());
        }
    }
}
