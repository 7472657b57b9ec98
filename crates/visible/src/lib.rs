//! Text that others chose, as a terminal or a log may show it.
//!
//! ```text
//!  contracts, paths, guests, the switch, libvirt ──▶ text ──▶ visible ──▶ a line: nothing acts, nothing hides
//!                                                        └──▶ json ─────▶ the same data, as JSON's own escapes
//! ```
//!
//! A terminal obeys control characters: a name with an escape sequence in it can clear the screen, or type. A newline
//! makes a line that another program seems to have written. Characters that turn the direction of text around, or show
//! nothing at all, make one name look like another. So each of them is written as `\n` or `\u{1b}`.
//!
//! Every way out of the project's programs passes here once: the log ([`visible`], in `tidegate-log`), what the command
//! line prints ([`lines`] and [`json`], in `exit.rs` of `tidegate`), and errors that quote what they refuse
//! (`tidegate-contract`).

use std::borrow::Cow;
use std::fmt::{self, Write};

/// Characters that are shown as nothing, that change how their neighbours are shown, or whose look is not defined: the
/// general categories Cc, Zl, Zp and Co (private use), the property Default_Ignorable_Code_Point, which has the
/// Bidi_Control characters among it, and the format characters of annotations and hieroglyphs (Unicode 16.0,
/// DerivedCoreProperties.txt, PropList.txt). First and last of each range, ascending.
const HIDDEN: [(char, char); 23] = [
    ('\u{0}', '\u{1f}'),
    ('\u{7f}', '\u{9f}'),
    // Soft hyphen, combining grapheme joiner, Arabic letter mark.
    ('\u{ad}', '\u{ad}'),
    ('\u{34f}', '\u{34f}'),
    ('\u{61c}', '\u{61c}'),
    // Fillers of Hangul, inherent vowels of Khmer, Mongolian variation selectors.
    ('\u{115f}', '\u{1160}'),
    ('\u{17b4}', '\u{17b5}'),
    ('\u{180b}', '\u{180f}'),
    // Zero-width characters, and marks of direction.
    ('\u{200b}', '\u{200f}'),
    // Ends of lines and paragraphs; embeddings and overrides of direction.
    ('\u{2028}', '\u{202e}'),
    // Word joiner, invisible operators, isolates of direction, deprecated format characters.
    ('\u{2060}', '\u{206f}'),
    ('\u{3164}', '\u{3164}'),
    // Private use; variation selectors.
    ('\u{e000}', '\u{f8ff}'),
    ('\u{fe00}', '\u{fe0f}'),
    // Byte order mark.
    ('\u{feff}', '\u{feff}'),
    ('\u{ffa0}', '\u{ffa0}'),
    // Interlinear annotations, and what is reserved before them.
    ('\u{fff0}', '\u{fffb}'),
    ('\u{13430}', '\u{13440}'),
    ('\u{1bca0}', '\u{1bca3}'),
    ('\u{1d173}', '\u{1d17a}'),
    // Tags.
    ('\u{e0000}', '\u{e0fff}'),
    // Private use.
    ('\u{f0000}', '\u{ffffd}'),
    ('\u{100000}', '\u{10fffd}'),
];

/// Whether a character is shown as nothing, or does something to a terminal or to its neighbours.
pub fn is_hidden(c: char) -> bool {
    // Nearly everything is one of these.
    !(' '..='~').contains(&c) && HIDDEN.iter().any(|(first, last)| (*first..=*last).contains(&c))
}

/// `text` as one line: each [hidden](is_hidden) character is written out, such as `\n` and `\u{1b}`.
pub fn visible(text: &str) -> Cow<'_, str> {
    escaped(text, is_hidden)
}

/// `text` of our own that has several lines; all but their ends, and tabs, is as [`visible`] writes it.
pub fn lines(text: &str) -> Cow<'_, str> {
    escaped(text, |c| !matches!(c, '\n' | '\t') && is_hidden(c))
}

/// JSON with its own escapes (RFC 8259, section 7) for what cannot be seen: the same data, which a terminal can
/// show. Line ends and tabs between values stay.
pub fn json(text: &str) -> Cow<'_, str> {
    // JSON has no such character outside of strings, and inside of them a serializer leaves only these.
    let hidden = |c: char| !matches!(c, '\n' | '\t' | '\r') && is_hidden(c);
    if !text.contains(hidden) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 32);
    for c in text.chars() {
        if hidden(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

fn escaped(text: &str, hidden: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&hidden) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 32);
    for c in text.chars() {
        if hidden(c) { out.extend(c.escape_default()) } else { out.push(c) }
    }
    Cow::Owned(out)
}

/// Shows any value as [`visible`] shows its text.
#[derive(Clone, Copy, Debug)]
pub struct Visible<T>(pub T);

impl<T: fmt::Display> fmt::Display for Visible<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Sieve(f), "{}", self.0)
    }
}

/// Passes text on, with what is hidden in it written out.
struct Sieve<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl fmt::Write for Sieve<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write_str(&visible(text))
    }
}

/// The first bytes of `text`: at most `room`, and whole characters only.
pub fn beginning(text: &str, room: usize) -> &str {
    let mut end = room.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn control_and_hidden_characters_are_escaped() {
        let cases = [
            ("plain text, äöü, 日本語, हिन्दी, e\u{301}", "plain text, äöü, 日本語, हिन्दी, e\u{301}"),
            ("a\nb\r\tc", "a\\nb\\r\\tc"),
            ("\u{1b}[2J\u{1b}]0;title\u{7}", "\\u{1b}[2J\\u{1b}]0;title\\u{7}"),
            // The 8-bit form of the same, and delete.
            ("\u{9b}31m\u{7f}", "\\u{9b}31m\\u{7f}"),
            ("web\u{202e}gro.live\u{202c}", "web\\u{202e}gro.live\\u{202c}"),
            ("\u{2066}a\u{2069}", "\\u{2066}a\\u{2069}"),
            ("ze\u{200b}ro\u{feff}", "ze\\u{200b}ro\\u{feff}"),
            ("line\u{2028}line\u{2029}", "line\\u{2028}line\\u{2029}"),
            ("tag\u{e0041}", "tag\\u{e0041}"),
        ];
        for (text, shown) in cases {
            assert_eq!(visible(text), shown);
            assert_eq!(Visible(text).to_string(), shown);
        }
        assert!(matches!(visible("nothing"), Cow::Borrowed(_)));
    }

    #[test]
    fn our_own_line_breaks_stay() {
        assert_eq!(lines("one\n\ttwo\u{1b}[0m\r\n"), "one\n\ttwo\\u{1b}[0m\\r\n");
    }

    #[test]
    fn json_is_the_same_data() {
        assert_eq!(
            json("{\n  \"a\u{202e}\": \"\u{7f}\u{e0041}\"\n}"),
            "{\n  \"a\\u202e\": \"\\u007f\\udb40\\udc41\"\n}"
        );
    }

    #[test]
    fn ranges_are_ranges() {
        assert!(HIDDEN.iter().all(|(first, last)| first <= last));
        assert!(HIDDEN.windows(2).all(|pair| pair[0].1 < pair[1].0));
        assert!(!is_hidden(' ') && !is_hidden('~') && !is_hidden('\u{a0}') && !is_hidden('\u{fffd}'));
    }

    proptest! {
        #[test]
        fn hidden_characters_are_escaped_and_all_others_stay(text in any::<String>()) {
            let shown = visible(&text).into_owned();
            prop_assert!(!shown.contains(is_hidden));
            prop_assert_eq!(visible(&shown), &*shown);
            prop_assert!(lines(&text).chars().all(|c| c == '\n' || c == '\t' || !is_hidden(c)));
            if !text.contains(is_hidden) {
                prop_assert_eq!(shown, text);
            }
        }
    }
}
