//! Links as lines beside the rows of a text.
//!
//! ```text
//!  rows 1 and 4, rows 2 and 3 ──▶ ╭─── 1      each link has a lane of its own while it runs;
//!                                 │ ╭─ 2      short ones are next to the text
//!                                 │ ╰─ 3
//!                                 ╰─── 4
//! ```

/// A link between two rows; no other link ends at either of them.
#[derive(Clone, Copy, Debug)]
pub struct Edge {
    /// The upper row.
    pub from: usize,
    /// The lower row.
    pub to: usize,
    /// Drawn dashed if it is not.
    pub up: bool,
}

/// The lanes of all links.
pub struct Lanes {
    /// By lane, the one next to the text first.
    lanes: Vec<Vec<Edge>>,
    /// How many links found no lane.
    pub omitted: usize,
}

impl Lanes {
    /// Gives each link a lane, of at most `most`.
    pub fn new(mut edges: Vec<Edge>, most: usize) -> Self {
        edges.sort_by_key(|edge| (edge.to - edge.from, edge.from));
        let (mut lanes, mut omitted): (Vec<Vec<Edge>>, _) = (vec![], 0);
        for edge in edges {
            let is_free =
                |lane: &Vec<Edge>| lane.iter().all(|other| edge.to < other.from || other.to < edge.from);
            match lanes.iter().position(is_free) {
                Some(lane) => lanes[lane].push(edge),
                None if lanes.len() < most => lanes.push(vec![edge]),
                None => omitted += 1,
            }
        }
        Self { lanes, omitted }
    }

    /// Returns what stands to the left of a row, and whether a link ends there.
    pub fn before(&self, row: usize) -> (String, bool) {
        let mut text = String::new();
        // The link that ends at this row runs on to the text.
        let mut runs: Option<bool> = None;
        for lane in self.lanes.iter().rev() {
            let here = lane.iter().find(|edge| (edge.from..=edge.to).contains(&row));
            let dash = |up| if up { '─' } else { '╌' };
            match (here, runs) {
                (Some(edge), _) if edge.from == row || edge.to == row => {
                    text.push(if edge.from == row { '╭' } else { '╰' });
                    runs = Some(edge.up);
                }
                (Some(_), Some(_)) => text.push('┼'),
                (Some(edge), None) => text.push(if edge.up { '│' } else { '┆' }),
                (None, Some(up)) => text.push(dash(up)),
                (None, None) => text.push(' '),
            }
            text.push(runs.map_or(' ', dash));
        }
        (text, runs.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(edges: &[(usize, usize, bool)], rows: usize, most: usize) -> Vec<String> {
        let edges = edges.iter().map(|&(from, to, up)| Edge { from, to, up }).collect();
        let lanes = Lanes::new(edges, most);
        (0..rows).map(|row| lanes.before(row).0.trim_end().to_owned()).collect()
    }

    #[test]
    fn short_links_are_inside() {
        assert_eq!(drawn(&[(0, 3, true), (1, 2, true)], 4, 9), ["╭───", "│ ╭─", "│ ╰─", "╰───"]);
        assert_eq!(drawn(&[(0, 1, true), (2, 3, false)], 4, 9), ["╭─", "╰─", "╭╌", "╰╌"]);
        // Links that overlap cross.
        assert_eq!(drawn(&[(0, 2, true), (1, 3, false)], 4, 9), ["  ╭─", "╭╌┼╌", "┆ ╰─", "╰╌╌╌"]);
    }

    #[test]
    fn links_beyond_the_room_are_counted() {
        assert_eq!(drawn(&[(0, 2, true), (1, 3, true)], 4, 1), ["╭─", "│", "╰─", ""]);
        let edges = vec![Edge { from: 0, to: 2, up: true }, Edge { from: 1, to: 3, up: true }];
        assert_eq!(Lanes::new(edges, 1).omitted, 1);
    }
}
