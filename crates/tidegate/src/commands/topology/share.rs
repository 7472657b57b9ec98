//! What is reserved of a direction of a link, as a bar.

use crate::format::percent;
use tidegate_controller_api::LinkUse;

/// Characters of a bar.
const CELLS: usize = 8;
/// Characters of a share: bar, ends and number.
pub const WIDTH: usize = CELLS + 2 + 6;
const EIGHTHS: [char; 8] = [' ', '▏', '▎', '▍', '▌', '▋', '▊', '▉'];

/// Returns the share of what paths may have, or why there is none.
pub fn share(link: Option<&LinkUse>) -> String {
    match link {
        None => "-".into(),
        Some(link) if !link.up => "down".into(),
        Some(link) if link.reservable == 0 => "not for paths".into(),
        Some(link) => {
            let share = link.reserved as f64 / link.reservable as f64;
            format!("▕{}▏{:>6}", bar(share), percent(share))
        }
    }
}

fn bar(share: f64) -> String {
    let eighths = (share.clamp(0.0, 1.0) * (CELLS * 8) as f64).round() as usize;
    // What is reserved at all is seen.
    let eighths = if share > 0.0 { eighths.max(1) } else { eighths };
    let full = eighths / 8;
    let mut bar = "█".repeat(full);
    if full < CELLS {
        bar.push(EIGHTHS[eighths % 8]);
        bar.extend(std::iter::repeat_n(' ', CELLS - full - 1));
    }
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_long_as_the_share() {
        for (share, shown) in [
            (0.0, "        "),
            (0.0001, "▏       "),
            (0.5, "████    "),
            (0.55, "████▍   "),
            (1.0, "████████"),
            (7.0, "████████"),
        ] {
            assert_eq!(bar(share), shown, "{share}");
        }
    }
}
