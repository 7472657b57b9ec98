//! Quantities with units, as people write them: `"500mbit"`, `"4kB"`, `"500us"`.
//!
//! ```text
//!  "1.5gbit" ──▶ decimal: digits, unit ──▶ exact integer ──▶ Rate, Bytes, Nanos
//!                     │                                          │
//!                     └─▶ UnitError: what is wrong, what to write └─▶ "1.5gbit"
//! ```
//!
//! All three are integers, serialise as the string that a person would write, and parse back to the same value.
//! Nothing is rounded: a value that is no whole number of the base unit is an error.

mod decimal;

pub use decimal::UnitError;

use decimal::{Quantity, Unit};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// A rate in bits per second of Ethernet frames (without preamble and FCS): `bit`, `kbit`, `mbit`, `gbit` (powers
/// of 1000). 1 bit/s to 400 Gbit/s.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Rate(u64);

/// A size in bytes: `B`, `kB`, `MB` (powers of 1000), `KiB`, `MiB` (1024).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Bytes(u64);

/// A duration in nanoseconds: `ns`, `us`, `ms`, `s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Nanos(u64);

const RATE: Quantity = Quantity {
    kind: "rate",
    units: &[
        Unit { name: "bit", scale: 1 },
        Unit { name: "kbit", scale: 1_000 },
        Unit { name: "mbit", scale: 1_000_000 },
        Unit { name: "gbit", scale: 1_000_000_000 },
    ],
    usual: "mbit",
    base: "bit/s",
    min: 1,
    max: Rate::MAX.0,
};

const BYTES: Quantity = Quantity {
    kind: "size",
    units: &[
        Unit { name: "B", scale: 1 },
        Unit { name: "kB", scale: 1_000 },
        Unit { name: "KiB", scale: 1 << 10 },
        Unit { name: "MB", scale: 1_000_000 },
        Unit { name: "MiB", scale: 1 << 20 },
    ],
    usual: "kB",
    base: "bytes",
    min: 0,
    max: u64::MAX,
};

const NANOS: Quantity = Quantity {
    kind: "duration",
    units: &[
        Unit { name: "ns", scale: 1 },
        Unit { name: "us", scale: 1_000 },
        Unit { name: "ms", scale: 1_000_000 },
        Unit { name: "s", scale: 1_000_000_000 },
    ],
    usual: "us",
    base: "ns",
    min: 0,
    max: u64::MAX,
};

impl Rate {
    /// The highest rate of a contract: 400 Gbit/s.
    pub const MAX: Self = Self(400_000_000_000);

    /// Makes a rate of `bits` per second; `None` outside 1 bit/s to 400 Gbit/s.
    pub const fn from_bits(bits: u64) -> Option<Self> {
        if bits >= 1 && bits <= Self::MAX.0 { Some(Self(bits)) } else { None }
    }
    /// Returns bits per second.
    pub const fn bits(self) -> u64 {
        self.0
    }
}

impl Bytes {
    /// Makes a size of `n` bytes.
    pub const fn new(n: u64) -> Self {
        Self(n)
    }
    /// Returns bytes.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl Nanos {
    /// Makes a duration of `n` nanoseconds.
    pub const fn new(n: u64) -> Self {
        Self(n)
    }
    /// Returns nanoseconds.
    pub const fn get(self) -> u64 {
        self.0
    }
}

macro_rules! written_with_unit {
    ($type:ident, $quantity:ident) => {
        /// The shortest exact form, such as `1.5gbit`; parses back to the same value.
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&$quantity.format(self.0))
            }
        }
        impl FromStr for $type {
            type Err = UnitError;
            fn from_str(text: &str) -> Result<Self, UnitError> {
                $quantity.parse(text).map(Self)
            }
        }
        impl TryFrom<String> for $type {
            type Error = UnitError;
            fn try_from(text: String) -> Result<Self, UnitError> {
                text.parse()
            }
        }
        impl From<$type> for String {
            fn from(value: $type) -> Self {
                value.to_string()
            }
        }
    };
}

written_with_unit!(Rate, RATE);
written_with_unit!(Bytes, BYTES);
written_with_unit!(Nanos, NANOS);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn quantities_are_read_as_people_write_them() {
        for (text, bits) in [
            ("500mbit", 500_000_000),
            ("1.5gbit", 1_500_000_000),
            ("1.50gbit", 1_500_000_000),
            ("0.5kbit", 500),
            ("1bit", 1),
            ("400gbit", 400_000_000_000),
            ("10 gbit", 10_000_000_000),
        ] {
            assert_eq!(text.parse::<Rate>().map(Rate::bits), Ok(bits), "{text}");
        }
        for (text, bytes) in
            [("4kB", 4000), ("4KiB", 4096), ("1.5MiB", 1_572_864), ("9B", 9), ("2MB", 2_000_000)]
        {
            assert_eq!(text.parse::<Bytes>().map(Bytes::get), Ok(bytes), "{text}");
        }
        for (text, ns) in [("500us", 500_000), ("1.5ms", 1_500_000), ("2s", 2_000_000_000), ("7ns", 7)] {
            assert_eq!(text.parse::<Nanos>().map(Nanos::get), Ok(ns), "{text}");
        }
    }

    #[test]
    fn says_what_is_wrong_with_a_rate() {
        for (text, wanted) in [
            ("500", r#"rate "500" has no unit; write "500mbit" (units: bit, kbit, mbit, gbit)"#),
            ("", r#"rate "" is empty; write for example "500mbit" (units: bit, kbit, mbit, gbit)"#),
            ("-5mbit", r#"rate "-5mbit" is negative; it must be at least 1bit"#),
            ("-inf", r#"rate "-inf" is not a finite number; write for example "500mbit""#),
            ("0mbit", r#"rate "0mbit" is zero; it must be at least 1bit"#),
            ("0.000gbit", r#"rate "0.000gbit" is zero; it must be at least 1bit"#),
            ("NaN", r#"rate "NaN" is not a finite number; write for example "500mbit""#),
            ("nanmbit", r#"rate "nanmbit" is not a finite number; write for example "500mbit""#),
            ("infgbit", r#"rate "infgbit" is not a finite number; write for example "500mbit""#),
            ("401gbit", r#"rate "401gbit" is too large; it must be at most 400gbit"#),
            ("99999999999999999999999999999999999999999gbit", r#"is too large; it must be at most 400gbit"#),
            ("0.5bit", r#"rate "0.5bit" is not a whole number of bit/s"#),
            ("5Mbit", r#"rate "5Mbit": unit "Mbit" is written in the wrong case; write "5mbit""#),
            ("5MB", r#"rate "5MB": unknown unit "MB" (units: bit, kbit, mbit, gbit)"#),
            (
                "5mbps",
                r#"rate "5mbps": unknown unit "mbps"; did you mean "5mbit"? (units: bit, kbit, mbit, gbit)"#,
            ),
            ("fast", r#"rate "fast" does not begin with a number; write for example "500mbit""#),
            ("1e9bit", r#"rate "1e9bit": unknown unit "e9bit" (units: bit, kbit, mbit, gbit)"#),
            ("1.2.3mbit", r#"rate "1.2.3mbit" is not a decimal number; write for example "500mbit""#),
            ("5.mbit", r#"rate "5.mbit" is not a decimal number; write for example "500mbit""#),
            (".5mbit", r#"rate ".5mbit" is not a decimal number; write for example "500mbit""#),
            ("1,5mbit", r#"rate "1,5mbit" is not a decimal number; write for example "500mbit""#),
        ] {
            let error = text.parse::<Rate>().expect_err(text).to_string();
            assert!(error.ends_with(wanted), "{text}: {error}");
        }
    }

    #[test]
    fn ambiguous_case_names_the_choices() {
        let error = |text: &str| text.parse::<Bytes>().expect_err(text).to_string();
        assert_eq!(error("4KB"), r#"size "4KB": unit "KB" is written in the wrong case; write "4kB""#);
        assert_eq!(error("4mb"), r#"size "4mb": unit "mb" is written in the wrong case; write "4MB""#);
        assert_eq!(error("4kib"), r#"size "4kib": unit "kib" is written in the wrong case; write "4KiB""#);
        assert_eq!(error("-4kB"), r#"size "-4kB" is negative; it must be at least 0B"#);
        let error = |text: &str| text.parse::<Nanos>().expect_err(text).to_string();
        assert_eq!(error("4MS"), r#"duration "4MS": unit "MS" is written in the wrong case; write "4ms""#);
        assert_eq!(
            error("4µs"),
            r#"duration "4µs": unknown unit "µs"; did you mean "4us"? (units: ns, us, ms, s)"#
        );
        assert_eq!(
            error("99999999999s"),
            r#"duration "99999999999s" is too large; it must be at most 18446744073709551615ns"#
        );
    }

    #[test]
    fn prints_the_shortest_exact_form() {
        for (bits, text) in [
            (1, "1bit"),
            (1_500_000_000, "1.5gbit"),
            (500_000, "500kbit"),
            (1_234_567, "1234567bit"),
            (1_234_000, "1234kbit"),
        ] {
            assert_eq!(Rate(bits).to_string(), text);
        }
        for (bytes, text) in
            [(0, "0B"), (65_536, "64KiB"), (4000, "4kB"), (1518, "1518B"), (1_500_000, "1.5MB")]
        {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
        for (ns, text) in [(0, "0ns"), (100_000_000, "100ms"), (250_000, "250us"), (312_144, "312144ns")] {
            assert_eq!(Nanos(ns).to_string(), text);
        }
        assert_eq!(format!("{:>8}|{:<8}|", Rate(1000), Nanos(5)), "   1kbit|5ns     |");
    }

    #[test]
    fn serialises_as_the_string() {
        assert_eq!(serde_json::to_string(&Rate(5_000)).expect("serialises"), r#""5kbit""#);
        assert_eq!(serde_json::from_str::<Nanos>(r#""5us""#).expect("parses"), Nanos(5_000));
        let error = serde_json::from_str::<Rate>(r#""5""#).expect_err("no unit").to_string();
        assert!(error.contains("has no unit"), "{error}");
        assert!(serde_json::from_str::<Bytes>("5").is_err());
    }

    proptest! {
        #[test]
        fn printed_quantities_read_back(n: u64, small in 0u64..5_000_000, exp in 0u32..10) {
            for n in [n, small, small * 10u64.pow(exp), n >> 20 << 10] {
                prop_assert_eq!(Bytes(n).to_string().parse(), Ok(Bytes(n)));
                prop_assert_eq!(Nanos(n).to_string().parse(), Ok(Nanos(n)));
                if let Some(rate) = Rate::from_bits(n % (Rate::MAX.0 + 2)) {
                    prop_assert_eq!(rate.to_string().parse(), Ok(rate));
                }
            }
        }

        #[test]
        fn no_text_panics(text: String, near in "[-+.,0-9a-zA-Zµ ]{0,40}") {
            for text in [text, near] {
                let _ = (text.parse::<Rate>(), text.parse::<Bytes>(), text.parse::<Nanos>());
            }
        }
    }
}
