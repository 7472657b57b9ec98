//! A decimal number with a unit, read and written without rounding.

use std::fmt::Write;

/// A unit, and its size in base units.
pub(super) struct Unit {
    pub name: &'static str,
    /// Powers of 2 times powers of 5 only, so that every multiple has a finite decimal form.
    pub scale: u64,
}

/// The written form of one kind of quantity.
pub(super) struct Quantity {
    pub kind: &'static str,
    /// Smallest first; the first is the base unit, scale 1.
    pub units: &'static [Unit],
    /// The unit to suggest if none was written.
    pub usual: &'static str,
    /// The base unit in words.
    pub base: &'static str,
    pub min: u64,
    pub max: u64,
}

/// An invalid quantity: what is wrong, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UnitError(String);

impl Quantity {
    /// Reads `number unit`, spaces allowed between.
    ///
    /// # Errors
    /// Any text that is not exactly one number of this quantity within its range.
    pub(super) fn parse(&self, text: &str) -> Result<u64, UnitError> {
        let fail = |problem: String| Err(UnitError(format!("{} {text:?}{problem}", self.kind)));
        let usual = format!("write for example \"500{}\"", self.usual);
        let trimmed = text.trim();
        let unsigned = trimmed.strip_prefix(['-', '+']).unwrap_or(trimmed);
        if unsigned.is_empty() {
            return fail(format!(" is empty; {usual} (units: {})", self.names()));
        }
        let lower = unsigned.to_ascii_lowercase();
        if lower.starts_with("nan") || lower.starts_with("inf") {
            return fail(format!(" is not a finite number; {usual}"));
        }
        let end =
            unsigned.find(|c: char| !c.is_ascii_digit() && c != '.' && c != ',').unwrap_or(unsigned.len());
        let (number, unit) = (&unsigned[..end], unsigned[end..].trim_start());
        if number.is_empty() {
            return fail(format!(" does not begin with a number; {usual}"));
        }
        let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
        let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
        if !digits(whole) || !digits(fraction) {
            return fail(format!(" is not a decimal number; {usual}"));
        }
        if unit.is_empty() {
            return fail(format!(" has no unit; write \"{number}{}\" (units: {})", self.usual, self.names()));
        }
        let Some(scale) = self.units.iter().find(|u| u.name == unit).map(|u| u.scale) else {
            return fail(self.wrong_unit(number, unit));
        };
        let zero = number.bytes().all(|b| matches!(b, b'0' | b'.'));
        if trimmed.starts_with('-') {
            return fail(format!(" is negative; it must be at least {}", self.format(self.min)));
        }
        if zero && self.min > 0 {
            return fail(format!(" is zero; it must be at least {}", self.format(self.min)));
        }
        match exact(whole, fraction.trim_end_matches('0'), scale) {
            Exact::Value(v) if v <= self.max => Ok(v),
            Exact::Value(_) | Exact::TooLarge => {
                fail(format!(" is too large; it must be at most {}", self.format(self.max)))
            }
            Exact::Fraction => fail(format!(" is not a whole number of {}", self.base)),
        }
    }

    fn wrong_unit(&self, number: &str, unit: &str) -> String {
        if let Some(right) = self.units.iter().find(|u| u.name.eq_ignore_ascii_case(unit)) {
            return format!(": unit {unit:?} is written in the wrong case; write \"{number}{}\"", right.name);
        }
        let meant = match (self.kind, unit) {
            ("rate", "kbps" | "kbit/s" | "kb/s") => Some("kbit"),
            ("rate", "mbps" | "Mbps" | "mbit/s" | "Mbit/s") => Some("mbit"),
            ("rate", "gbps" | "Gbps" | "gbit/s" | "Gbit/s") => Some("gbit"),
            ("size", "b" | "byte" | "bytes") => Some("B"),
            ("duration", "\u{b5}s" | "\u{3bc}s" | "usec") => Some("us"),
            ("duration", "msec") => Some("ms"),
            ("duration", "sec") => Some("s"),
            _ => None,
        };
        let hint = meant.map(|m| format!("; did you mean \"{number}{m}\"?")).unwrap_or_default();
        format!(": unknown unit {unit:?}{hint} (units: {})", self.names())
    }

    fn names(&self) -> String {
        self.units.iter().map(|u| u.name).collect::<Vec<_>>().join(", ")
    }

    /// Returns the shortest exact form, without a leading zero: `500kbit`, never `0.5mbit`.
    pub(super) fn format(&self, value: u64) -> String {
        let mut best = format!("{value}{}", self.units[0].name);
        for unit in &self.units[1..] {
            if value >= unit.scale {
                let form = decimal(value, unit.scale) + unit.name;
                let whole = value.is_multiple_of(unit.scale);
                if form.len() < best.len() || whole && form.len() == best.len() {
                    best = form;
                }
            }
        }
        best
    }
}

enum Exact {
    Value(u64),
    TooLarge,
    Fraction,
}

/// Returns `whole.fraction * scale`; `fraction` must have no trailing zeros.
fn exact(whole: &str, fraction: &str, scale: u64) -> Exact {
    // A scale below 2^31 has at most 30 factors of ten (or of two): more digits cannot be whole.
    if fraction.len() > 30 {
        return Exact::Fraction;
    }
    let (Ok(whole), Ok(numerator)) = (whole.parse::<u64>(), format!("0{fraction}").parse::<u128>()) else {
        return Exact::TooLarge;
    };
    let denominator = 10u128.pow(fraction.len() as u32);
    // Dividing first keeps the product in range: gcd(scale, 10^n) carries every shared factor.
    let shared = gcd(u128::from(scale), denominator);
    let (factor, denominator) = (u128::from(scale) / shared, denominator / shared);
    if numerator % denominator != 0 {
        return Exact::Fraction;
    }
    // numerator < 10^n, so the second term is below `scale`: neither can overflow.
    let value = u128::from(whole) * u128::from(scale) + numerator / denominator * factor;
    u64::try_from(value).map_or(Exact::TooLarge, Exact::Value)
}

fn gcd(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// Returns `value / scale` in decimal; finite because of the allowed scales.
fn decimal(value: u64, scale: u64) -> String {
    let mut text = (value / scale).to_string();
    let mut rest = u128::from(value % scale);
    if rest > 0 {
        text.push('.');
    }
    while rest > 0 {
        rest *= 10;
        write!(text, "{}", rest / u128::from(scale)).expect("writing to a string cannot fail");
        rest %= u128::from(scale);
    }
    text
}
